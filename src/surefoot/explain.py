"""Replays one generation round by round."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from surefoot.engine import Engine
from surefoot.opening import Prompt
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.request import Result
from surefoot.stats import RoundRecord
from surefoot.text import Tokenizer
from surefoot.types import Origin

_VISIBLE = {" ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A drafted token.

    Attributes:
        token: its id.
        text: the token as it can be seen.
        parent: the node before it; 0 is the root, and the first drafted node is 1.
        accepted: whether it was emitted.
    """

    token: int
    text: str
    parent: int
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The last token emitted before a round: the first one its tree holds."""

    token: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """A token the target drew, and thereby emitted."""

    token: int
    text: str
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round as it can be read.

    Attributes:
        number: from 1 on.
        root: the last token emitted before it.
        drafted: what was guessed to come after the root.
        own: what the target drew, in order: the accepted drafts, then its own token.
        accepted: how many of them had been drafted.
        seconds: by phase.
        tokens_per_second: all rounds so far: their tokens over their seconds.
    """

    number: int
    root: Root
    drafted: tuple[Node, ...]
    own: tuple[Own, ...]
    accepted: int
    seconds: dict[str, float]
    tokens_per_second: float

    @property
    def is_chain(self) -> bool:
        """Whether each drafted token has one guess before it and none beside it."""
        return all(node.parent == place for place, node in enumerate(self.drafted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A generation and its rounds; ``first`` is the token the prefill drew, None where nothing was emitted."""

    result: Result
    first: Own | None
    rounds: tuple[Round, ...]


def explain(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams,
    *,
    speculative: SpeculativeOptions,
    prediction: str | None = None,
) -> Explanation:
    """Answers ``prompt`` and keeps what every round did.

    Raises:
        RequestError: as ``Engine.generate``.
    """
    records: list[RoundRecord] = []
    result = engine.generate(prompt, params, speculative=speculative, prediction=prediction, on_round=records.append)
    rounds: list[Round] = []
    count, elapsed = 0, 0.0
    for record in records:
        count += len(record.verdict.emitted)
        elapsed += record.seconds.rounds
        rounds.append(_round(record, engine.tokenizer, count / elapsed if elapsed else 0.0))
    first = [_own(engine.tokenizer, event.token, event.origin) for event in result.events[:1]]
    return Explanation(result=result, first=first[0] if first else None, rounds=tuple(rounds))


def _round(record: RoundRecord, tokenizer: Tokenizer | None, tokens_per_second: float) -> Round:
    verdict = record.verdict
    own = zip(verdict.emitted, verdict.origins, strict=True)
    return Round(
        number=record.number,
        root=Root(token=record.tokens[0], text=shown(tokenizer, record.tokens[0])),
        drafted=_drafted(record, tokenizer),
        own=tuple(_own(tokenizer, token, origin) for token, origin in own),
        accepted=verdict.num_accepted,
        seconds={name: value for name, value in asdict(record.seconds).items() if name != "prefill"},
        tokens_per_second=tokens_per_second,
    )


def _own(tokenizer: Tokenizer | None, token: int, origin: Origin) -> Own:
    return Own(token=token, text=shown(tokenizer, token), origin=origin)


def _drafted(record: RoundRecord, tokenizer: Tokenizer | None) -> tuple[Node, ...]:
    accepted = _accepted_nodes(record)
    return tuple(
        Node(token=token, text=shown(tokenizer, token), parent=parent, accepted=node in accepted)
        for node, (token, parent) in enumerate(zip(record.tokens, record.parents, strict=True))
        if node > 0
    )


def _accepted_nodes(record: RoundRecord) -> set[int]:
    """The nodes that were emitted. Where a cut ended the round on a draft, that one is not on the committed path."""
    verdict = record.verdict
    nodes = set(verdict.path[1:])
    if verdict.next_origin == "draft":
        last = verdict.path[-1]
        nodes.add(
            next(
                node
                for node, (token, parent) in enumerate(zip(record.tokens, record.parents, strict=True))
                if parent == last and token == verdict.next_token
            )
        )
    return nodes


def shown(tokenizer: Tokenizer | None, token: int) -> str:
    """A token so that all of it can be seen: spaces as ␣, newlines as \\n, bytes that are no text as \\x and their
    number; its id where there is no tokenizer."""
    if tokenizer is None:
        return str(token)
    text = tokenizer.token_bytes(token).decode("utf-8", "backslashreplace")
    if not text:
        return f"<{token}>"
    return "".join(_VISIBLE.get(one, one if one.isprintable() else f"\\x{ord(one):02x}") for one in text)
