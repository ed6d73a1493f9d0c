"""``surefoot explain``: its rounds are the generation's rounds, and what it prints is what they did."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.cli.conftest import Program
from tests.guesses import Guesser, half_right
from tests.tables import TableTarget
from tests.text.vocabularies import byte_level

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.cli.account import acceptance_row, duration, in_lines, time_row
from surefoot.cli.explain import rows
from surefoot.cli.show import colored
from surefoot.explain import Explanation, explain, shown
from surefoot.stats import Seconds

PROMPT = (1, 2, 3, 1, 2)
TEXT = "for index, value in enumerate(values):\n    print("


def explained(temperature: float, **options: object) -> Explanation:
    """A generation with trees of which 0 to 3 tokens are right, sometimes behind a wrong sibling."""
    target = TableTarget(vocab_size=31)
    params = SamplingParams(**{"temperature": temperature, "seed": 3, "max_tokens": 30, **options})
    answer = Engine(target).generate(PROMPT, params).tokens
    engine = Engine(target, Guesser(half_right([*answer, *range(30)], len(PROMPT), 31)))
    return explain(engine, PROMPT, params, speculative=SpeculativeOptions(num_draft=5))


def check(explanation: Explanation) -> None:
    """The laws of a replay."""
    result, rounds = explanation.result, explanation.rounds
    assert explanation.first is not None
    own = [explanation.first, *(token for one in rounds for token in one.own)]
    assert [(token.token, token.origin) for token in own] == [(event.token, event.origin) for event in result.events]
    assert [one.number for one in rounds] == list(range(1, result.stats.rounds + 1))
    assert sum(one.accepted for one in rounds) == result.stats.accepted
    assert sum(len(one.drafted) for one in rounds) == result.stats.drafted
    before = explanation.first.token
    for one in rounds:
        assert one.root.token == before
        before = one.own[-1].token
        stood = [node for node in one.drafted if node.accepted]
        assert [node.token for node in stood] == [token.token for token in one.own if token.origin == "draft"]
        places = [0, *(place for place, node in enumerate(one.drafted, start=1) if node.accepted)]
        assert [node.parent for node in stood] == places[:-1], "the accepted ones are a path from the root"
    for phase in ("draft", "score", "verify", "commit", "observe"):
        assert sum(one.seconds[phase] for one in rounds) == pytest.approx(getattr(result.stats.seconds, phase))
    if rounds:
        elapsed = sum(sum(one.seconds.values()) for one in rounds)
        assert rounds[-1].tokens_per_second == pytest.approx((len(result.tokens) - 1) / elapsed)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("max_tokens", range(1, 31))
def test_the_rounds_are_those_of_the_generation(temperature: float, max_tokens: int) -> None:
    explanation = explained(temperature, max_tokens=max_tokens)
    check(explanation)
    plain = Engine(TableTarget(vocab_size=31)).generate(
        PROMPT, SamplingParams(temperature=temperature, seed=3, max_tokens=max_tokens)
    )
    assert explanation.result.tokens == plain.tokens
    assert explanation.result.stats.fallbacks == 0
    assert explanation.result.stats.accepted > 0 or max_tokens < 4


def test_a_cut_inside_the_accepted_run_marks_the_draft_it_ended_on() -> None:
    cuts = 0
    for stop in range(31):
        explanation = explained(0.8, stop_token_ids=(stop,))
        check(explanation)
        last = explanation.rounds[-1] if explanation.rounds else None
        cuts += last is not None and last.own[-1].origin == "draft"
    assert cuts > 3


def test_a_replay_that_leaves_something_out_is_noticed() -> None:
    explanation = explained(0.8)
    long = next(one for one in explanation.rounds if one.accepted and len(one.drafted) > one.accepted)
    doctored = (
        replace(long, own=long.own[:-1]),
        replace(long, accepted=long.accepted - 1),
        replace(long, drafted=tuple(replace(node, accepted=False) for node in long.drafted)),
        replace(long, drafted=tuple(replace(node, accepted=True) for node in long.drafted)),
        replace(long, seconds={phase: 2 * value for phase, value in long.seconds.items()}),
    )
    for wrong in doctored:
        rounds = tuple(wrong if one is long else one for one in explanation.rounds)
        with pytest.raises(AssertionError):
            check(replace(explanation, rounds=rounds))


def test_nothing_emitted_is_nothing_to_explain() -> None:
    explanation = explained(0.0, max_tokens=0)
    assert (explanation.first, explanation.rounds) == (None, ())


def words(lines: Sequence[str]) -> list[str]:
    return [re.sub("\x1b\\[[0-9;]*m", "", line) for line in lines]


def test_a_tree_shows_each_node_below_its_parent_and_what_stood() -> None:
    branching = [one for one in explained(0.0).rounds if not one.is_chain]
    assert branching
    for one in branching:
        _, root, note, *nodes, own = words(rows(one))
        assert root.split() == ["root", str(one.root.token)]
        assert note.split()[0] == "drafted"
        parsed = [re.fullmatch(r"( +)([+-]) (\d+)", line).groups() for line in nodes]
        assert sorted(int(token) for _, _, token in parsed) == sorted(node.token for node in one.drafted)
        assert [int(token) for _, mark, token in parsed if mark == "+"] == [
            node.token for node in one.drafted if node.accepted
        ]
        indents: list[int] = []
        for spaces, _, token in parsed:
            depth = (len(spaces) - 16) // 2
            node = next(node for node in one.drafted if str(node.token) == token)
            assert depth == 0 if node.parent == 0 else depth > 0
            indents.append(depth)
        assert max(indents) > 0
        assert own.split()[1 : 1 + len(one.own)] == [str(token.token) for token in one.own]


def test_on_a_terminal_colours_say_what_stood() -> None:
    for one in explained(0.8).rounds:
        text = "\n".join(rows(one))
        for node in one.drafted:
            assert f"\x1b[{32 if node.accepted else 31}m{node.text}\x1b" in text
        for token in one.own:
            assert colored(token.text, token.origin) in text


Report = dict[str, object]


def report(program: Program, model: str, *flags: str) -> Report:
    fixed = ("--prompt", TEXT, "--seed", "1", "--max-tokens", "16", "--ignore-eos", "--json")
    ran = program("explain", model, *fixed, *flags)
    assert (ran.code, ran.err) == (0, "")
    parsed: Report = json.loads(ran.out)
    return parsed


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_json_report_holds_every_round(surefoot_program: Program, model: str, temperature: str) -> None:
    got = report(surefoot_program, model, "--draft-model", model, "--temperature", temperature)
    own = [got["first"], *(token for one in got["rounds"] for token in one["own"])]
    assert [token["token"] for token in own] == got["tokens"]
    assert sum(one["accepted"] for one in got["rounds"]) == got["stats"]["accepted"] > 0
    assert got["stats"]["fallbacks"] == 0
    plain = report(surefoot_program, model, "--method", "none", "--temperature", temperature, "--exact", "require")
    drafted = report(
        surefoot_program, model, "--draft-model", model, "--temperature", temperature, "--exact", "require"
    )
    assert plain["tokens"] == drafted["tokens"]
    assert [one["drafted"] for one in plain["rounds"]] == [[]] * 15


def test_the_prompt_comes_from_flags_files_and_templates(surefoot_program: Program, model: str, tmp_path: Path) -> None:
    def tokens(*flags: str) -> tuple[object, object, object]:
        ran = surefoot_program("explain", model, "--max-tokens", "8", "--ignore-eos", "--json", *flags)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.count("\n") == 1
        got = json.loads(ran.out)
        return got["usage"]["prompt_tokens"], got["tokens"], got["stats"]["accepted"]

    told = tokens("--prompt", TEXT)
    path = tmp_path / "prompt.txt"
    path.write_text(TEXT, encoding="utf-8")
    assert tokens("--prompt-file", str(path)) == told
    chat = tokens("--prompt", TEXT, "--chat")
    assert chat[0] > told[0]
    assert tokens("--prompt", TEXT, "--chat", "--system", "Be brief.")[0] > chat[0]


def test_a_prediction_is_drafted_from(surefoot_program: Program, model: str, tmp_path: Path) -> None:
    flags = ("--method", "lookup", "--prompt", "def greet(name):", "--max-tokens", "24")
    alone = report(surefoot_program, model, *flags)
    path = tmp_path / "predicted.txt"
    path.write_text("def greet(name):" + alone["text"].partition("\ufffd")[0], encoding="utf-8")
    helped = report(surefoot_program, model, *flags, "--prediction", str(path))
    assert helped["tokens"] == alone["tokens"]
    assert helped["stats"]["accepted"] > alone["stats"]["accepted"]
    ran = surefoot_program("explain", model, "--prompt", TEXT, "--prediction", str(path), "--num-draft", "0")
    assert ran.code == 2
    assert "drafts nothing" in ran.err


@pytest.mark.parametrize("method", ["none", "draft"])
def test_rounds_end_where_a_stop_string_ends_the_answer(surefoot_program: Program, model: str, method: str) -> None:
    flags = ("--draft-model", model) if method == "draft" else ("--method", "none")
    free = report(surefoot_program, model, *flags)
    end = next(text for text in (free["text"][place : place + 2] for place in range(4, 20)) if text.isprintable())
    got = report(surefoot_program, model, *flags, "--stop", end)
    assert got["finish_reason"] == "stop"
    assert len(got["tokens"]) < 16
    own = [got["first"], *(token for one in got["rounds"] for token in one["own"])]
    assert [token["token"] for token in own] == got["tokens"] == free["tokens"][: len(own)]


@pytest.mark.parametrize(
    ("slice_", "numbers"),
    [("2:3", [2, 3]), ("3:", [3, 4, 5]), (":2", [1, 2]), (":", [1, 2, 3, 4, 5]), ("4", [4]), ("9:", []), ("3:2", [])],
)
def test_rounds_are_chosen_by_number(surefoot_program: Program, model: str, slice_: str, numbers: list[int]) -> None:
    flags = ("--method", "none", "--max-tokens", "6")
    got = report(surefoot_program, model, *flags, "--rounds", slice_)
    assert [one["number"] for one in got["rounds"]] == numbers
    assert got["stats"]["rounds"] == 5, "the summary is of all rounds"


def test_a_choice_without_rounds_says_how_many_there_are(surefoot_program: Program, model: str) -> None:
    flags = ("--prompt", TEXT, "--method", "none", "--max-tokens", "6", "--rounds", "9:")
    assert "none of the 5 rounds is in 9:" in surefoot_program("explain", model, *flags).out


@pytest.mark.parametrize("slice_", ["", "a:b", "1:2:3", "-1:", "1.5"])
def test_a_choice_of_rounds_that_means_nothing_is_refused(surefoot_program: Program, model: str, slice_: str) -> None:
    ran = surefoot_program("explain", model, "--prompt", TEXT, "--rounds", slice_)
    assert (ran.code, ran.out) == (2, "")
    assert "expected A:B" in ran.err


def test_the_table_shows_the_tokens_and_where_the_time_went(surefoot_program: Program, model: str) -> None:
    flags = ("--prompt", TEXT, "--max-tokens", "12", "--ignore-eos", "--draft-model", model)
    ran = surefoot_program("explain", model, *flags)
    assert ran.code == 0
    assert "\x1b" not in ran.out
    got = report(surefoot_program, model, "--draft-model", model, "--max-tokens", "12")
    prefill, header, *lines = ran.out.splitlines()
    assert prefill.endswith(f"the first token: {got['first']['text']}")
    assert header.split() == ["round", "accepted", "draft", "score", "verify", "commit", "observe", "ms", "tok/s"]
    for number, one in enumerate(got["rounds"]):
        counts, root, drafted, own = lines[4 * number : 4 * number + 4]
        assert counts.split()[:2] == [str(one["number"]), f"{one['accepted']}/{len(one['drafted'])}"]
        assert root.split() == ["root", one["root"]["text"]]
        assert [word for word in drafted.split()[1:] if word not in ("|", "nothing")] == [
            node["text"] for node in one["drafted"]
        ]
        assert own.split()[1:-1] == [token["text"] for token in one["own"]]
    assert lines[4 * len(got["rounds"])] == ""
    summary = lines[4 * len(got["rounds"]) + 1 :]
    assert summary[0].startswith(f"12 tokens in {got['stats']['rounds']} rounds, {got['stats']['accepted']} of ")
    assert [line.split()[0] for line in summary[1:]] == ["length", "position", "time"]
    assert f"= {got['stats']['mean_acceptance_length']:.2f}" in summary[1]


def test_tokens_show_all_that_is_in_them() -> None:
    tokenizer = byte_level()
    assert shown(None, 7) == "7"
    for token in range(tokenizer.vocab_size):
        text = shown(tokenizer, token)
        assert text.isprintable()
        assert text
        assert not text.split()[1:], "no spaces but visible ones"
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    assert shown(tokenizer, newline) == "\\n"
    assert "".join(shown(tokenizer, token) for token in tokenizer.encode("a b\tc")) == "a␣b\\tc"
    assert shown(tokenizer, 0xC3) == "\\xc3", "half a character"
    assert shown(tokenizer, 5000) == "<5000>"


def test_bars_and_shares_are_of_the_rounds_that_drafted_there() -> None:
    assert acceptance_row([], []) == "nothing drafted"
    assert acceptance_row([4, 4, 2], [4, 1, 0]) == "1 █ 100%  2 ▃ 25%  3 ▁ 0%"
    assert time_row(Seconds()).startswith("prefill 0 ms (0%)")
    assert "draft 1.50 s (75%) · score 500 ms (25%)" in time_row(Seconds(draft=1.5, score=0.5))
    assert [duration(0.0123), duration(2.5)] == ["12.3 ms", "2.50 s"]


@pytest.mark.parametrize("width", range(1, 40))
def test_parts_are_kept_whole_and_lines_to_their_width(width: int) -> None:
    parts = ["12 tokens", "48.3 tok/s", "a", "much longer than the others", "end"]
    lines = in_lines(parts, width).split("\n")
    assert " · ".join(lines).split(" · ") == parts
    assert all(len(line) <= width or " · " not in line for line in lines)
    assert all(len(f"{one} · {two.split(' · ')[0]}") > width for one, two in pairwise(lines))
