"""Prompts to prove and measure with: a user's file, or the built-in ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from surefoot.errors import OptionError, TokenizerError
from surefoot.text import Tokenizer

GENERAL = (
    "The lighthouse keeper wrote one line in his journal every evening. On the last day of October he wrote:",
    "Translate into French: The train to the mountains leaves at half past seven from the second platform.\n",
    "Question: A farmer has 17 sheep and buys 25 more. He sells 8. How many sheep are left?\nAnswer: Let's think.",
    'def merge_sorted(left: list[int], right: list[int]) -> list[int]:\n    """Merges two sorted lists."""\n',
    '{"name": "Ada", "born": 1815, "field": "maths"}\n{"name": "Grace", "born": 1906, "field": "computing"}\n{"name":',
    "Ingredients:\n- 2 eggs\n- 200 g flour\n- 300 ml milk\n- a pinch of salt\n\nMethod:\n1.",
    "Dear Ms. Okafor,\n\nthank you for your letter of 3 March. I am sorry to hear that the parcel",
    "Repeat the list twice.\nred, green, blue, yellow, black, white\nred, green, blue, yellow, black, white\n",
)
"""Short texts of different kinds, for models of which nothing is known."""


def evaluation_set() -> list[tuple[list[int], str]]:
    """The 40 held-out prompts of the bundled models: ids, and the text they stand for."""
    evaluation = json.loads(files("surefoot").joinpath("pebble", "evaluation.json").read_text(encoding="utf-8"))
    return [(list(map(int, prompt["ids"])), str(prompt["text"])) for prompt in evaluation["prompts"]]


def builtin(tokenizer: Tokenizer | None) -> list[str | list[int]]:
    """The evaluation set of the bundled models where ``tokenizer`` is theirs, else texts of several kinds.

    Raises:
        TokenizerError: there is no tokenizer to read the texts with.
    """
    if tokenizer is None:
        raise TokenizerError("the model has no tokenizer, and the built-in prompts are text; give prompts as token ids")
    prompts = evaluation_set()
    if all(tokenizer.decode(ids, skip_special_tokens=False) == text for ids, text in prompts):
        return [ids for ids, _ in prompts]
    return list(GENERAL)


def read(path: Path) -> list[str | list[int] | list[dict[str, object]]]:
    """The prompts of a file: one JSON value per line where its name ends in ``.jsonl``, else one text per line.

    A JSON value is a string, a list of token ids, a list of chat messages, or an object with one of these under
    ``prompt``. Empty lines are left out.

    Raises:
        OptionError: the file cannot be read, holds no prompt, or a line is none of these.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON texts may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"prompts {path}: {error}; expected a readable UTF-8 file") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise OptionError(f"prompts {path} holds no prompt; expected one per line")
    if path.suffix != ".jsonl":
        return [line for _, line in numbered]
    return [_parse(line, f"{path}:{number}") for number, line in numbered]


def _parse(line: str, place: str) -> str | list[int] | list[dict[str, object]]:
    expected = "expected a string, token ids, chat messages, or an object with one of these under 'prompt'"
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise OptionError(f"{place} is not JSON ({error}); {expected}") from error
    if isinstance(value, dict):
        value = value.get("prompt")
    if isinstance(value, str):
        return value
    if isinstance(value, list) and (_all(value, int) or _all(value, dict)):
        return value
    raise OptionError(f"{place} holds {line.strip()[:60]!r}; {expected}")


def _all(values: Sequence[object], kind: type) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
