"""Every flag changes something that can be observed: no flag is parsed and then forgotten.

Flags that several commands share are observed here, at the seam all of them pass: what the engine was made of, and what
it was asked. What each does to an answer is shown once, by ``surefoot generate``. A command's own flags have tests of
their own, which ``OWN`` names.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Program
from tests.test_architecture import FLAGS

from surefoot.engine import Engine
from surefoot.opening import Asked

ROOT = Path(__file__).parents[2]
ENOUGH = 3
"""Requests after which a command has shown what it asks: one to warm up, a plain one, a speculative one."""


class ReachedError(BaseException):
    """Ends a command that has asked enough; nothing catches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request, and the engine it went to."""

    engine: Engine
    asked: Asked
    threads: tuple[int, ...]


Read = Callable[[Seen], object]
Ask = Callable[..., list[Seen]]


def sampled(name: str) -> Read:
    return lambda seen: getattr(seen.asked.params, name)


def speculated(name: str) -> Read:
    return lambda seen: getattr(seen.asked.speculative, name)


def drafter(seen: Seen) -> object:
    return seen.engine.drafter.method, getattr(seen.engine.drafter, "min_match", None)


def first_chunk(seen: Seen) -> int:
    target = seen.engine.target
    capture = seen.engine.drafter.start(target).capture
    return next(len(tokens) for tokens, _ in target.prefill((1, 2, 3, 4), target.new_cache(4), capture))


SHARED: dict[str, tuple[str | None, Read]] = {
    "--temperature": ("1.5", sampled("temperature")),
    "--top-k": ("7", sampled("top_k")),
    "--top-p": ("0.9", sampled("top_p")),
    "--min-p": ("0.01", sampled("min_p")),
    "--repetition-penalty": ("1.1", sampled("repetition_penalty")),
    "--presence-penalty": ("0.5", sampled("presence_penalty")),
    "--frequency-penalty": ("0.25", sampled("frequency_penalty")),
    "--logit-bias": ("3=-5", sampled("logit_bias")),
    "--forbidden-token": ("4", sampled("forbidden_tokens")),
    "--allowed-token": ("40", sampled("allowed_tokens")),
    "--min-tokens": ("2", sampled("min_tokens")),
    "--max-tokens": ("5", sampled("max_tokens")),
    "--stop": ("zz", sampled("stop")),
    "--stop-token-id": ("9", sampled("stop_token_ids")),
    "--ignore-eos": (None, sampled("ignore_eos")),
    "--seed": ("77", sampled("seed")),
    "--num-draft": ("2", speculated("num_draft")),
    "--tree-width": ("3", speculated("tree_width")),
    "--acceptance": ("reject", speculated("acceptance")),
    "--draft-sampling": ("argmax", speculated("draft_sampling")),
    "--dtype": ("float64", lambda seen: seen.engine.target.embed(torch.tensor([1])).dtype),
    "--prefill-chunk": ("2", first_chunk),
    "--threads": ("2", lambda seen: seen.threads),
    "--lookup-min": ("1", drafter),
}
"""Flags that several commands have: a value, and what it changes."""

MINE = ("--config", "FILE")
DRAFTING = (*MINE, "--profile", "drafting")
TORCH = ("--dtype", "float64")
"""A type the native kernels leave to torch: their rows are exact with and without ``--exact``."""
ALONE: dict[str, tuple[tuple[str, ...], tuple[str, ...], Read]] = {
    "--num-draft-tokens": ((), ("--num-draft-tokens", "3"), speculated("num_draft")),
    "--method": (DRAFTING, (*DRAFTING, "--method", "lookup"), drafter),
    "--draft-model": ((), ("--draft-model", "MODEL"), drafter),
    "--drafter": ((), ("--drafter", "MODEL"), drafter),
    "--speculative-config": ((), ("--speculative-config", '{"model": "MODEL", "num_speculative_tokens": 3}'), drafter),
    "--config": ((), MINE, first_chunk),
    "--profile": (MINE, (*MINE, "--profile", "wordy"), first_chunk),
    "--exact": (TORCH, (*TORCH, "--exact", "OTHER"), lambda seen: seen.engine.target.strict),
}
"""Flags that need others, or say what others say: arguments without the flag, arguments with it, what it changes."""

BASES: dict[str, tuple[str, ...]] = {
    "generate": ("generate", "MODEL", "--prompt", "for index", "--max-tokens", "4", "--no-measure-plain"),
    "explain": ("explain", "MODEL", "--prompt", "for index", "--max-tokens", "4"),
    "chat": ("chat", "MODEL", "--max-tokens", "4", "--raw"),
    "prove": ("prove", "MODEL", "--limit", "1", "--max-tokens", "4", "--temperature", "0"),
    "bench": ("bench", "MODEL", "--limit", "1", "--repeats", "1", "--kind", "completion", "--max-tokens", "4"),
    "doctor": ("doctor", "MODEL"),
}
"""The shortest use of each command that asks an engine something."""


OWN: dict[str, dict[str, str]] = {
    "": {"--version": "test_program.py::test_the_version_is_the_packages"},
    "generate": {
        "--prompt": "test_generate.py::test_the_prompt_comes_from_a_flag_a_file_or_stdin",
        "--prompt-file": "test_generate.py::test_the_prompt_comes_from_a_flag_a_file_or_stdin",
        "--chat": "test_generate.py::test_every_flag_changes_what_comes_out",
        "--system": "test_generate.py::test_every_flag_changes_what_comes_out",
        "--prediction": "test_generate.py::test_a_prediction_is_drafted_from",
        "--n": "test_generate.py::test_samples_are_those_of_their_index_alone",
        "--sample-index": "test_generate.py::test_samples_are_those_of_their_index_alone",
        "--logprobs": "test_generate.py::test_log_probabilities_are_reported",
        "--prompt-logprobs": "test_generate.py::test_log_probabilities_are_reported",
        "--model-sampling": "test_generate.py::test_the_models_own_sampling_is_taken_where_nobody_said_otherwise",
        "--trace": "test_generate.py::test_a_trace_tells_every_round",
        "--measure-plain": "test_generate.py::test_every_flag_changes_what_comes_out",
        "--no-measure-plain": "test_generate.py::test_what_was_not_measured_is_not_printed",
        "--json": "test_generate.py::test_the_text_goes_to_stdout_and_one_closing_line_to_stderr",
    },
    "chat": {
        "--system": "test_chat_commands.py::test_undo_clear_and_system_change_what_the_model_reads",
        "--raw": "test_chat_commands.py::test_a_bundled_model_completes_unless_told_otherwise",
        "--no-raw": "test_chat_commands.py::test_a_bundled_model_completes_unless_told_otherwise",
        "--measure-plain": "test_chat_commands.py::test_each_answer_is_measured_against_plain_decoding_on_request",
        "--json": "test_chat_commands.py::test_without_json_the_answer_goes_to_stdout_and_all_else_to_stderr",
    },
    "explain": {
        **dict.fromkeys(
            ("--prompt", "--prompt-file", "--chat", "--system"),
            "test_explain.py::test_the_prompt_comes_from_flags_files_and_templates",
        ),
        "--prediction": "test_explain.py::test_a_prediction_is_drafted_from",
        "--rounds": "test_explain.py::test_rounds_are_chosen_by_number",
        "--json": "test_explain.py::test_the_table_shows_the_tokens_and_where_the_time_went",
    },
    "doctor": {
        "--context": "test_doctor.py::test_context_and_dtype_change_the_memory_that_is_needed",
        "--files-only": "test_doctor.py::test_files_only_loads_nothing",
        "--json": "test_doctor.py::test_a_whole_examination_prints_its_prediction_with_the_parts",
    },
    "bench": {
        "--method": "test_bench.py::test_methods_choose_the_arms",
        "--questions": "test_bench.py::test_the_json_says_what_was_done_and_with_what",
        "--kind": "test_bench.py::test_kinds_limit_and_repeats_choose_what_is_asked",
        "--limit": "test_bench.py::test_kinds_limit_and_repeats_choose_what_is_asked",
        "--repeats": "test_bench.py::test_kinds_limit_and_repeats_choose_what_is_asked",
        "--raw": "test_bench.py::test_models_with_a_chat_template_are_asked_in_chat_unless_raw",
        "--html": "test_bench.py::test_the_report_is_one_file_with_the_same_numbers",
        "--json": "test_bench.py::test_the_table_tells_people",
    },
    "inspect": {
        "--presets": "test_inspect.py::test_the_presets_are_listed_with_their_sources",
        "--config": "test_inspect.py::test_a_name_of_the_settings_file_is_known",
        "--json": "test_inspect.py::test_json_is_one_object",
    },
    "prove": {
        "--prompts": "test_prove.py::test_the_report_for_people_ends_with_the_verdict",
        "--limit": "test_prove.py::test_seeds_temperatures_and_limit_decide_what_is_run",
        "--seeds": "test_prove.py::test_seeds_temperatures_and_limit_decide_what_is_run",
        "--json": "test_prove.py::test_seeds_temperatures_and_limit_decide_what_is_run",
    },
    "train dflash": {
        **dict.fromkeys(
            (
                *("--steps", "--batch", "--at-once", "--learning-rate", "--warmup", "--weight-decay", "--clip"),
                *("--seed", "--precision", "--layers", "--heads", "--kv-heads", "--head-dim", "--inner-size"),
                *("--block-size", "--taps", "--tap-layer", "--mask-token-id", "--rope-theta", "--anchors", "--gamma"),
                *("--length", "--held-out", "--max-sequences"),
            ),
            "test_train.py::test_flags_change_the_drafter_and_are_recorded",
        ),
        **dict.fromkeys(
            ("--target", "--data", "--out"), "test_train.py::test_a_run_says_how_it_went_and_leaves_a_drafter"
        ),
        **dict.fromkeys(
            ("--answers", "--answer-tokens", "--prompt-tokens", "--greedy-share", "--temperature"),
            "test_train.py::test_the_target_writes_answers_as_it_is_told",
        ),
        **dict.fromkeys(
            ("--save-every", "--evaluate-every", "--prefetch", "--check-prompts"),
            "test_train.py::test_pace_flags_say_when_it_saves_looks_reads_and_checks",
        ),
        **dict.fromkeys(
            ("--threads", "--dtype", "--device"), "test_train.py::test_threads_dtype_and_device_hold_for_the_target"
        ),
        "--epochs": "test_train.py::test_epochs_are_steps_where_no_steps_are_given",
        "--init": "test_train.py::test_init_begins_with_another_drafter",
        "--json": "test_train.py::test_json_is_the_record_without_every_loss",
    },
    "init": dict.fromkeys(
        ("--path", "--force", "--json"), "test_config.py::test_init_does_not_overwrite_unless_forced"
    ),
    "config path": {
        "--config": "test_config.py::test_every_config_command_reads_the_file_that_is_named",
        "--json": "test_config.py::test_init_writes_the_file_every_command_reads",
    },
    "config get": {
        "--config": "test_config.py::test_models_and_profiles_are_added",
        "--json": "test_config.py::test_models_and_profiles_are_added",
    },
    "config set": {
        "--config": "test_config.py::test_set_changes_one_value_and_nothing_else",
        "--json": "test_config.py::test_set_changes_one_value_and_nothing_else",
    },
    "config show": dict.fromkeys(
        ("--config", "--profile", "--json"), "test_config.py::test_show_says_what_holds_and_where_it_was_said"
    ),
}
"""The test in this folder that observes each of a command's own flags."""


