"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from surefoot.cli.chat.parameters import changed, shown
from surefoot.cli.chat.session import Session
from surefoot.cli.chat.transcript import Transcript
from surefoot.errors import OptionError
from surefoot.request import Stream


@dataclass(frozen=True, slots=True)
class Edit:
    """Asks the user for the new words of message ``number`` (None: the last), which reads ``old``."""

    number: int | None
    old: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command comes to: something to say, an answer to show, words to ask for, totals to show, the end."""

    text: str = ""
    stream: Stream | None = None
    edit: Edit | None = None
    stats: bool = False
    leave: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """How a command is written, what it does in a line, and doing it with what stands after its name."""

    usage: str
    line: str
    run: Callable[[Session, str], Outcome]


def obey(session: Session, line: str) -> Outcome:
    """Carries out a line that begins with a slash.

    Raises:
        RequestError: no such command, or it cannot be carried out; the session is as it was.
    """
    name, _, rest = line.strip().partition(" ")
    if name not in COMMANDS:
        raise OptionError(
            f"found {name!r}; expected one of {', '.join(COMMANDS)}. /help says what they do; a message that begins "
            'with a slash goes between """ and """'
        )
    command = COMMANDS[name]
    rest = rest.strip()
    if rest and command.usage == name:
        raise OptionError(f"{name} came with {rest!r:.60}; expected nothing after it")
    return command.run(session, rest)


def _help(session: Session, rest: str) -> Outcome:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:{width}}  {command.line}" for command in COMMANDS.values()]
    several = 'several lines: begin with """ and end with """, or end a line with a backslash'
    return Outcome(text="\n".join([*lines, several, "Ctrl-C stops an answer; at the prompt it leaves, as Ctrl-D does"]))


def _regenerate(session: Session, rest: str) -> Outcome:
    same = "temperature is 0, so with the same settings this is the same answer; /set temperature 0.8 gives others"
    return Outcome(stream=session.regenerate(), text=same if session.sampling.greedy else "")


def _edit(session: Session, rest: str) -> Outcome:
    number = _count("/edit", rest) if rest else None
    return Outcome(edit=Edit(number, session.transcript.user_message(number)))


def _undo(session: Session, rest: str) -> Outcome:
    taken = session.transcript.user_message()
    session.transcript = session.transcript.undone()
    return Outcome(text=f"taken back, with its answer: {taken}")


def _clear(session: Session, rest: str) -> Outcome:
    session.transcript = session.transcript.cleared()
    return Outcome(text="all messages are gone" + (", the system message stays" if session.transcript.messages else ""))


def _system(session: Session, rest: str) -> Outcome:
    if rest:
        session.transcript = session.transcript.with_system("" if rest == '""' else rest)
    system = "".join(message.content for message in session.transcript.messages if message.role == "system")
    return Outcome(text=f"system: {system}" if system else "there is no system message")


def _save(session: Session, rest: str) -> Outcome:
    path = _path("/save", rest)
    try:
        path.write_text(session.transcript.dump(), encoding="utf-8")
    except OSError as error:
        raise OptionError(f"/save {path}: {error}; expected a file that can be written") from error
    return Outcome(text=f"{len(session.transcript.messages)} messages saved in {path}")


def _load(session: Session, rest: str) -> Outcome:
    path = _path("/load", rest)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"/load {path}: {error}; expected a readable UTF-8 file") from error
    session.transcript = Transcript.parse(text, f"/load {path}")
    waiting = session.transcript.messages[-1:] and session.transcript.messages[-1].role == "user"
    hint = "; /regenerate answers the last one" if waiting else ""
    return Outcome(text=f"{len(session.transcript.messages)} messages loaded{hint}")


def _set(session: Session, rest: str) -> Outcome:
    name, _, value = rest.partition(" ")
    if value:
        session.sampling = changed(session.sampling, name, value.strip())
    return Outcome(text="\n".join(shown(session.sampling, name)))


def _speculative(session: Session, rest: str) -> Outcome:
    if rest and not session.has_drafter:
        raise OptionError(
            f"/speculative {rest} needs a drafter, and none was loaded; start the chat with --method lookup or "
            "--draft-model MODEL"
        )
    if rest in ("on", "off"):
        session.speculating = rest == "on"
    elif rest:
        session.options = replace(session.options, num_draft=_count("/speculative on, off or", rest))
        session.speculating = True
    count = session.speculative.num_draft
    return Outcome(text=f"{count} drafts per round" if count else "plain decoding: nothing is drafted")


def _path(name: str, rest: str) -> Path:
    if not rest:
        raise OptionError(f"{name} came without a file; expected {name} FILE")
    return Path(os.path.expanduser(rest))


def _count(usage: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"found {text!r:.60}; expected {usage} a number")
    return int(text)


COMMANDS = {
    "/regenerate": Command("/regenerate", "answers the last message again, with another seed", _regenerate),
    "/edit": Command("/edit [N]", "changes your last message, or your N-th, and answers from there", _edit),
    "/undo": Command("/undo", "takes back your last message with its answer", _undo),
    "/clear": Command("/clear", "takes back all messages", _clear),
    "/system": Command("/system [TEXT]", 'shows or changes the system message; "" removes it', _system),
    "/set": Command("/set [KEY [VALUE]]", "shows or changes how tokens are drawn", _set),
    "/speculative": Command(
        "/speculative [on|off|N]", "drafts, decodes plainly, or drafts N tokens a round", _speculative
    ),
    "/stats": Command("/stats", "what all answers came to", lambda session, rest: Outcome(stats=True)),
    "/save": Command("/save FILE", "writes the messages as JSON", _save),
    "/load": Command("/load FILE", "reads messages that were saved", _load),
    "/help": Command("/help", "this", _help),
    "/quit": Command("/quit", "leaves", lambda session, rest: Outcome(leave=True)),
}
