"""``surefoot generate``: what it prints, what each flag does, and how it fails."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import VOCABULARY, Program
from tests.factories import make_checkpoint, make_tokenizer

from surefoot.cli.pair import Pair
from surefoot.cli.show import Printer, colored, legend
from surefoot.options import LoadOptions
from surefoot.types import Event

PROMPT = "for index, value in enumerate(values):\n    print("
Report = dict[str, object]


def report(program: Program, model: str, *flags: str) -> Report:
    prompt = () if {"--prompt", "--prompt-file"} & set(flags) else ("--prompt", PROMPT)
    seed = () if "--seed" in flags else ("--seed", "1")
    tokens = () if "--max-tokens" in flags else ("--max-tokens", "16")
    ran = program("generate", model, *prompt, *seed, *tokens, "--json", "--no-measure-plain", *flags)
    assert ran.code == 0, ran.err
    assert ran.out.count("\n") == 1
    parsed: Report = json.loads(ran.out)
    return parsed


def test_the_json_report_holds_the_whole_result(surefoot_program: Program, model: str) -> None:
    got = report(surefoot_program, model, "--draft-model", model, "--ignore-eos")
    assert len(got["tokens"]) == len(got["origins"]) == 16
    assert got["finish_reason"] == "length"
    assert got["usage"]["completion_tokens"] == 16
    assert got["stats"]["accepted"] > 0
    assert got["stats"]["fallbacks"] == 0
    assert got["stats"]["mean_acceptance_length"] > 1
    assert got["plain"] is None
    assert (got["model"], got["drafter"], got["seed"]) == (model, model, 1)


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_text_does_not_depend_on_the_method(surefoot_program: Program, model: str, temperature: str) -> None:
    flags = ("--temperature", temperature, "--ignore-eos", "--exact", "require")
    plain = report(surefoot_program, model, *flags, "--method", "none")
    lookup = report(surefoot_program, model, *flags, "--method", "lookup")
    drafted = report(surefoot_program, model, *flags, "--draft-model", model)
    assert plain["text"] == lookup["text"] == drafted["text"]
    assert plain["stats"]["drafted"] == 0
    assert drafted["stats"]["accepted"] > 0
    assert lookup["stats"]["fallbacks"] == drafted["stats"]["fallbacks"] == 0


HOT = ("--temperature", "2", "--ignore-eos")
OWN = ("--draft-model", "TARGET", "--ignore-eos")
TORCH = ("--dtype", "float64")
"""A type the native kernels leave to torch: their rows are exact with and without ``--exact``."""


@pytest.mark.parametrize(
    ("base", "flag", "changed"),
    [
        ((), ("--temperature", "2"), "tokens"),
        (HOT, ("--top-k", "1"), "tokens"),
        (HOT, ("--top-p", "0.05"), "tokens"),
        (HOT, ("--min-p", "0.9"), "tokens"),
        (HOT, ("--seed", "2"), "tokens"),
        (("--ignore-eos",), ("--repetition-penalty", "50"), "tokens"),
        (("--ignore-eos", "--max-tokens", "60"), ("--presence-penalty", "2"), "tokens"),
        (("--ignore-eos", "--max-tokens", "60"), ("--frequency-penalty", "2"), "tokens"),
        ((), ("--max-tokens", "3"), "tokens"),
        ((), ("--logit-bias", "40=100"), "tokens"),
        ((), ("--allowed-token", "41", "--allowed-token", "42"), "tokens"),
        (("--allowed-token", "41", "--allowed-token", "42"), ("--forbidden-token", "41"), "tokens"),
        (("--ignore-eos", "--method", "lookup"), ("--lookup-min", "1"), "stats"),
        (("--ignore-eos",), ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 1}'), "stats"),
        (("--ignore-eos",), ("--num-draft", "2"), "stats"),
        (OWN, ("--num-draft", "2"), "stats"),
        (OWN, ("--num-draft-tokens", "2"), "stats"),
        (OWN, ("--num-draft", "0"), "origins"),
        ((*HOT, *OWN), ("--acceptance", "reject"), "tokens"),
        ((*HOT, *OWN), ("--draft-sampling", "argmax"), "origins"),
        (("--ignore-eos",), ("--method", "none"), "drafter"),
        (("--ignore-eos",), ("--draft-model", "TARGET"), "origins"),
        ((), ("--chat",), "usage"),
        (("--chat",), ("--system", "Be brief."), "usage"),
        (TORCH, ("--exact", "require"), "stats"),
        ((), ("--measure-plain",), "plain"),
    ],
)
def test_every_flag_changes_what_comes_out(
    surefoot_program: Program, model: str, base: tuple[str, ...], flag: tuple[str, ...], changed: str
) -> None:
    def observed(*flags: str) -> object:
        got = report(surefoot_program, model, *(model if part == "TARGET" else part for part in flags))[changed]
        return {key: value for key, value in got.items() if key != "seconds"} if isinstance(got, dict) else got

    assert observed(*base) == observed(*base), "the request itself must repeat"
    assert observed(*base, *flag) != observed(*base)


def test_stop_ids_and_min_tokens_decide_where_the_text_ends(surefoot_program: Program, model: str) -> None:
    free = report(surefoot_program, model, "--ignore-eos")["tokens"]
    stop = str(free[4])
    first = free.index(free[4])
    stopped = report(surefoot_program, model, "--ignore-eos", "--stop-token-id", stop)
    assert stopped["tokens"] == free[: first + 1]
    assert stopped["finish_reason"] == "stop"
    kept_on = report(surefoot_program, model, "--ignore-eos", "--stop-token-id", stop, "--min-tokens", "10")
    assert len(kept_on["tokens"]) >= 10
    eos = next(number for number in range(50) if _ends(surefoot_program, model, number))
    going_on = report(
        surefoot_program, model, "--temperature", "2", "--max-tokens", "200", "--seed", str(eos), "--ignore-eos"
    )
    assert len(going_on["tokens"]) == 200


def _ends(program: Program, model: str, seed: int) -> bool:
    got = report(program, model, "--temperature", "2", "--max-tokens", "200", "--seed", str(seed))
    return got["finish_reason"] == "stop"


def test_a_stop_string_ends_the_text_before_it(surefoot_program: Program, model: str) -> None:
    text = report(surefoot_program, model, "--ignore-eos")["text"]
    stop = next(text[place : place + 2] for place in range(4, len(text)) if "\ufffd" not in text[place : place + 2])
    stopped = report(surefoot_program, model, "--ignore-eos", "--stop", "not to be found", "--stop", stop)
    assert stopped["text"] == text[: text.index(stop)]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)


def test_samples_are_those_of_their_index_alone(surefoot_program: Program, model: str) -> None:
    several = report(surefoot_program, model, *HOT, "--n", "3", "--sample-index", "1", "--exact", "require")["samples"]
    assert [sample["sample_index"] for sample in several] == [1, 2, 3]
    assert len({tuple(sample["tokens"]) for sample in several}) == 3
    for sample in several:
        index = str(sample["sample_index"])
        alone = report(surefoot_program, model, *HOT, "--sample-index", index, "--exact", "require")
        assert alone["tokens"] == sample["tokens"]
    text = surefoot_program("generate", model, "--prompt", PROMPT, *HOT, "--n", "2", "--max-tokens", "4", "--seed", "1")
    assert [line for line in text.out.splitlines() if line.startswith("--- sample")] == ["--- sample 0", "--- sample 1"]
    assert text.err.count("4 tokens") == 2


def test_log_probabilities_are_reported(surefoot_program: Program, model: str) -> None:
    without = report(surefoot_program, model)
    assert without["logprobs"] is None
    assert without["prompt_logprobs"] is None
    got = report(surefoot_program, model, "--draft-model", model, "--logprobs", "3", "--prompt-logprobs", "0")
    assert [one["token"] for one in got["logprobs"]] == got["tokens"] == without["tokens"]
    for one in got["logprobs"]:
        assert len(one["top"]) == 3
        assert one["rank"] == 1
        assert one["top"][0] == [one["token"], one["logprob"]]
    assert got["prompt_logprobs"][0] is None
    assert len(got["prompt_logprobs"]) == got["usage"]["prompt_tokens"]
    assert [one["top"] for one in got["prompt_logprobs"][1:]] == [[]] * (got["usage"]["prompt_tokens"] - 1)
    flags = ("--prompt", PROMPT, "--max-tokens", "3", "--no-measure-plain", "--ignore-eos")
    told = surefoot_program("generate", model, *flags, "--logprobs", "1", "--prompt-logprobs", "1")
    plain = surefoot_program("generate", model, *flags)
    assert told.out == plain.out
    lines = told.err.splitlines()
    assert lines[0].startswith("prompt: ")
    answer = next(number for number, line in enumerate(lines) if line.startswith("answer: "))
    assert len(lines) == answer + 1 + 3 + 1, "a line per token, then the closing line"


def test_a_trace_tells_every_round(surefoot_program: Program, model: str) -> None:
    flags = ("--draft-model", model, "--ignore-eos", "--trace")
    got = report(surefoot_program, model, *flags)
    rounds = got["trace"]
    assert len(rounds) == got["stats"]["rounds"]
    assert [token for one in rounds for token in one["own"]] == got["tokens"][1:]
    assert sum(one["accepted"] for one in rounds) == got["stats"]["accepted"] > 0
    assert sum(len(one["drafted"]) for one in rounds) == got["stats"]["drafted"]
    assert [one["root"] for one in rounds] == [got["tokens"][0], *(one["own"][-1] for one in rounds[:-1])]
    assert report(surefoot_program, model, *flags[:-1])["trace"] is None
    told = surefoot_program("generate", model, "--prompt", PROMPT, *flags, "--max-tokens", "16", "--no-measure-plain")
    assert len([line for line in told.err.splitlines() if line.startswith("round ")]) == len(rounds)
    assert told.out == got["text"] + "\n"


def test_the_models_own_sampling_is_taken_where_nobody_said_otherwise(
    surefoot_program: Program, tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path / "warm", vocab_size=VOCABULARY)
    make_tokenizer(path, VOCABULARY)
    (path / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 3.0, "top_k": 40}))
    own = ("--temperature", "3", "--top-k", "40")
    greedy = report(surefoot_program, str(path), "--ignore-eos")["tokens"]
    warm = report(surefoot_program, str(path), "--ignore-eos", "--model-sampling")["tokens"]
    assert warm == report(surefoot_program, str(path), "--ignore-eos", *own)["tokens"] != greedy
    said = report(surefoot_program, str(path), "--ignore-eos", "--model-sampling", "--temperature", "0")["tokens"]
    assert said == greedy
    file = tmp_path / "config.toml"
    file.write_text(f'[[models]]\nname = "m"\npath = "{path}"\ntop_k = 1\n')
    filed = report(surefoot_program, "m", "--ignore-eos", "--model-sampling", "--config", str(file))["tokens"]
    assert filed == greedy, "one token to choose from, said by the file"


def test_a_prediction_is_drafted_from(surefoot_program: Program, model: str, tmp_path: Path) -> None:
    flags = ("--prompt", "def greet(name):", "--method", "lookup", "--ignore-eos", "--max-tokens", "24")
    alone = report(surefoot_program, model, *flags)
    predicted = tmp_path / "predicted.txt"
    predicted.write_text("def greet(name):" + alone["text"].partition("\ufffd")[0], encoding="utf-8")
    helped = report(surefoot_program, model, *flags, "--prediction", str(predicted))
    assert helped["tokens"] == alone["tokens"]
    assert helped["stats"]["accepted"] > alone["stats"]["accepted"]


def test_the_prompt_comes_from_a_flag_a_file_or_stdin(
    surefoot_program: Program, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_flag = report(surefoot_program, model)
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT, encoding="utf-8")
    assert report(surefoot_program, model, "--prompt-file", str(path))["tokens"] == from_flag["tokens"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    ran = surefoot_program("generate", model, "--max-tokens", "16", "--seed", "1", "--json", "--no-measure-plain")
    assert json.loads(ran.out)["tokens"] == from_flag["tokens"]


def test_the_text_goes_to_stdout_and_one_closing_line_to_stderr(surefoot_program: Program, model: str) -> None:
    flags = ("--prompt", PROMPT, "--draft-model", model, "--max-tokens", "12", "--ignore-eos")
    ran = surefoot_program("generate", model, *flags, "--measure-plain")
    assert ran.code == 0
    wanted = report(surefoot_program, model, "--draft-model", model, "--max-tokens", "12", "--ignore-eos")["text"]
    assert ran.out == f"{wanted}\n"
    (line,) = ran.err.splitlines()
    assert line.startswith("12 tokens · ")
    assert "tok/s" in line
    assert "times plain (measured)" in line
    assert "of 4 drafts accepted per round" in line
    assert "\x1b" not in ran.out + ran.err


def test_what_was_not_measured_is_not_printed(surefoot_program: Program, model: str) -> None:
    ran = surefoot_program("generate", model, "--prompt", PROMPT, "--max-tokens", "6", "--no-measure-plain")
    assert "times plain" not in ran.err
    plain = surefoot_program("generate", model, "--prompt", PROMPT, "--max-tokens", "6", "--method", "none")
    assert "times plain" not in plain.err
    assert "nothing drafted" in plain.err


def test_a_measured_run_compares_the_tokens(surefoot_program: Program, model: str) -> None:
    got = report(surefoot_program, model, *OWN[:1], model, "--ignore-eos", "--measure-plain", "--exact", "require")
    assert got["plain"]["same_tokens"] is True
    assert got["plain"]["times_plain"] > 0
    rejected = report(
        surefoot_program,
        model,
        "--draft-model",
        model,
        *HOT,
        "--acceptance",
        "reject",
        "--measure-plain",
        "--seed",
        "3",
    )
    assert rejected["plain"]["same_tokens"] is False


def test_the_seed_that_was_drawn_repeats_the_text(surefoot_program: Program, model: str) -> None:
    flags = ("generate", model, "--prompt", PROMPT, "--temperature", "2", "--max-tokens", "16", "--json")
    first = json.loads(surefoot_program(*flags, "--no-measure-plain").out)
    again = json.loads(surefoot_program(*flags, "--no-measure-plain", "--seed", str(first["seed"])).out)
    other = json.loads(surefoot_program(*flags, "--no-measure-plain").out)
    assert again["tokens"] == first["tokens"]
    assert other["tokens"] != first["tokens"]


def test_load_options_and_threads_reach_the_engine(model: str) -> None:
    threads = torch.get_num_threads()
    try:
        engine = Pair(model=model, threads=1).load(LoadOptions(dtype="float64", prefill_chunk=2))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert engine.target.embed(torch.tensor([1])).dtype == torch.float64
    chunks = list(
        engine.target.prefill((1, 2, 3), engine.target.new_cache(3), engine.drafter.start(engine.target).capture)
    )
    assert [tokens for tokens, _ in chunks] == [(1, 2), (3,)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--top-p", "2"), "top_p is 2.0; expected"),
        (("--temperature", "-1"), "temperature is -1.0; expected"),
        (("--temperature", "warm"), "--temperature"),
        (("--seed", "-1"), "seed is -1; expected"),
        (("--num-draft", "65"), "num_draft is 65; expected"),
        (("--acceptance", "typical"), "acceptance is 'typical'; expected"),
        (("--draft-sampling", "greedy"), "draft_sampling is 'greedy'; expected"),
        (("--exact", "maybe"), "exact is 'maybe'; expected"),
        (("--dtype", "int8"), "dtype is 'int8'; expected"),
        (("--device", "abacus"), "abacus"),
        (("--prefill-chunk", "0"), "prefill_chunk is 0; expected"),
        (("--threads", "0"), "--threads is 0; expected"),
        (("--method", "magic"), "--method is 'magic'; expected"),
        (("--method", "draft_model"), "--method is 'draft_model'; expected draft, as it is called here"),
        (("--method", "draft"), "add --draft-model"),
        (("--method", "lookup", "--draft-model", "x"), "expected one of the two"),
        (("--draft-model", "no-such-model"), "no-such-model"),
        (("--stop-token-id", "100000"), "100000"),
        (("--prompt-file", "x"), "expected one of the two"),
        (("--system", "Be brief."), "--chat"),
        (("--prediction", "no-such-file"), "expected a readable UTF-8 file"),
        (("--prediction", "x", "--num-draft", "0"), "expected at least 1"),
        (("--n", "0"), "--n is 0; expected at least 1"),
        (("--n", "2", "--trace"), "--trace came with --n 2; expected one answer"),
        (("--n", "2", "--measure-plain"), "--measure-plain came with --n 2; expected one answer"),
        (("--logprobs", "-1"), "logprobs is -1; expected"),
        (("--prompt-logprobs", "-1"), "prompt_logprobs is -1; expected"),
        (("--sample-index", "-1"), "sample_index is -1; expected"),
        (("--stop", ""), "stop holds ''; expected"),
        (("--logit-bias", "40"), "--logit-bias is '40'; expected ID=NUMBER"),
        (("--logit-bias", "40=900"), "logit_bias of id 40 is 900.0; expected"),
        (("--allowed-token", "100000"), "100000"),
        (("--forbidden-token", "-4"), "an id in forbidden_tokens is -4; expected"),
        (("--lookup-min", "0"), "--lookup-min is 0; expected at least 1"),
        (("--lookup-min", "3", "--method", "none"), "expected --method lookup"),
        (("--config", "no-such-file.toml"), "--config names no-such-file.toml"),
        (("--profile", "fast"), "--profile is 'fast'"),
        (("--speculative-config", "{"), "--speculative-config is not JSON"),
    ],
)
def test_wrong_values_exit_with_2_and_say_what_was_expected(
    surefoot_program: Program, model: str, flags: tuple[str, ...], message: str
) -> None:
    ran = surefoot_program("generate", model, "--prompt", PROMPT, *flags)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_an_empty_prompt_and_a_missing_model_exit_with_2(surefoot_program: Program, model: str) -> None:
    for arguments in (
        (model, "--prompt", ""),
        ("no-such-model", "--prompt", "x"),
        ("/no/such/folder", "--prompt", "x"),
    ):
        ran = surefoot_program("generate", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert "expected" in ran.err


def test_a_terminal_without_a_prompt_is_told_so(
    surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    ran = surefoot_program("generate", model)
    assert ran.code == 2
    assert "--prompt TEXT" in ran.err


def test_what_loading_noticed_is_told(surefoot_program: Program, model: str, tmp_path: Path) -> None:
    draft = make_checkpoint(tmp_path / "draft", vocab_size=VOCABULARY, max_position_embeddings=64)
    make_tokenizer(draft, VOCABULARY)
    ran = surefoot_program("generate", model, "--prompt", PROMPT, "--draft-model", str(draft), "--max-tokens", "4")
    assert ran.code == 0
    assert "note: draft model: " in ran.err
    assert any("64" in note for note in report(surefoot_program, model, "--draft-model", str(draft))["notes"])
    assert report(surefoot_program, model, "--draft-model", model)["notes"] == []


def test_a_pair_with_different_tokenizers_is_refused(
    surefoot_program: Program, model: str, other_tokenizer: str
) -> None:
    ran = surefoot_program("generate", model, "--prompt", PROMPT, "--draft-model", other_tokenizer)
    assert ran.code == 2
    assert "tokenizer" in ran.err


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_sees_colours_unless_no_color_is_set(
    no_color: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", "1" if no_color else "")
    screen = Terminal()
    printer = Printer(screen)
    text = "a\tb\n"
    for origin in ("draft", "correction", "bonus", "plain"):
        printer.show(Event(token=1, text=text, origin=origin, round=1))
    printer.end()
    written = screen.getvalue()
    shown_legend = capsys.readouterr().err
    if no_color:
        assert written == text * 4 + "\n"
        assert shown_legend == ""
    else:
        assert written == "".join(colored(text, origin) for origin in ("draft", "correction", "bonus", "plain")) + "\n"
        assert len({colored(text, origin) for origin in ("draft", "correction", "bonus", "plain")}) == 4
        assert shown_legend == legend() + "\n"
