"""Who sees a run go by, and may stop it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One step, for whoever watches.

    Attributes:
        step: steps taken, this one included.
        num_steps: of the whole run.
        loss: the mean loss of what this step learnt from, in nats.
        accepted: guesses accepted per held-out block when it was last looked at; None before that.
        evaluated: whether it was looked at after this very step.
    """

    step: int
    num_steps: int
    loss: float
    accepted: float | None
    evaluated: bool


class Watcher:
    """Looks away. ``stopping`` is asked between steps and answers."""

    def noticed(self, note: str) -> None:
        """Something is not as it was when the run was begun."""

    def answering(self, done: int, total: int) -> None:
        """So many answers were written."""

    def trained(self, report: Report) -> None:
        """A step was taken."""

    def stopping(self) -> bool:
        """Whether to save and stop."""
        return False
