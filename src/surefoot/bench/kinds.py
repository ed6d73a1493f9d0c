"""The built-in questions: four kinds of work that speculation finds easy, middling and hard, short enough for small
models.

Texts and code are our own. Each has a wording for chat models and one that a model without a chat template continues.
"""

from __future__ import annotations

from surefoot.bench.questions import Question

KINDS = ("completion", "edit", "copy", "free")
"""Code to be continued; code to be changed, with the old code as prediction; text to be repeated; open writing."""

_COMPLETIONS = {
    "stack": '''class Stack:
    """A last-in, first-out list of items."""

    def __init__(self, items=()):
        self._items = list(items)

    def push(self, item):
        """Put an item on top."""
        self._items.append(item)

    def pop(self):
        """Remove the top item and return it."""
''',
    "words": '''import re


def count_words(text):
    """Return a dictionary from each word of text, in lower case, to its number of occurrences."""
    counts = {}
    for word in re.findall(r"[a-z]+", text.lower()):
''',
    "parser": '''import argparse
import sys


def main(argv=None):
    """Read numbers from files, or from standard input, and print their sum."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("files", nargs="*", help="files with one number per line")
''',
}

_ACCOUNT = '''class Account:
    """Money of one owner."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
'''
_AVERAGE = """def average(values):
    total = 0
    count = 0
    for value in values:
        total += value
        count += 1
    if count == 0:
        raise ValueError("no values")
    return total / count


def spread(values):
    return max(values) - min(values)
"""
_READ_LINES = """def read_lines(path, encoding="utf-8"):
    lines = []
    with open(path, encoding=encoding) as file:
        for line in file:
            line = line.rstrip()
            if line:
                lines.append(line)
    return lines
"""
_EDITS = {
    "rename": ("Rename the method deposit to pay_in.", _ACCOUNT),
    "default": ("Return 0.0 instead of raising an error where there are no values.", _AVERAGE),
    "parameter": ("Add a parameter keep_empty=False that keeps empty lines.", _READ_LINES),
}

_TABLE = """name,kind,count,price
apple,fruit,12,0.40
bread,bakery,3,2.10
butter,dairy,5,1.95
carrot,vegetable,20,0.15
cheese,dairy,2,6.30
"""
_SETTINGS = """[server]
host = "127.0.0.1"
port = 8080
timeout_seconds = 30

[log]
level = "info"
file = "server.log"
"""
_STEPS = """1. Switch off the power at the wall.
2. Open the cover with a flat screwdriver.
3. Take out the old filter and rinse the frame.
4. Put in the new filter with the arrow pointing up.
5. Close the cover and switch the power on.
"""
_COPIES = {"table": _TABLE, "settings": _SETTINGS, "steps": _STEPS}

_FREE = {
    "lighthouse": (
        "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
        "The lighthouse keeper found the bottle on a grey morning in November. Inside it was a letter, and it began:",
    ),
    "bridge": (
        "Explain to a ten-year-old why bridges do not fall down.",
        "Why do bridges not fall down? Imagine that you lay a ruler across two books and press on its middle.",
    ),
    "letter": (
        "Write a letter to the town council that asks for a new bus stop near the school.",
        "Dear members of the council,\n\nmy neighbours and I would like to ask you for a new bus stop near the school.",
    ),
}


def builtin() -> list[Question]:
    """All built-in questions, kind by kind."""
    completions = [
        Question(
            name=name, kind="completion", turns=(f"Continue this Python code. Write only code.\n\n{code}",), raw=code
        )
        for name, code in _COMPLETIONS.items()
    ]
    edits = [
        Question(
            name=name,
            kind="edit",
            turns=(f"{wish} Change nothing else and write all of the code.\n\n{code}",),
            raw=f"# Before:\n{code}\n# After. {wish}\n",
            prediction=code,
        )
        for name, (wish, code) in _EDITS.items()
    ]
    copies = [
        Question(
            name=name,
            kind="copy",
            turns=(f"Repeat this text twice, exactly as it is.\n\n{text}",),
            raw=f"{text}\n# The same again:\n{text}\n# The same again:\n",
        )
        for name, text in _COPIES.items()
    ]
    free = [Question(name=name, kind="free", turns=(wish,), raw=opening) for name, (wish, opening) in _FREE.items()]
    return [*completions, *edits, *copies, *free]
