"""What a request did: counts of rounds and drafts, and seconds by phase."""

from __future__ import annotations

from dataclasses import dataclass, field

from surefoot.types import Tokens, Verdict


@dataclass(slots=True)
class Seconds:
    """Wall-clock seconds by phase. ``draft`` holds the drafter's own forwards, its reading of the prompt included."""

    prefill: float = 0.0
    draft: float = 0.0
    score: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    observe: float = 0.0

    @property
    def rounds(self) -> float:
        """All phases but the prefill."""
        return self.draft + self.score + self.verify + self.commit + self.observe

    def add(self, other: Seconds) -> None:
        """Adds another account to this one."""
        self.prefill += other.prefill
        self.draft += other.draft
        self.score += other.score
        self.verify += other.verify
        self.commit += other.commit
        self.observe += other.observe


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round, for whoever wants to look.

    Attributes:
        number: counted from 1; the prefill, which drafts nothing, is 0 and has no record.
        tokens: the tree's tokens, root first.
        parents: the tree's parents, as in ``DraftTree``.
        verdict: what the target made of it; its emitted tokens are the target's own.
        seconds: this round's share, by phase.
    """

    number: int
    tokens: Tokens
    parents: tuple[int, ...]
    verdict: Verdict
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The account of one finished request.

    Attributes:
        rounds: target forwards after the prefill.
        drafted: drafted tokens the target was shown.
        accepted: emitted tokens that had been drafted.
        drafted_by_position: how often a token was drafted ``i + 1`` places after the root.
        accepted_by_position: how often the token emitted there was a draft.
        accepted_histogram: rounds in which ``i`` drafts were accepted.
        fallbacks: drafters dropped because they failed.
        strict: whether the target's rows are known to have the same bits whatever is computed beside them.
        seconds: by phase.
    """

    rounds: int
    drafted: int
    accepted: int
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    accepted_histogram: tuple[int, ...]
    fallbacks: int
    strict: bool
    seconds: Seconds

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round with the target's own one: ``1 + accepted / rounds``; 1 without rounds."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0


@dataclass(slots=True)
class Tally:
    """Counts a request while it runs.

    Attributes:
        drafted: as of :class:`Stats`.
        depths: rounds whose tree was ``i`` levels deep below its root.
        accepted_histogram: rounds in which ``i`` drafts were accepted.
    """

    rounds: int = 0
    drafted: int = 0
    depths: list[int] = field(default_factory=list)
    accepted_histogram: list[int] = field(default_factory=list)
    fallbacks: int = 0
    seconds: Seconds = field(default_factory=Seconds)

    @property
    def accepted(self) -> int:
        """Emitted tokens that had been drafted."""
        return sum(count * rounds for count, rounds in enumerate(self.accepted_histogram))

    def add(self, verdict: Verdict, depth: int) -> None:
        """Counts one round whose tree was ``depth`` levels deep below its root."""
        accepted, depths, histogram = verdict.num_accepted, self.depths, self.accepted_histogram
        self.rounds += 1
        self.drafted += verdict.num_drafted
        if depth >= len(depths):
            depths.extend([0] * (depth + 1 - len(depths)))
        if accepted >= len(histogram):
            histogram.extend([0] * (accepted + 1 - len(histogram)))
        depths[depth] += 1
        histogram[accepted] += 1

    def finish(self, *, strict: bool) -> Stats:
        """The account as it stands."""
        deepest = max(len(self.depths) - 1, 0)
        return Stats(
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=self.accepted,
            drafted_by_position=_reaching_beyond(self.depths, deepest),
            accepted_by_position=_reaching_beyond(self.accepted_histogram, deepest),
            accepted_histogram=tuple(self.accepted_histogram),
            fallbacks=self.fallbacks,
            strict=strict,
            seconds=self.seconds,
        )


def _reaching_beyond(histogram: list[int], positions: int) -> tuple[int, ...]:
    """How many of what a histogram counts is more than 0, 1, 2, ..."""
    return tuple(sum(histogram[position + 1 :]) for position in range(positions))