@pytest.fixture
def ask(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs a command until it has asked enough; what was asked."""
    honest = Engine.ask
    file = tmp_path / "config.toml"
    file.write_text(
        f'[[models]]\nname = "mine"\npath = "{model}"\nprefill_chunk = 3\n'
        f'[profiles.wordy]\nprefill_chunk = 1\n[profiles.drafting]\ndraft_model = "{model}"\n'
    )

    def run_command(program: Program, *arguments: str) -> list[Seen]:
        seen: list[Seen] = []
        threads: list[int] = []
        monkeypatch.setattr(torch, "set_num_threads", threads.append)

        def spying(self: Engine, *given: object, **named: object) -> Asked:
            asked: Asked = honest(self, *given, **named)
            seen.append(Seen(engine=self, asked=asked, threads=tuple(threads)))
            if len(seen) == ENOUGH:
                raise ReachedError
            return asked

        monkeypatch.setattr(Engine, "ask", spying)
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        stands_for = {"MODEL": "mine" if "FILE" in arguments else model, "FILE": str(file)}
        stands_for["OTHER"] = "auto" if arguments[0] == "prove" else "require"
        try:
            ran = program(*(stands_for.get(word, word.replace("MODEL", model)) for word in arguments))
            assert ran.code in (0, 1, 4), ran.err  # 1 and 4: nothing to speculate with in so few tokens
        except ReachedError:
            pass
        assert seen, "the command asked an engine"
        return seen

    return run_command


def observed(seen: list[Seen], read: Read) -> set[str]:
    return {repr(read(one)) for one in seen}


@pytest.mark.parametrize("command", BASES)
def test_shared_flags_reach_the_engine_and_its_requests(surefoot_program: Program, ask: Ask, command: str) -> None:
    offered = [flag for flag in SHARED if flag in FLAGS[command]]
    flags = [word for flag in offered for word in (flag, SHARED[flag][0]) if word is not None]
    without, given = ask(surefoot_program, *BASES[command]), ask(surefoot_program, *BASES[command], *flags)
    forgotten = [flag for flag in offered if observed(given, SHARED[flag][1]) <= observed(without, SHARED[flag][1])]
    assert forgotten == []


@pytest.mark.parametrize(
    ("command", "flag"),
    [(command, flag) for command in BASES for flag in ALONE if flag in FLAGS[command] and flag not in OWN[command]],
)
def test_flags_that_go_with_others_reach_the_engine(
    surefoot_program: Program, ask: Ask, command: str, flag: str
) -> None:
    without, given, read = ALONE[flag]
    before = observed(ask(surefoot_program, *BASES[command], *without), read)
    assert observed(ask(surefoot_program, *BASES[command], *given), read) != before


@pytest.mark.parametrize("command", BASES)
def test_a_device_that_is_not_there_is_refused(surefoot_program: Program, model: str, command: str) -> None:
    arguments = (model if word == "MODEL" else word for word in BASES[command])
    ran = surefoot_program(*arguments, "--device", "abacus")
    assert ran.code in (1, 2)
    assert "abacus" in ran.out + ran.err


@cache
def source_of(test: str) -> str:
    """What a test is written in: itself with its decorators, and the constants and helpers of its file."""
    file, _, name = test.partition("::")
    text = (ROOT / "tests" / "cli" / file).read_text(encoding="utf-8")
    parts = []
    for node in ast.parse(text).body:
        is_other_test = isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and node.name != name
        if not is_other_test:
            parts.append(ast.unparse(node))
    assert any(f"def {name}(" in part for part in parts), f"there is no test {test}"
    return "\n".join(parts)


@pytest.mark.parametrize("command", FLAGS)
def test_every_flag_has_a_test_that_observes_it(command: str) -> None:
    shared = {*SHARED, *ALONE, "--device"} if command in BASES else set()
    own = OWN.get(command, {})
    assert set(FLAGS[command]) - shared - set(own) == set(), "a flag without a test that observes what it changes"
    assert set(own) <= set(FLAGS[command])
    for flag, test in own.items():
        assert f"'{flag}'" in source_of(test), f"{test} does not use {flag}"


def test_a_flag_that_is_forgotten_is_noticed(
    surefoot_program: Program, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative control: a command that drops what it was told about one option."""
    honest = Engine.generate

    def forgetful(self: Engine, prompt: object, params: object, **named: object) -> object:
        return honest(self, prompt, replace(params, top_k=0), **named)

    monkeypatch.setattr(Engine, "generate", forgetful)
    with pytest.raises(AssertionError, match="--top-k"):
        test_shared_flags_reach_the_engine_and_its_requests(surefoot_program, ask, "prove")


def test_a_flag_without_a_test_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FLAGS, "generate", [*FLAGS["generate"], "--new"])
    with pytest.raises(AssertionError, match="without a test"):
        test_every_flag_has_a_test_that_observes_it("generate")
