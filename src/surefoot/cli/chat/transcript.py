"""What was said in a chat, as a value: every change gives a new transcript."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeGuard, get_args

from surefoot.errors import OptionError

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One side's words."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """Messages in order; a system message, if there is one, comes first."""

    messages: tuple[Message, ...] = ()

    @property
    def text(self) -> str:
        """All that was said as one text, which is what a model that only completes goes on from; the system message
        is a line of its own."""
        return "".join(message.content + ("\n" if message.role == "system" else "") for message in self.messages)

    def say(self, role: Role, content: str) -> Transcript:
        """With one more message."""
        return replace(self, messages=(*self.messages, Message(role, content)))

    def with_system(self, content: str) -> Transcript:
        """With another system message; none where it is empty."""
        rest = tuple(message for message in self.messages if message.role != "system")
        return Transcript((Message("system", content), *rest) if content else rest)

    def unanswered(self) -> Transcript:
        """Up to the last user's message, that included."""
        return Transcript(self.messages[: self._place_of_user(None) + 1])

    def edited(self, content: str, number: int | None = None) -> Transcript:
        """Up to the user's message ``number`` (from 1 on; None: the last), which now reads ``content``."""
        return self.undone(number).say("user", content)

    def undone(self, number: int | None = None) -> Transcript:
        """Without the user's message ``number`` (from 1 on; None: the last) and all that followed."""
        return Transcript(self.messages[: self._place_of_user(number)])

    def cleared(self) -> Transcript:
        """The system message alone."""
        return Transcript(tuple(message for message in self.messages if message.role == "system"))

    def user_message(self, number: int | None = None) -> str:
        """The user's message ``number`` (from 1 on; None: the last)."""
        return self.messages[self._place_of_user(number)].content

    def dump(self) -> str:
        """JSON: a list of objects with ``role`` and ``content``."""
        return json.dumps([asdict(message) for message in self.messages], ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str, name: str) -> Transcript:
        """What :meth:`dump` wrote; ``name`` is what errors call it."""
        expected = "expected a list of objects with a role (system first, user, assistant) and a content, both strings"
        try:
            items = json.loads(text)
        except json.JSONDecodeError as error:
            raise OptionError(f"{name} is not JSON ({error}); {expected}") from error
        messages: list[Message] = []
        for item in items if isinstance(items, list) else [items]:
            role, content = (item.get("role"), item.get("content")) if isinstance(item, dict) else (None, None)
            if not _is_role(role) or not isinstance(content, str) or (role == "system" and messages):
                raise OptionError(f"{name} holds {str(item)[:60]!r}; {expected}")
            messages.append(Message(role, content))
        return cls(tuple(messages))

    def _place_of_user(self, number: int | None) -> int:
        places = [place for place, message in enumerate(self.messages) if message.role == "user"]
        if not places:
            raise OptionError("nothing was said yet; expected a message of yours to go back to. Say something first")
        if number is not None and not 1 <= number <= len(places):
            raise OptionError(f"message {number} was named; expected one of your messages, 1 to {len(places)}")
        return places[-1 if number is None else number - 1]


def _is_role(value: object) -> TypeGuard[Role]:
    return value in get_args(Role)


def as_prompt(transcript: Transcript) -> Sequence[dict[str, str]]:
    """The messages as chat templates take them."""
    return [{"role": message.role, "content": message.content} for message in transcript.messages]
