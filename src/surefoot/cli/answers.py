"""Answers as JSON, and their tokens and rounds as lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from surefoot.cli.show import tokens_per_second
from surefoot.request import Result
from surefoot.stats import RoundRecord
from surefoot.text import Tokenizer
from surefoot.types import TokenLogprobs

Spell = Callable[[int], str]


def speller(tokenizer: Tokenizer | None) -> Spell:
    """How a single token is written: its text in quotes, or its id where there is no tokenizer."""

    def spell(token: int) -> str:
        if tokenizer is None:
            return str(token)
        return json.dumps(tokenizer.decode([token], skip_special_tokens=False), ensure_ascii=False)

    return spell


def answer_report(result: Result) -> dict[str, object]:
    """One answer."""
    report: dict[str, object] = {
        "text": result.text,
        "tokens": result.tokens,
        "origins": [event.origin for event in result.events],
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "seed": result.seed,
        "sample_index": result.sample_index,
        "usage": {**asdict(result.usage), "total_tokens": result.usage.total_tokens},
        "stats": {**asdict(result.stats), "mean_acceptance_length": result.stats.mean_acceptance_length},
        "tokens_per_second": tokens_per_second(result),
    }
    scored = [event.logprobs for event in result.events]
    report["logprobs"] = [asdict(one) for one in scored if one] if any(scored) else None
    report["prompt_logprobs"] = result.prompt_logprobs and [one and asdict(one) for one in result.prompt_logprobs]
    return report


def plain_report(result: Result, plain: Result) -> dict[str, object]:
    """How the same request went plainly."""
    return {
        "tokens_per_second": tokens_per_second(plain),
        "times_plain": times_plain(result, plain),
        "same_tokens": plain.tokens == result.tokens,
    }


def times_plain(result: Result, plain: Result) -> float | None:
    """How many times as many tokens a second as plain decoding; None where a run had no rounds to time."""
    baseline = tokens_per_second(plain)
    speed = tokens_per_second(result)
    return speed / baseline if baseline and speed else None


def trace_report(rounds: Sequence[RoundRecord]) -> list[dict[str, object]]:
    """One object per round: the tree (``parents`` count the root as 0), and the target's own tokens."""
    return [
        {
            "round": record.number,
            "root": record.tokens[0],
            "drafted": record.tokens[1:],
            "parents": record.parents[1:],
            "own": record.verdict.emitted,
            "accepted": record.verdict.num_accepted,
            "seconds": asdict(record.seconds),
        }
        for record in rounds
    ]


def trace_lines(rounds: Sequence[RoundRecord], spell: Spell) -> Iterator[str]:
    """One line per round."""
    for record in rounds:
        drafted = " ".join(map(spell, record.tokens[1:])) or "nothing"
        own = " ".join(map(spell, record.verdict.emitted))
        yield (
            f"round {record.number}  after {spell(record.tokens[0])}  drafted {drafted}  own {own}  "
            f"accepted {record.verdict.num_accepted} of {record.verdict.num_drafted}"
        )


def logprob_lines(title: str, scored: Sequence[TokenLogprobs | None], spell: Spell) -> Iterator[str]:
    """One line per token: its log probability, its rank, and the likeliest tokens with theirs."""
    yield f"{title}: token, log probability, rank, likeliest"
    for one in scored:
        if one is not None:
            top = "  ".join(f"{spell(token)} {logprob:.3f}" for token, logprob in one.top)
            yield f"  {spell(one.token):<16} {one.logprob:>8.3f}  {one.rank:>5}  {top}".rstrip()


def score_lines(result: Result, spell: Spell) -> Iterator[str]:
    """The log probabilities a result reports, the prompt's first."""
    if result.prompt_logprobs is not None:
        yield from logprob_lines("prompt", result.prompt_logprobs, spell)
    scored = [event.logprobs for event in result.events]
    if any(scored):
        yield from logprob_lines("answer", scored, spell)
