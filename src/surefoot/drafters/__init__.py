"""Drafters: whatever guesses tokens. One file each; ``DRAFTERS`` names those that need no checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDrafts
from surefoot.protocols import DrafterModel

DRAFTERS: dict[str, Callable[[], DrafterModel]] = {"none": NoDrafts, "lookup": Lookup}
"""Drafters by name. Every other name given as a drafter is a model to load."""
