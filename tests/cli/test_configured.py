"""Flags over profile over a model's entry over defaults; and vLLM's configuration, each key acted upon or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Program

from surefoot.cli.configured import COMMAND_LINE, Parsed, configured
from surefoot.cli.speculative_config import KNOWN, METHODS, TRAINED_METHODS, UNHONOURED, expand
from surefoot.errors import OptionError

KEYS = ("draft_model", "method", "lookup_min", "num_draft", "acceptance", "draft_sampling", "seed")
TEXT = """\
[[models]]
name = "mine"
path = "org/target"
draft_model = "small"
num_draft = 8
seed = 1

[[models]]
name = "small"
path = "org/draft"

[profiles.short]
num_draft = 2

[profiles.plain]
method = "none"
"""
Configure = Callable[..., dict[str, object]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def configure(file: Path) -> Configure:
    """The values of a command line that gave ``given`` and nothing else."""

    def run(model: str = "mine", **given: object) -> dict[str, object]:
        values = {**dict.fromkeys(KEYS), "num_draft": 4, "acceptance": "match"}
        values |= {"model": model, "config": file, "profile": None, "speculative_config": None, **given}
        return configured(Parsed(values=values, given=frozenset({"model", *given})), KEYS)

    return run


def test_a_name_in_the_file_stands_for_its_entry(configure: Configure, file: Path) -> None:
    got = configure()
    assert (got["model"], got["label"]) == ("org/target", "mine")
    assert (got["draft_model"], got["num_draft"], got["seed"]) == ("org/draft", 8, 1)
    assert got["origins"] == {"draft_model": f"{file}:4", "num_draft": f"{file}:5", "seed": f"{file}:6"}
    other = configure("elsewhere")
    assert (other["model"], other["label"], other["num_draft"], other["origins"]) == ("elsewhere", "elsewhere", 4, {})


def test_each_layer_wins_over_the_ones_below_it(configure: Configure, file: Path) -> None:
    assert configure(profile="short")["num_draft"] == 2
    assert configure("elsewhere", profile="short")["num_draft"] == 2, "a profile needs no entry"
    given = configure(profile="short", num_draft=4)
    assert given["num_draft"] == 4, "given, although it is the default"
    assert given["origins"]["num_draft"] == COMMAND_LINE
    assert configure(profile="short", seed=0)["seed"] == 0
    assert configure(profile="short")["origins"]["num_draft"] == f"{file}:13"


def test_a_method_and_a_draft_model_replace_each_other(configure: Configure) -> None:
    def drafter(**given: object) -> tuple[object, object]:
        got = configure(**given)
        return got["method"], got["draft_model"]

    assert drafter(profile="plain") == ("none", None)
    assert drafter(profile="plain", draft_model="small") == (None, "org/draft")
    assert drafter(profile="plain", method="draft") == ("draft", "org/draft")
    assert drafter(method="lookup") == ("lookup", None)
    with pytest.raises(OptionError, match="expected one of the two"):
        drafter(method="lookup", draft_model="small")


def test_a_file_without_effect_on_a_command_is_left_alone(file: Path) -> None:
    values = {"model": "mine", "config": file, "profile": None, "num_draft": 4}
    got = configured(Parsed(values=values, given=frozenset({"model"})), ("num_draft",))
    assert set(got) == {*values, "label", "origins"}
    assert set(got["origins"]) == {"num_draft"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 5},
            {"method": "lookup", "num_draft": 3, "lookup_min": 5},
        ),
        ({"method": "suffix"}, {"method": "lookup"}),
        ({"method": "draft_model", "model": "d"}, {"method": "draft", "draft_model": "d"}),
        ({"model": "d", "draft_sample_method": "greedy"}, {"draft_model": "d", "draft_sampling": "argmax"}),
        ({"model": "d", "draft_sample_method": "probabilistic"}, {"draft_model": "d", "draft_sampling": "shared"}),
        ({"model": "d", "rejection_sample_method": "standard"}, {"draft_model": "d", "acceptance": "reject"}),
    ],
)
def test_vllms_keys_say_the_same_here(given: dict[str, object], expected: dict[str, object]) -> None:
    assert expand(json.dumps(given)) == expected
    assert set(given) <= set(KNOWN)


@pytest.mark.parametrize("key", UNHONOURED)
def test_a_key_that_cannot_be_honoured_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(OptionError) as caught:
        expand(json.dumps({"method": "ngram", key: 1}))
    assert f"has {key}, which cannot be honoured: {UNHONOURED[key]}" in str(caught.value)
    assert key not in KNOWN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "expected an object"),
        ("{}", "names no way to draft"),
        ('{"num_speculative_tokens": 3}', "names no way to draft"),
        ('{"method": "ngram", "speed": 3}', "unknown key 'speed'; expected model, method"),
        ('{"method": "typical"}', f"method 'typical'; expected one of {', '.join(METHODS)}"),
        ('{"method": "eagle3", "model": "x"}', "'eagle3', which is not served here"),
        ('{"method": "deepseek_mtp"}', "'deepseek_mtp', which is not served here"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens 0; expected an integer"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "expected an integer of at least 1"),
        ('{"method": "ngram", "num_speculative_tokens": "3"}', "expected an integer of at least 1"),
        ('{"method": "suffix", "prompt_lookup_min": 3}', 'expected it with "method": "ngram"'),
        ('{"model": ""}', "model ''; expected a name"),
        ('{"model": "d", "rejection_sample_method": "block"}', "expected standard"),
        ('{"model": "d", "draft_sample_method": "best"}', "expected one of greedy, probabilistic"),
    ],
)
def test_what_a_configuration_cannot_mean_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        expand(text)
    assert message in str(caught.value)


def test_every_method_of_vllm_is_mapped_or_refused() -> None:
    assert not set(METHODS) & set(TRAINED_METHODS)
    for method in TRAINED_METHODS:
        with pytest.raises(OptionError, match="not served here"):
            expand(json.dumps({"method": method}))


def test_a_configuration_is_a_flag_and_excludes_those_that_say_the_same(configure: Configure) -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}'
    got = configure(speculative_config=text, profile="short")
    assert (got["method"], got["draft_model"], got["num_draft"], got["lookup_min"]) == ("lookup", None, 3, 1)
    assert got["origins"]["num_draft"] == "--speculative-config"
    with pytest.raises(OptionError, match="--speculative-config and --num-draft both say it"):
        configure(speculative_config=text, num_draft=3)
    with pytest.raises(OptionError, match="--method lookup came with --draft-model"):
        configure(speculative_config='{"method": "ngram"}', draft_model="small")
    named = configure(speculative_config='{"method": "draft_model"}')
    assert named["draft_model"] == "org/draft", "the draft model of the entry"
    values = {"model": "m", "config": None, "profile": None, "speculative_config": '{"method": "ngram"}'}
    with pytest.raises(OptionError, match="this command has no such flag"):
        configured(Parsed(values=values, given=frozenset()), ())


def test_a_draft_model_that_is_missing_is_told_with_its_line(
    surefoot_program: Program, model: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[[models]]\nname = "mine"\npath = "{model}"\ndraft_model = "./nowhere"\n')
    ran = surefoot_program("generate", "mine", "--config", str(file), "--prompt", "x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {file}:4: draft_model: found '{tmp_path / 'nowhere'}'")
    file.write_text(f'[[models]]\nname = "mine"\npath = "{model}"\nmethod = "draft"\n')
    ran = surefoot_program("generate", "mine", "--config", str(file), "--prompt", "x")
    assert ran.err.startswith(f"error: {file}:4: method is draft, and there is no draft model")


def test_a_file_that_is_wrong_stops_every_command_that_reads_it(
    surefoot_program: Program, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[[models]]\nname = 3\n")
    monkeypatch.setenv("SUREFOOT_CONFIG", str(file))
    for arguments in (("generate", model, "--prompt", "x"), ("prove", model), ("config", "show")):
        ran = surefoot_program(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"error: {file}:2: name is 3; expected a string")
    assert surefoot_program("config", "path").code == 0
    assert surefoot_program("init", "--force").code == 0
    assert surefoot_program("config", "get", "models.code.path").out == "pebble\n"
