"""What a directory or file is, in words: a kind, facts, and whether this version can use it."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something known: ``name`` is a few words, ``value`` how it reads."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What lies somewhere.

    Attributes:
        path: where.
        kind: what it is, in a few words.
        facts: what its config and headers say.
        usable: whether this version can load it.
        verdict: as what it can be used, or why not.
        needs: what would have to be there or be done for it to be used; "" where it is usable.
        notes: what else a user should know.
    """

    path: str
    kind: str
    facts: tuple[Fact, ...]
    usable: bool
    verdict: str
    needs: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.usable or self.needs, self

    def as_json(self) -> dict[str, object]:
        """Itself as plain JSON values; the facts as one object."""
        return {**asdict(self), "facts": {fact.name: fact.value for fact in self.facts}}


def facts_of(**values: object) -> tuple[Fact, ...]:
    """Facts from keyword arguments, underscores as spaces; what is None or empty is left out."""
    return tuple(
        Fact(name=name.replace("_", " "), value=f"{value}") for name, value in values.items() if value not in (None, "")
    )


def count_in_words(count: int) -> str:
    """Parameters in the unit that suits them: ``873 k``, ``10.0 M``, ``8.03 B``."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:#.3g} {unit}"
    return str(count)
