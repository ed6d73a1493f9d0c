"""Every error Surefoot raises on purpose. Each message says what was found, what was expected, and what to do.

::

    SurefootError
    ├── LoadError                a model or drafter cannot be loaded
    │   ├── ModelNotFoundError   no such directory, bundled name or hub id
    │   ├── UnsupportedModelError  a family, field or format outside what is implemented
    │   ├── CheckpointError      weights or config files that are damaged, incomplete or contradict each other
    │   └── PairError            this drafter cannot serve this target
    ├── RequestError             a request that cannot be served as asked (also a ValueError)
    │   ├── OptionError          an option out of range, or options that exclude each other
    │   ├── PromptError          a prompt that is empty, too long, or holds ids outside the vocabulary
    │   └── TokenizerError       text was given or asked for, and there is no tokenizer
    ├── SamplingError            a row of logits no token can be drawn from
    ├── CacheError               a cache used against its contract
    │   ├── CapacityError        more tokens than the cache was made for
    │   └── BrokenCacheError     the cache was interrupted inside a commit
    ├── TargetError              the target failed, or was called with wrong counts, ranges or shapes
    ├── DrafterError             a drafter failed; a request drops it and goes on plainly, between turns it is told
    └── TrainingError            a training run that cannot begin, go on, or be saved
"""

from __future__ import annotations


class SurefootError(Exception):
    """The root of all errors raised on purpose."""


class LoadError(SurefootError):
    """A model or drafter cannot be loaded."""


class ModelNotFoundError(LoadError):
    """No such directory, bundled name or hub id."""


class UnsupportedModelError(LoadError):
    """A family, a config field or a file format outside what is implemented."""


class CheckpointError(LoadError):
    """Weights or config files that are damaged, incomplete or contradict each other."""


class PairError(LoadError):
    """This drafter cannot serve this target."""


class RequestError(SurefootError, ValueError):
    """A request that cannot be served as asked."""


class OptionError(RequestError):
    """An option out of range, or options that exclude each other."""


class PromptError(RequestError):
    """A prompt that is empty, too long, or holds ids outside the vocabulary."""


class TokenizerError(RequestError):
    """Text was given or asked for, and there is no tokenizer."""


class SamplingError(SurefootError):
    """A row of logits no token can be drawn from."""


class CacheError(SurefootError):
    """A cache used against its contract."""


class CapacityError(CacheError):
    """More tokens than the cache was made for."""


class BrokenCacheError(CacheError):
    """The cache was interrupted inside a commit; it cannot be used further."""


class TargetError(SurefootError):
    """The target failed, or was called with wrong counts, ranges or shapes."""


class DrafterError(SurefootError):
    """A drafter failed; a request drops it and goes on plainly, between the turns of a conversation it is told."""


class TrainingError(SurefootError):
    """A training run that cannot begin, go on, or be saved."""
