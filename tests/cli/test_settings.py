"""The settings file: what it may say, how errors point at it, and which layer wins."""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import OptionError
from surefoot.options import Environment
from surefoot.settings import (
    ENTRY_KEYS,
    KEYS,
    RECORD_KEYS,
    Layer,
    Settings,
    default_file,
    lines_of,
    overlay,
    parse,
    read_settings,
)

FILE = Path("/somewhere/config.toml")
MODEL = '[[models]]\npath = "pebble"\n'


def test_a_file_names_models_and_profiles() -> None:
    settings = parse(
        '[[models]]\nname = "code"\npath = "./mine"\ndraft_model = "../draft"\nnum_draft = 8\ntop_p = 1\n\n'
        '[[models]]\npath = "org/other"\n\n[profiles.short]\nmax_tokens = 5\n',
        FILE,
    )
    code, other = settings.models
    assert (code.name, code.path, other.name) == ("code", "/somewhere/mine", "org/other")
    assert code.layer.values == {"draft_model": "/draft", "num_draft": 8, "top_p": 1}
    assert code.layer.origins["num_draft"] == f"{FILE}:5"
    assert settings.model("code") is code
    assert settings.model("pebble") is None
    assert settings.resolve("code") == "/somewhere/mine"
    assert settings.resolve("elsewhere") == "elsewhere"
    assert settings.profile("short").layer == Layer(values={"max_tokens": 5}, origins={"max_tokens": f"{FILE}:12"})


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a = ", 1, "not TOML"),
        ('[[models]]\npath = "x"\npath = "y"', None, 'Key "path" already exists'),
        ("[modles]\n", 1, "unknown key 'modles'; expected models, perhaps"),
        (MODEL + "num_drafts = 3", 3, "unknown key 'num_drafts'; expected num_draft, perhaps"),
        (MODEL + "zzz = 3", 3, "expected one of name, path, draft_model"),
        ('[profiles.p]\npath = "x"', 2, "unknown key 'path'"),
        (MODEL + MODEL, 3, f"a second model called 'pebble' after {FILE}:1"),
        ('[[models]]\nname = "q"', 1, "a model without a path"),
        ('[[models]]\npath = ""', 2, "path is empty"),
        (MODEL + 'draft_model = ""', 3, "draft_model is empty"),
        (MODEL + "draft_model = 3", 3, "draft_model is 3; expected a string"),
        (MODEL + "num_draft = true", 3, "num_draft is True; expected an integer"),
        (MODEL + "num_draft = 4.0", 3, "num_draft is 4.0; expected an integer"),
        (MODEL + "num_draft = 65", 3, "num_draft is 65; expected at most 64"),
        (MODEL + "top_p = 2.0", 3, "top_p is 2.0; expected a number in (0, 1]"),
        (MODEL + "temperature = nan", 3, "temperature is nan; expected"),
        (MODEL + 'method = "magic"', 3, "method is 'magic'; expected one of none, lookup, draft"),
        (MODEL + 'method = "ngram"', 3, "method is 'ngram'; expected lookup, as it is called here"),
        (MODEL + "lookup_min = 0", 3, "lookup_min is 0; expected at least 1"),
        (MODEL + "threads = 0", 3, "threads is 0; expected at least 1"),
        (MODEL + 'dtype = "int8"', 3, "dtype is 'int8'; expected one of"),
        (MODEL + "seed = 1979-05-27", 3, "expected an integer"),
        ("[models]\n", 1, "expected [[models]] before each model"),
        ("profiles = 3\n", 1, "expected [profiles.NAME]"),
        ('[profiles."a b"]\n', 1, "a profile called 'a b'"),
    ],
)
def test_what_a_file_cannot_mean_is_refused_with_its_line(text: str, line: int | None, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(text, FILE)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{FILE}:{line}: " if line else f"{FILE}: ")


def test_every_key_of_a_record_is_a_field_of_it_with_the_fields_own_limits() -> None:
    for record, names in RECORD_KEYS.items():
        assert set(names) <= {item.name for item in fields(record)}
    wrong = {int: "-1", float: "-3.0", str: '"no such thing"'}
    limited = set(KEYS) - {"draft_model", "device"}
    for key in limited:
        with pytest.raises(OptionError, match=f"{FILE}:3: {key} is .*; expected"):
            parse(f"{MODEL}{key} = {wrong[KEYS[key]]}", FILE)
    assert set(ENTRY_KEYS) - set(KEYS) == {"name", "path"}


def test_lines_are_found_in_any_layout() -> None:
    text = (
        "# [[models]]\n\n  [[models]]  # first\n path='a'\n[[ models ]]\nnum_draft=3\npath = 'b'\n[profiles.x]\nseed=1"
    )
    lines = lines_of(text)
    assert lines[("models", "0", "path")] == 4
    assert lines[("models", "1", "num_draft")] == 6
    assert lines[("profiles", "x", "seed")] == 9
    assert [model.place for model in parse(text, FILE).models] == [f"{FILE}:3", f"{FILE}:5"]


def test_the_file_is_looked_for_where_users_keep_settings(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = Environment(config_home=str(home))
    assert default_file(environment) == home / "surefoot" / "config.toml"
    assert read_settings(None, environment) == Settings()
    default_file(environment).parent.mkdir(parents=True)
    default_file(environment).write_text(MODEL)
    assert read_settings(None, environment).file == default_file(environment)
    named = tmp_path / "named.toml"
    named.write_text("")
    elsewhere = Environment(config_home=str(home), config_file=str(named))
    assert read_settings(None, elsewhere).models == ()
    assert len(read_settings(default_file(environment), elsewhere).models) == 1, "--config wins over the variable"
    assert default_file(Environment()) == Path.home() / ".config" / "surefoot" / "config.toml"


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(OptionError, match=r"--config names .*missing.toml, which does not exist"):
        read_settings(missing, Environment())
    with pytest.raises(OptionError, match=r"SUREFOOT_CONFIG names .*missing.toml, which does not exist"):
        read_settings(None, Environment(config_file=str(missing)))
    with pytest.raises(OptionError, match="expected a readable UTF-8 file"):
        read_settings(tmp_path, Environment())


def test_a_profile_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(OptionError, match=r"--profile is 'b'; expected one of those in .*: a$"):
        parse("[profiles.a]\n", FILE).profile("b")
    with pytest.raises(OptionError, match="surefoot init writes one"):
        Settings().profile("b")


def layers_of(*values: dict[str, str | int]) -> list[Layer]:
    return [
        Layer(values=one, origins=dict.fromkeys(one, f"layer {number}")) for number, one in enumerate(values, start=1)
    ]


values = st.dictionaries(st.sampled_from(["num_draft", "seed", "top_k"]), st.integers(0, 9))


@given(st.lists(values, max_size=4))
def test_the_last_layer_that_says_a_thing_wins(said: list[dict[str, str | int]]) -> None:
    merged = overlay(layers_of(*said))
    for key in set(itertools.chain(*said)):
        last = max(number for number, one in enumerate(said) if key in one)
        assert merged.values[key] == said[last][key]
        assert merged.origins[key] == f"layer {last + 1}"
    assert set(merged.values) == set(merged.origins) == set(itertools.chain(*said))


D, OTHER = {"draft_model": "d"}, {"draft_model": "other"}
NONE, LOOKUP, DRAFT = {"method": "none"}, {"method": "lookup"}, {"method": "draft"}


@pytest.mark.parametrize(
    ("said", "method", "draft_model"),
    [
        ([D, LOOKUP], "lookup", None),
        ([LOOKUP, D], None, "d"),
        ([D, NONE, {}], "none", None),
        ([D, NONE, DRAFT], "draft", "d"),
        ([D, LOOKUP, OTHER], None, "other"),
        ([D, OTHER], None, "other"),
        ([{**D, **LOOKUP}], "lookup", None),
        ([{**D, **LOOKUP}, DRAFT], "draft", "d"),
        ([{**D, **DRAFT}, {}], "draft", "d"),
        ([NONE, LOOKUP], "lookup", None),
    ],
)
def test_method_and_draft_model_say_one_thing_together(
    said: list[dict[str, str | int]], method: str | None, draft_model: str | None
) -> None:
    merged = overlay(layers_of(*said))
    assert merged.values.get("method") == method
    assert merged.values.get("draft_model") == draft_model
    assert set(merged.origins) == set(merged.values)
