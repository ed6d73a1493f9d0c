"""A whole measurement with its circumstances: what the table, the JSON and the report are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from surefoot.bench.answers import Answer, Comparison, Skipped
from surefoot.bench.results import Cell, summarise
from surefoot.control.cost import CostCurve
from surefoot.options import GREEDY_EPSILON, Acceptance
from surefoot.provenance import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was measured, and how.

    Attributes:
        model, drafter: as they were named.
        questions: ``built-in``, or the user's file.
        arms: by name, plain first.
        num_draft, acceptance: how the drafting arms speculated.
        temperatures, seed, max_tokens, repeats: of every question.
        chat: whether prompts were chat messages.
        dtype: of the target's weights, as loaded.
        exact: the arithmetic that was asked for.
        strict: whether the target is known to be row-exact.
    """

    model: str
    drafter: str
    questions: str
    arms: tuple[str, ...]
    num_draft: int
    acceptance: Acceptance
    temperatures: tuple[float, ...]
    seed: int
    max_tokens: int
    repeats: int
    chat: bool
    dtype: str
    exact: str
    strict: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measurement.

    Attributes:
        setup: what was measured, and how.
        comparisons: everything that was asked and answered.
        skipped: turns that did not fit into the context.
        complete: False where it was interrupted.
        cost: seconds of a forward of the target by its rows; None where it was not measured.
        notes: what a user should know about how the models were loaded.
        provenance: with what.
    """

    setup: Setup
    comparisons: tuple[Comparison, ...]
    skipped: tuple[Skipped, ...]
    complete: bool
    cost: CostCurve | None
    notes: tuple[str, ...]
    provenance: Provenance

    def cells(self) -> tuple[Cell, ...]:
        """The results by kind, temperature and arm."""
        return summarise(self.comparisons)

    def samples(self) -> tuple[Comparison, ...]:
        """The first comparison of each kind and temperature."""
        first: dict[tuple[str, float], Comparison] = {}
        for one in self.comparisons:
            first.setdefault((one.question.kind, one.temperature), one)
        return tuple(first.values())

    def promised(self, temperature: float) -> bool:
        """Whether equal texts were promised: on a row-exact target, unless drafts are accepted by rejection."""
        return self.setup.strict and (self.setup.acceptance == "match" or temperature < GREEDY_EPSILON)

    def broken(self) -> tuple[Cell, ...]:
        """The cells in which a text differs although equal ones were promised."""
        return tuple(
            cell for cell in self.cells() if cell.first_difference is not None and self.promised(cell.temperature)
        )

    def warnings(self, cells: Sequence[Cell]) -> list[str]:
        """What a reader must know before any number."""
        found = [] if self.complete else ["Interrupted: this is what was measured until then."]
        for cell in cells:
            where = f"{cell.kind}, {cell.arm}, temperature {cell.temperature:g}"
            if cell.first_difference is not None:
                count = f"{cell.answers - cell.identical} of {cell.answers} texts differ"
                found.append(f"{where}: {count}, {self._why(cell.temperature)}.")
            if cell.fallbacks:
                found.append(f"{where}: the drafter failed and was dropped in {cell.fallbacks} answers.")
        return found

    def _why(self, temperature: float) -> str:
        """What a difference means."""
        if self.promised(temperature):
            return "although equal texts were promised"
        if self.setup.acceptance != "match" and temperature >= GREEDY_EPSILON:
            return "as rejection sampling keeps the law, not the text"
        return "as rounding may decide between equals here; --exact require promises equal texts"

    def as_json(self) -> dict[str, object]:
        """Everything but the texts, of which the first of each kind stand for the rest."""
        return {
            **asdict(self.setup),
            "complete": self.complete,
            "notes": self.notes,
            "skipped": [asdict(skipped) for skipped in self.skipped],
            "cells": [_cell(cell) for cell in self.cells()],
            "comparisons": [_comparison(one) for one in self.comparisons],
            "texts": [_texts(one, raw=not self.setup.chat) for one in self.samples()],
            "cost": None if self.cost is None else asdict(self.cost),
            "provenance": self.provenance.as_json(),
        }


def _cell(cell: Cell) -> dict[str, object]:
    mean_length = cell.acceptance.mean_length
    return {**asdict(cell), "slower_than_plain": cell.slower, "mean_acceptance_length": mean_length}


def _comparison(one: Comparison) -> dict[str, object]:
    return {
        **_place(one),
        "turn": one.turn,
        "repeat": one.repeat,
        "prompt_tokens": len(one.prompt),
        "answers": [_answer(answer, one.plain) for answer in one.answers],
    }


def _answer(answer: Answer, plain: Answer) -> dict[str, object]:
    return {
        "arm": answer.arm,
        "place": answer.place,
        "tokens": len(answer.tokens),
        "finish_reason": answer.finish_reason,
        "first_token_seconds": answer.first_token_seconds,
        "decode_seconds": answer.decode_seconds,
        "tokens_per_second": answer.tokens_per_second,
        "times_plain": answer.times_as_fast_as(plain),
        "first_difference": answer.first_difference(plain),
        "rounds": answer.stats.rounds,
        "accepted_histogram": answer.stats.accepted_histogram,
    }


def _texts(one: Comparison, *, raw: bool) -> dict[str, object]:
    texts: dict[str, Sequence[tuple[str, str]]] = {answer.arm: answer.pieces for answer in one.answers}
    return {**_place(one), "asked": one.question.wording(one.turn, raw=raw), "pieces": texts}


def _place(one: Comparison) -> dict[str, object]:
    return {"question": one.question.name, "kind": one.question.kind, "temperature": one.temperature}
