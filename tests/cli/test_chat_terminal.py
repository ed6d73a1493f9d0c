"""``surefoot chat`` in a real terminal, with somebody at the keys."""

from __future__ import annotations

import re

from tests.cli.chatting import CTRL_C, CTRL_D, Terminal

STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
PAIR = ("chat", "pebble", "--draft-model", "pebble-draft")


def plain(text: str) -> str:
    """What stays on the screen: without styles, and without what was typed over."""
    text = STYLE.sub("", text).replace("\r\n", "\n").replace("\r", "")
    while "\b" in text:
        text = re.sub(r"[^\b]\x08", "", text, count=1)
    return text


def test_somebody_chats_in_a_terminal() -> None:
    with Terminal(*PAIR, "--max-tokens", "480", "--ignore-eos", columns=60) as terminal:
        greeting = plain(terminal.expect("> "))
        assert "accepted draft  correction  bonus" in greeting
        assert "completion mode" in greeting
        assert "pebble, 4 drafts per round from pebble-draft, context 2048" in greeting

        terminal.type("/set max_tokens 24\r")
        terminal.expect("max_tokens 24.*> ")
        terminal.type("def add(a, b):\r")
        shown = terminal.expect("tok/s.*> ")
        assert {"\x1b[32m", "\x1b[33m", "\x1b[36m"} & set(re.findall(r"\x1b\[\d+m", shown)), "colours by origin"
        lines = plain(shown).splitlines()
        assert lines[0] == "def add(a, b):"
        assert "return a + b" in plain(shown)
        status = lines[[line.startswith("24 tokens · ") for line in lines].index(True) :]
        assert max(map(len, status)) <= 60, "the status fits the window"

        terminal.type("/stats\r")
        assert "answers   1 with 24 tokens" in plain(terminal.expect("time .*> "))

        terminal.type("/edit\r")
        terminal.expect("edit> ")
        terminal.type("x" + "\x7f" * 2 + " -> int:\r")  # the old words stand there; the last letters go
        edited = plain(terminal.expect("tok/s.*> "))
        assert "def add(a, b) -> int:" in edited

        terminal.type("/edit\r")
        terminal.expect("edit> ")
        terminal.interrupt("nothing was changed.*> ")

        terminal.type("/set max_tokens 480\r")
        terminal.expect("> ")
        terminal.type("\x1b[A" * 3 + "\r")  # up, to a line that was typed before
        terminal.expect(r"def add\(a, b\) -> int:.{60}")
        terminal.type(CTRL_C)
        assert "stopped" in plain(terminal.expect("tok/s.*> "))
        terminal.type("/stats\r")
        assert "answers   3" in plain(terminal.expect("time .*> "))
        terminal.type('"""\rdef f():\r    pass\r"""\r')
        terminal.expect("pass.{40}")
        terminal.type(CTRL_C)
        terminal.expect("stopped.*> ")
        terminal.type("/quit\r")
        assert terminal.leave() == 0


def test_no_color_is_respected_and_ctrl_d_leaves() -> None:
    with Terminal(*PAIR, "--max-tokens", "12", no_color=True) as terminal:
        before = terminal.expect("> ")
        terminal.type("def add(a, b):\r")
        answer = terminal.expect("tok/s.*> ")
        assert not re.search(r"\x1b\[[0-9;]*m", before + answer)
        assert "of 4 drafts accepted per round" in answer
        terminal.type(CTRL_D)
        assert terminal.leave() == 0


def test_ctrl_c_at_the_prompt_leaves_with_130() -> None:
    with Terminal("chat", "pebble", "--method", "lookup") as terminal:
        terminal.expect("> ")
        terminal.type("half a line")
        terminal.expect("half a line")
        assert terminal.interrupted() == 130
        assert "Traceback" not in terminal.rest
