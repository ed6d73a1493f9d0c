"""What a measurement collects: timed answers, the comparisons they stand in, and the turns that were not asked."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.bench.questions import Question
from surefoot.stats import Stats
from surefoot.types import FinishReason, Origin, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One timed answer.

    Attributes:
        arm: who gave it.
        place: when among the arms of its comparison; 0 is first.
        tokens, pieces: what was said, as ids and as text by origin.
        finish_reason: why it ended.
        first_token_seconds: from the request to its first token, the prefill included.
        decode_seconds: from there to the end.
        stats: the request's own account.
    """

    arm: str
    place: int
    tokens: Tokens
    pieces: tuple[tuple[str, Origin], ...]
    finish_reason: FinishReason
    first_token_seconds: float
    decode_seconds: float
    stats: Stats

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for text, _ in self.pieces)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first one, which the prefill draws, over the seconds they took; None without such."""
        return (len(self.tokens) - 1) / self.decode_seconds if len(self.tokens) > 1 else None

    def times_as_fast_as(self, other: Answer) -> float | None:
        """The ratio of the two rates; None where one has none."""
        ours, theirs = self.tokens_per_second, other.tokens_per_second
        return None if ours is None or theirs is None else ours / theirs

    def first_difference(self, other: Answer) -> int | None:
        """The index of the first token that differs, an end of one of the two included; None for equal answers."""
        if (self.tokens, self.text, self.finish_reason) == (other.tokens, other.text, other.finish_reason):
            return None
        pairs = enumerate(zip(self.tokens, other.tokens, strict=False))
        common = min(len(self.tokens), len(other.tokens))
        return next((index for index, (one, another) in pairs if one != another), common)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All arms' answers to one turn of one question, plain's first: the unit in which arms are compared."""

    question: Question
    turn: int
    temperature: float
    repeat: int
    prompt: Tokens
    answers: tuple[Answer, ...]

    @property
    def plain(self) -> Answer:
        """The baseline."""
        return self.answers[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A turn that was not asked, because prompt and answer do not fit into the model's context together."""

    question: str
    kind: str
    turn: int
    prompt_tokens: int
    room: int

    def __str__(self) -> str:
        return (
            f"skipped {self.kind}/{self.question}, turn {self.turn + 1}: its prompt has {self.prompt_tokens} tokens; "
            f"the context leaves room for {self.room}, with --max-tokens for the answer"
        )
