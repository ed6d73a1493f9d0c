"""What a measurement asks: questions of one turn or several, built in or from a user's file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from surefoot.errors import OptionError
from surefoot.text import Tokenizer
from surefoot.types import Tokens

EXPECTED = (
    "expected an object with 'turns' (a list of texts) and, if you like, 'question_id', 'category' and 'prediction'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        name: tells it from the others.
        kind: what results are grouped by.
        turns: what the user says, turn by turn; each answer is fed back before the next.
        raw: the same as text to be continued, for models without a chat template; None: the turns as they are.
        prediction: what the answer will largely be, of a question of one turn.
    """

    name: str
    kind: str
    turns: tuple[str, ...]
    raw: str | None = None
    prediction: str | None = None

    def wording(self, turn: int, *, raw: bool) -> str:
        """What is said in a turn."""
        return self.raw if raw and turn == 0 and self.raw is not None else self.turns[turn]

    def prompt(self, answers: Sequence[str], tokenizer: Tokenizer, *, raw: bool) -> Tokens:
        """The prompt of the turn after ``answers``: chat messages, or as ``raw`` text everything said so far."""
        said = [self.wording(turn, raw=raw) for turn in range(len(answers) + 1)]
        if raw:
            rest = (f"{answer}\n{turn}" for answer, turn in zip(answers, said[1:], strict=True))
            return tokenizer.encode("".join((said[0], *rest)))
        messages = [{"role": "user", "content": said[0]}]
        for answer, turn in zip(answers, said[1:], strict=True):
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        return tokenizer.chat(messages)


def read(path: Path) -> list[Question]:
    """The questions of a JSONL file in the format of MT-bench and Spec-Bench: ``question_id``, ``category``, ``turns``.

    A question without an id is called by its line, one without a category by the file's name. ``prediction`` is ours:
    a predicted answer to a question of one turn. Other fields (such as reference answers) are no part of a question.

    Raises:
        OptionError: the file cannot be read, holds no question, two of one name, or a line that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON texts may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"questions {path}: {error}; expected a readable UTF-8 file") from error
    questions = [
        _parse(line, path.stem, number, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not questions:
        raise OptionError(f"questions {path} holds no question; {EXPECTED} on each line")
    names = [question.name for question in questions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"questions {path} holds two questions called {twice!r}; expected each question_id once")
    return questions


def _parse(line: str, stem: str, number: int, place: str) -> Question:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise OptionError(f"{place} is not JSON ({error}); {EXPECTED}") from error
    turns = value.get("turns") if isinstance(value, dict) else None
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise OptionError(f"{place} holds {line.strip()[:60]!r}; {EXPECTED}")
    name, kind, prediction = value.get("question_id", number), value.get("category", stem), value.get("prediction")
    if not isinstance(name, (str, int)) or not isinstance(kind, str) or not isinstance(prediction, (str, type(None))):
        raise OptionError(
            f"{place} has question_id {name!r}, category {kind!r} and prediction {prediction!r}; expected a text or "
            "number, a text, and a text"
        )
    if prediction is not None and len(turns) > 1:
        raise OptionError(f"{place} predicts an answer and has {len(turns)} turns; expected one turn")
    return Question(name=str(name), kind=kind, turns=tuple(turns), prediction=prediction or None)


def choose(questions: Sequence[Question], kinds: Sequence[str], limit: int | None) -> list[Question]:
    """The first ``limit`` questions of each of ``kinds`` (all kinds where none is named), in their order.

    Raises:
        OptionError: a kind that no question has.
    """
    known = list(dict.fromkeys(question.kind for question in questions))
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise OptionError(f"found kind {unknown[0]!r}; expected one of {', '.join(known)}")
    taken = dict.fromkeys(known, 0)
    chosen: list[Question] = []
    for question in questions:
        if (kinds and question.kind not in kinds) or (limit is not None and taken[question.kind] >= limit):
            continue
        taken[question.kind] += 1
        chosen.append(question)
    return chosen
