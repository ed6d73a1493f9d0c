"""Surefoot makes a local language model answer faster without changing its answers, by speculative decoding.

import surefoot

engine = surefoot.load("pebble", "pebble-draft")
print(engine.generate("def fibonacci(n):").text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surefoot.api import load
    from surefoot.engine import Engine
    from surefoot.errors import (
        BrokenCacheError,
        CacheError,
        CapacityError,
        CheckpointError,
        DrafterError,
        LoadError,
        ModelNotFoundError,
        OptionError,
        PairError,
        PromptError,
        RequestError,
        SamplingError,
        SurefootError,
        TargetError,
        TokenizerError,
        TrainingError,
        UnsupportedModelError,
    )
    from surefoot.options import SamplingParams, SpeculativeOptions

__version__ = "0.1.0"

__all__ = [
    "BrokenCacheError",
    "CacheError",
    "CapacityError",
    "CheckpointError",
    "DrafterError",
    "Engine",
    "LoadError",
    "ModelNotFoundError",
    "OptionError",
    "PairError",
    "PromptError",
    "RequestError",
    "SamplingError",
    "SamplingParams",
    "SpeculativeOptions",
    "SurefootError",
    "TargetError",
    "TokenizerError",
    "TrainingError",
    "UnsupportedModelError",
    "__version__",
    "load",
]

_HOMES = {"load": "api", "Engine": "engine", "SamplingParams": "options", "SpeculativeOptions": "options"}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used (PEP 562), so that ``import surefoot`` does not wait for torch."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    return getattr(import_module(f"surefoot.{_HOMES.get(name, 'errors')}"), name)
