"""``reject`` through its production streams: enumeration proves the arithmetic, this their independence.

Whole production runs over 2 tokens, 4 tokens long (several rounds each), 4,000 runs, chi-square over the 16 sequences
against the plain law. False alarm 1e-9 (limit at 6 sigma); a total variation of .084 is seen with power .99
(non-centrality 4 * .084 ** 2 * 4000 = 113 over 15 degrees of freedom). What shared streams do is far larger.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from tests.lossless.enumeration import Setting, State
from tests.lossless.tables import PROMPT, TableDrafter
from tests.sampling.statistics import chi_square, chi_square_limit
from tests.tables import TableTarget

from surefoot.decode import advance, prefill
from surefoot.options import SamplingParams
from surefoot.streams import Streams
from surefoot.types import Tokens

V, LENGTH, RUNS = 2, 4, 4000
LIMIT = chi_square_limit(V**LENGTH - 1)


class KeptTable(TableTarget):
    """A table that keeps its rows."""

    def __init__(self, seed: int) -> None:
        super().__init__(V, seed=seed, scale=0.8)
        self.rows: dict[Tokens, object] = {}

    def row(self, context):
        key = tuple(context)
        if key not in self.rows:
            self.rows[key] = super().row(key)
        return self.rows[key]


def statistic(streams_type: type[Streams], runs: int = RUNS) -> float:
    """Chi-square of the emitted sequences of many runs, half of which differ in the seed alone, half in the sample."""
    table, guess = KeptTable(3), KeptTable(8)
    counts: Counter[Tokens] = Counter()
    accepted = rounds = 0
    setting = Setting(SamplingParams(temperature=1.0), table, TableDrafter(guess), 2, LENGTH)
    for run in range(runs):
        streams = streams_type(run, 0) if run % 2 else streams_type(11, run)
        drafter = setting.drafter.start(table)
        decoding = setting.decoding(State(), streams, drafter)
        emitted = prefill(table, PROMPT, [decoding])[0].emitted
        while decoding.finish_reason is None:
            streams.next_round()
            (verdict,) = advance(table, [decoding])
            emitted += verdict.emitted
        counts[emitted] += 1
        accepted += decoding.tally.accepted
        rounds += decoding.tally.rounds
    assert accepted > runs / 2
    assert rounds > 1.2 * runs, "too few second rounds"
    law = setting.plain_law()
    sequences = list(itertools.product(range(V), repeat=LENGTH))
    return chi_square([counts[s] for s in sequences], [law[s] for s in sequences])


def test_the_frequencies_are_those_of_the_plain_law() -> None:
    assert statistic(Streams) < LIMIT


class WithoutPurpose(Streams):
    def uniform(self, node: int, purpose: str) -> float:
        return super().uniform(node, "any")


class WithoutNode(Streams):
    def uniform(self, node: int, purpose: str) -> float:
        return super().uniform(0, purpose)


class WithoutRound(Streams):
    def next_round(self) -> None:
        pass


@pytest.mark.parametrize("streams_type", [WithoutPurpose, WithoutNode, WithoutRound])
def test_streams_that_share_randomness_are_seen(streams_type: type[Streams]) -> None:
    assert statistic(streams_type, RUNS // 4) > LIMIT
