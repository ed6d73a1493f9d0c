"""``surefoot init`` and ``surefoot config``: what is written, what is changed, and what stays as it was."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.conftest import Program

from surefoot.cli import settings_text
from surefoot.cli.config import VARIABLES
from surefoot.cli.settings_text import TEMPLATE, Address, changed, write
from surefoot.errors import OptionError
from surefoot.options import Environment, SamplingParams, SpeculativeOptions
from surefoot.settings import ENTRY_KEYS, KEYS, parse

FILE = Path("/somewhere/config.toml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "config.toml"
    write(path, TEMPLATE)
    return path


def test_init_writes_the_file_every_command_reads(
    surefoot_program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "surefoot" / "config.toml"
    before = json.loads(surefoot_program("config", "path", "--json").out)
    assert before == {"path": str(path), "exists": False}
    assert surefoot_program("init").code == 0
    assert path.read_text() == TEMPLATE
    assert surefoot_program("config", "path").out == f"{path}\n"
    assert surefoot_program("config", "get", "models.code.num_draft").out == "8\n"


def test_init_does_not_overwrite_unless_forced(surefoot_program: Program, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("# mine\n")
    ran = surefoot_program("init", "--path", str(path))
    assert (ran.code, ran.out, path.read_text()) == (2, "", "# mine\n")
    assert "exists; nothing was written. Use --force" in ran.err
    forced = surefoot_program("init", "--path", str(path), "--force", "--json")
    assert (forced.code, json.loads(forced.out)) == (0, {"path": str(path)})
    assert path.read_text() == TEMPLATE
    assert "is a directory" in surefoot_program("init", "--path", str(tmp_path)).err


def test_the_template_says_what_the_defaults_are_not() -> None:
    (code,) = parse(TEMPLATE, FILE).models
    assert code.layer.values["num_draft"] == 8
    assert SpeculativeOptions().num_draft == 4
    assert (code.name, code.path, code.layer.values["draft_model"]) == ("code", "pebble", "pebble-draft")


def test_the_template_names_every_key_and_each_comment_is_valid_when_uncommented() -> None:
    uncommented = re.sub(r"^# (\w+ = |\[)", r"\1", TEMPLATE, flags=re.MULTILINE)
    parsed = parse(uncommented, FILE)
    first, second = parsed.models
    assert set(first.layer.values) == set(KEYS)
    assert second.path == "/somewhere/models/my-model"
    assert parsed.profile("careful").layer.values == {"exact": "require", "num_draft": 4}
    assert SamplingParams(temperature=0.7).temperature == first.layer.values["temperature"]


def test_set_changes_one_value_and_nothing_else(surefoot_program: Program, file: Path) -> None:
    ran = surefoot_program("config", "set", "models.code.num_draft", "3", "--config", str(file), "--json")
    assert json.loads(ran.out) == {"path": str(file), "key": "models.code.num_draft", "value": 3}
    assert file.read_text() == TEMPLATE.replace("num_draft = 8 ", "num_draft = 3 ")


def test_a_key_that_was_not_there_comes_after_the_last_one_of_its_part(surefoot_program: Program, file: Path) -> None:
    assert surefoot_program("config", "set", "models.code.temperature", "0.5", "--config", str(file)).code == 0
    assert surefoot_program("config", "get", "models.code.temperature", "--config", str(file)).out == "0.5\n"
    new = file.read_text().splitlines()
    new.remove("temperature = 0.5")
    assert new == TEMPLATE.splitlines()
    assert file.read_text().index("temperature = 0.5") < TEMPLATE.index("# The rest")


def test_a_file_with_ends_of_windows_keeps_them(surefoot_program: Program, file: Path) -> None:
    file.write_bytes(TEMPLATE.replace("\n", "\r\n").encode())
    for key, value in (("num_draft", "3"), ("seed", "5")):
        assert surefoot_program("config", "set", f"models.code.{key}", value, "--config", str(file)).code == 0
    text = file.read_bytes().decode()
    assert text.count("\r\n") == text.count("\n") == TEMPLATE.count("\n") + 1
    assert surefoot_program("config", "get", "models.code.seed", "--config", str(file)).out == "5\n"


def test_ends_of_lines_that_toml_does_not_know_stay(file: Path) -> None:
    text = TEMPLATE.replace("# The rest", "# one\u2028two\x85three\n# The rest")
    new = changed(text, file, Address.parse("models.code.seed"), 3)
    assert new.replace("seed = 3\n", "", 1) == text


def test_a_negative_number_is_a_value(surefoot_program: Program, file: Path) -> None:
    key = "models.code.presence_penalty"
    assert surefoot_program("config", "set", key, "-0.5", "--config", str(file), "--json").code == 0
    assert surefoot_program("config", "get", key, "--config", str(file)).out == "-0.5\n"
    ran = surefoot_program("config", "set", "models.code.num_draft", "-1", "--config", str(file))
    assert (ran.code, ran.err) == (2, "error: num_draft is -1; expected an integer of at least 0\n")


def test_models_and_profiles_are_added(surefoot_program: Program, file: Path) -> None:
    for key, value in (
        ("models.llama-3.1.path", "./llama"),
        ("models.llama-3.1.num_draft", "2"),
        ("profiles.short.max_tokens", "9"),
        ("profiles.short.method", "lookup"),
    ):
        assert surefoot_program("config", "set", key, value, "--config", str(file)).code == 0
    text = file.read_text()
    assert text.startswith(TEMPLATE)
    got = parse(text, file)
    assert [(model.name, model.path) for model in got.models] == [
        ("code", "pebble"),
        ("llama-3.1", str(file.parent / "llama")),
    ]
    assert got.models[1].layer.values == {"num_draft": 2}
    assert got.profile("short").layer.values == {"max_tokens": 9, "method": "lookup"}
    whole = surefoot_program("config", "get", "profiles.short", "--config", str(file), "--json")
    assert json.loads(whole.out) == {"max_tokens": 9, "method": "lookup"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "models.code.num_draft", "many"), "num_draft is 'many'; expected an integer"),
        (("set", "models.code.draft_model", "\udcff"), "expected text"),
        (("set", "models.code.num_draft", "65"), "num_draft is 65; expected at most 64"),
        (("set", "models.code.top_p", "0"), "top_p is 0.0; expected"),
        (("set", "models.code", "3"), "without a key"),
        (("set", "models.code.num_drafts", "3"), "without a key"),
        (("set", "models.other.num_draft", "3"), "set models.other.path first"),
        (("set", "num_draft", "3"), "expected models.NAME.KEY"),
        (("set", "profiles.a b.seed", "3"), "a profile called 'a b'"),
        (("get", "models.other"), "expected one of: code"),
        (("get", "profiles.other"), "expected one of: none"),
        (("get", "models.code.seed"), "seed is not set there; expected one of: name, path, draft_model"),
        (("get", "nonsense"), "expected models.NAME.KEY or profiles.NAME.KEY"),
        (("show", "code", "--profile", "none"), "--profile is 'none'"),
    ],
)
def test_what_cannot_be_done_is_told_and_leaves_the_file_alone(
    surefoot_program: Program, file: Path, arguments: tuple[str, ...], message: str
) -> None:
    ran = surefoot_program("config", *arguments, "--config", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert file.read_text() == TEMPLATE


def test_every_config_command_reads_the_file_that_is_named(surefoot_program: Program, file: Path) -> None:
    assert surefoot_program("config", "path", "--config", str(file)).out == f"{file}\n"
    assert surefoot_program("config", "get", "models.code.path", "--config", str(file)).out == "pebble\n"
    assert surefoot_program("config", "get", "models.code.path").code == 2


def test_without_a_file_set_says_how_to_get_one(surefoot_program: Program, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    ran = surefoot_program("config", "set", "models.x.path", "y", "--config", missing)
    assert ran.code == 2
    assert "surefoot init writes one" in ran.err


comments = st.sampled_from(["", "# a comment\n", "\n", "  # [[models]]\n", "# num_draft = 1\n"])
parts = st.sampled_from(
    ['[[models]]\nname = "{}"\npath = "p"  # there\n', '[[models]]\npath = "q"\nname="{}"\nseed = 3\n']
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.tuples(comments, parts), min_size=1, max_size=4), st.data())
def test_a_changed_text_differs_in_one_line_and_means_the_change(
    pieces: list[tuple[str, str]], data: st.DataObject
) -> None:
    text = "".join(comment + part.format(f"m.{number}") for number, (comment, part) in enumerate(pieces))
    number = data.draw(st.integers(0, len(pieces) - 1))
    key, raw = data.draw(st.sampled_from([("num_draft", 5), ("seed", 9), ("method", "lookup"), ("name", "new")]))
    new = changed(text, FILE, Address(table="models", name=f"m.{number}", key=key), raw)
    before, after = parse(text, FILE).models, parse(new, FILE).models
    for index, (old, one) in enumerate(zip(before, after, strict=True)):
        if index != number:
            assert (old.name, old.path, old.layer.values) == (one.name, one.path, one.layer.values)
        elif key == "name":
            assert one.name == "new"
        else:
            assert one.layer.values == {**old.layer.values, key: raw}
    kept = list(new.splitlines())
    lost = [line for line in text.splitlines() if line not in kept or kept.remove(line)]
    assert len(lost) <= 1
    assert len(kept) == 1


def test_addresses_read_names_with_dots() -> None:
    assert Address.parse("models.a.b.num_draft") == Address(table="models", name="a.b", key="num_draft")
    assert Address.parse("models.a.b") == Address(table="models", name="a.b", key=None)
    assert Address.parse("models.seed") == Address(table="models", name="seed", key=None)
    for wrong in ("", "models", "models.", "other.a.seed"):
        with pytest.raises(OptionError):
            Address.parse(wrong)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(source: str, target: str) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(settings_text.os, "replace", failing)
    with pytest.raises(OptionError, match=r"cannot be written .the disk is full."):
        write(file, "new")
    assert file.read_text() == TEMPLATE
    assert list(file.parent.iterdir()) == [file]


def test_a_write_keeps_the_mode_and_goes_through_a_link(file: Path) -> None:
    file.chmod(0o600)
    link = file.parent / "link.toml"
    link.symlink_to(file)
    write(link, "# new\n")
    assert link.is_symlink()
    assert file.read_text() == "# new\n"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


def test_show_says_what_holds_and_where_it_was_said(surefoot_program: Program, file: Path) -> None:
    surefoot_program("config", "set", "profiles.plain.method", "none", "--config", str(file))
    surefoot_program("config", "set", "profiles.plain.seed", "3", "--config", str(file))
    shown = json.loads(surefoot_program("config", "show", "code", "--config", str(file), "--json").out)
    assert shown["path"] == "pebble"
    assert set(shown["settings"]) == set(KEYS)
    assert shown["settings"]["num_draft"] == {"value": 8, "from": f"{file}:11"}
    assert shown["settings"]["top_p"] == {"value": 1.0, "from": "default"}
    profiled = json.loads(
        surefoot_program("config", "show", "code", "--profile", "plain", "--config", str(file), "--json").out
    )["settings"]
    assert profiled["seed"]["value"] == 3
    assert (profiled["method"]["value"], profiled["draft_model"]["value"]) == ("none", None)
    text = surefoot_program("config", "show", "code", "--config", str(file)).out
    assert re.search(rf"^num_draft +8 +{file}:11$", text, re.MULTILINE)


def test_show_without_a_model_lists_what_there_is(surefoot_program: Program, file: Path) -> None:
    got = json.loads(surefoot_program("config", "show", "--config", str(file), "--json").out)
    assert (got["path"], got["exists"], got["models"]) == (str(file), True, {"code": "pebble"})
    assert "model     code is pebble" in surefoot_program("config", "show", "--config", str(file)).out


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_that_is_shown_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLES[name], raising=False)
    without = Environment.read()
    monkeypatch.setenv(VARIABLES[name], "0" if getattr(without, name) is True else "1")
    assert getattr(Environment.read(), name) != getattr(without, name)
    assert set(VARIABLES) == set(Environment.__dataclass_fields__)


def test_every_entry_key_can_be_set(file: Path) -> None:
    samples = {int: 3, float: 0.5, str: "cpu"}
    fitting = {"method": "lookup", "acceptance": "reject", "draft_sampling": "argmax", "exact": "auto"}
    for key, kind in ENTRY_KEYS.items():
        value = {**fitting, "dtype": "float32"}.get(key, samples[kind])
        new = changed(TEMPLATE, file, Address(table="models", name="code", key=key), value)
        (model,) = parse(new, file).models
        assert {**model.layer.values, "name": model.name, "path": model.path}[key] == value
