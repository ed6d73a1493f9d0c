"""Says what a target or drafter directory is, from file names, configs and headers alone: nothing of it is executed.

``describe`` chooses among ``models`` (whole models), ``heads`` (drafters and adapters) and ``gguf``.
"""

from surefoot.describe.description import Description, Fact
from surefoot.describe.place import describe

__all__ = ["Description", "Fact", "describe"]
