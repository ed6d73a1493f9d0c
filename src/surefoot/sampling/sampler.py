"""Draws one request's tokens: the target's own, and the drafter's guesses under the same processors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from surefoot import native
from surefoot.errors import SamplingError
from surefoot.noise import FloatArray, IntArray, PositionNoise
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.protocols import Choices
from surefoot.sampling import processors, race
from surefoot.sampling.history import Occurrences
from surefoot.sampling.processors import Support
from surefoot.sampling.race import Narrow, Race, Row
from surefoot.streams import Streams

_SPECULATE = SpeculativeOptions()

FEW = 8192
"""Tokens of a row so short that its noise costs less than what it takes to do without."""
FEW_TO_SORT = 1024
"""The same where top-k or top-p look for the likeliest."""

UNDRAWABLE = -1
"""What :meth:`RequestSampler.draw_rows` gives for a row no token can be drawn from."""


class RequestSampler:
    """The :class:`surefoot.protocols.Sampler` of one request.

    A row may be narrower than the vocabulary (a drafter's) or wider (padding, never drawn). Rows are processed on the
    host in fp64, so a token depends on its row alone and not on where or beside what it was computed.
    """

    def __init__(
        self,
        params: SamplingParams,
        history: Sequence[int],
        *,
        seed: int,
        vocab_size: int,
        stop_ids: Collection[int] = (),
        speculative: SpeculativeOptions = _SPECULATE,
        choices: Choices | None = None,
    ) -> None:
        """``stop_ids`` are all that end the request, EOS included: what ``min_tokens`` forbids.

        ``choices`` replaces the request's own streams.
        """
        self._params = params
        self._vocab_size = vocab_size
        self._by_choice = speculative.acceptance == "reject" and not params.greedy
        self._draft_sampling = speculative.draft_sampling
        self._length = len(history)
        self._num_emitted = 0
        self._seen = Occurrences(history)
        self._output = Occurrences()
        self._noise = PositionNoise(seed, params.sample_index, vocab_size)
        self._race = Race(self._noise)
        self._streams = Streams(seed, params.sample_index)
        self._choices: Choices = self._streams if choices is None else choices
        self._bias_ids, self._bias = _bias_arrays(params.logit_bias)
        self._forbidden = _ids(params.forbidden_tokens)
        self._allowed = None if params.allowed_tokens is None else _ids(params.allowed_tokens)
        self._stop_ids = _ids(sorted(stop_ids))
        self._edits_rows = (
            len(self._bias) > 0
            or params.repetition_penalty != 1
            or params.presence_penalty != 0
            or params.frequency_penalty != 0
            or len(self._forbidden) > 0
            or self._allowed is not None
        )
        self._is_greedy = params.greedy
        self._is_argmax = self._is_greedy and not self._edits_rows
        self._num_edited = params.min_tokens if len(self._stop_ids) > 0 else 0
        self._best_tokens = native.BestTokens()

    @property
    def choices(self) -> Choices:
        """The request's own streams of randomness, used by ``acceptance="reject"`` alone."""
        return self._choices

    @property
    def greedy_rows(self) -> bool:
        """Whether every draw is the plain argmax of its row, so that :meth:`draw_rows` may take them all at once."""
        return self._is_argmax and self._num_emitted >= self._num_edited

    def advance(self, tokens: Sequence[int]) -> None:
        """Appends emitted tokens to the history and opens the next round's streams."""
        count = len(tokens)
        self._length += count
        self._num_emitted += count
        if self._edits_rows:
            self._seen.add(tokens)
            self._output.add(tokens)
        if not self._is_greedy:  # which draws nothing at random
            self._noise.forget_before(self._length)
            self._streams.next_round()

    def draw_rows(self, logits: Tensor) -> list[int]:
        """The greedy tokens of rows ``[N, W]``, ties to the lowest id; one transfer.

        A row with NaN, +inf, or nothing but -inf gives ``UNDRAWABLE``: only rows the target walks to matter.
        """
        return self._best_tokens.of(logits, self._vocab_size)

    def draw(self, logits: Tensor, prefix: Sequence[int] = ()) -> int:
        """The target's own token for the position after ``prefix``, from its row ``[W]``.

        Raises:
            SamplingError: the row holds NaN or +inf, or no token is possible.
        """
        if self._by_choice:
            return self._choices.categorical(self.law(logits, prefix), len(prefix), "target")
        return self._best(logits, prefix) if self._params.greedy else self._noisy_best(logits, prefix)

    def draft(self, logits: Tensor, prefix: Sequence[int], *, shared_noise: bool) -> tuple[int, Tensor | None]:
        """A drafter's guess from its own row ``[W]``: the argmax, or the draw under the shared position noise, in whose
        place a sample is drawn with its law ``[V]`` where the request's acceptance is ``reject``.

        ``shared_noise`` is the drafter's own default; the request's ``draft_sampling`` overrides it.
        """
        if self._draft_sampling is not None:
            shared_noise = self._draft_sampling == "shared"
        if shared_noise and self._by_choice:
            law = self.law(logits, prefix)
            return self._choices.categorical(law, len(prefix) + 1, "draft"), law
        if shared_noise and not self._params.greedy:
            return self._noisy_best(logits, prefix), None
        return self._best(logits, prefix), None

    def law(self, logits: Tensor, prefix: Sequence[int] = ()) -> Tensor:
        """The processed probabilities of the position after ``prefix``: fp64 ``[V]`` on the host."""
        law = np.zeros(self._vocab_size)
        if self._params.greedy:
            law[self._best(logits, prefix)] = 1
            return torch.from_numpy(law)
        support = self._support(logits, prefix)
        picked = slice(len(support.logits)) if support.ids is None else support.ids
        law[picked] = support.probabilities()
        return torch.from_numpy(law)

    def _best(self, logits: Tensor, prefix: Sequence[int]) -> int:
        """The lowest id among the likeliest; temperature and truncation cannot change it."""
        if self.greedy_rows:
            (token,) = self.draw_rows(logits.unsqueeze(0))
            if token == UNDRAWABLE:
                raise undrawable(f"position {self._position(prefix)}")
            return token
        return int(self._edited(logits, prefix).argmax())

    def _noisy_best(self, logits: Tensor, prefix: Sequence[int]) -> int:
        """The Gumbel-max draw under the position's noise."""
        params = self._params
        few = FEW_TO_SORT if params.top_k > 0 or params.top_p < 1 else FEW
        if min(logits.shape[0], self._vocab_size) <= few:
            return self.noisy_best_reference(logits, prefix)
        row, position = self._row(logits, prefix), self._position(prefix)
        support = token = None
        if params.top_k > 0:
            support = race.top_k(row, params.top_k)
        elif params.top_p >= 1 and params.min_p > 0:
            support = race.min_p(row, params.min_p)
        if support is not None:
            return self._noisy_best_of(self._truncated(support), position)
        if params.top_k == 0:
            token = self._race.winner(row, position, top_p=params.top_p, min_p=params.min_p)
        return self.noisy_best_reference(logits, prefix) if token is None else token

    def noisy_best_reference(self, logits: Tensor, prefix: Sequence[int]) -> int:
        """The Gumbel-max draw as it is defined: every processor and all noise over the whole row."""
        return self._noisy_best_of(self._support(logits, prefix), self._position(prefix))

    def _noisy_best_of(self, support: Support, position: int) -> int:
        if support.ids is None:
            noise = self._noise.row(position)[: len(support.logits)]
        else:
            noise = self._noise.at(position, support.ids)
        return support.token(int((support.logits + noise).argmax()))

    def _support(self, logits: Tensor, prefix: Sequence[int]) -> Support:
        """What temperature and truncation leave of a row."""
        params = self._params
        support = processors.with_temperature(self._edited(logits, prefix), params.temperature)
        if params.top_k > 0:
            support = processors.top_k(support, params.top_k)
        return self._truncated(support)

    def _truncated(self, support: Support) -> Support:
        """What top-p and min-p leave of what top-k left."""
        params = self._params
        if params.top_p < 1:
            support = processors.top_p(support, params.top_p)
        if params.min_p > 0:
            support = processors.min_p(support, params.min_p)
        return support

    def _row(self, logits: Tensor, prefix: Sequence[int]) -> Row:
        """The row with bias, penalties and forbidden tokens applied, in fp32 where nothing is."""
        temperature = self._params.temperature
        if self._edits_rows or logits.dtype == torch.float64 or self._forbids_stops(self._num_emitted + len(prefix)):
            return race.narrowed(self._edited(logits, prefix), temperature)
        narrow = np.ascontiguousarray(self._host(logits), dtype=np.float32)
        top = narrow.max().item()
        if not math.isfinite(top):
            raise undrawable(f"position {self._position(prefix)}")
        return Row(exact=narrow, narrow=narrow, top=top, temperature=temperature)

    def _host(self, logits: Tensor) -> Narrow | FloatArray:
        """The logits on the host, fp32 or fp64. Numpy converts further: torch's threads spin into the next forward."""
        row = logits.detach()[: self._vocab_size].cpu()
        array: Narrow | FloatArray = (row if row.dtype == torch.float64 else row.float()).numpy()
        return array

    def _edited(self, logits: Tensor, prefix: Sequence[int]) -> FloatArray:
        """The row in fp64 with bias, penalties and forbidden tokens applied; its largest entry is finite."""
        row = self._host(logits).astype(np.float64)
        self._check_drawable(row, prefix)
        params = self._params
        if len(self._bias) > 0:
            row = processors.add_bias(row, self._bias_ids, self._bias)
        if params.repetition_penalty != 1:
            seen, _ = self._seen.with_path(prefix)
            row = processors.penalise_repetition(row, seen, params.repetition_penalty)
        if params.presence_penalty != 0 or params.frequency_penalty != 0:
            ids, counts = self._output.with_path(prefix)
            row = processors.penalise_presence_and_frequency(
                row, ids, counts, params.presence_penalty, params.frequency_penalty
            )
        if len(self._forbidden) > 0:
            row = processors.forbid(row, self._forbidden)
        if self._allowed is not None:
            row = processors.allow_only(row, self._allowed)
        if self._forbids_stops(self._num_emitted + len(prefix)):
            row = processors.forbid(row, self._stop_ids)
        self._check_drawable(row, prefix)
        return row

    def _forbids_stops(self, num_generated: int) -> bool:
        return num_generated < self._num_edited

    def _position(self, prefix: Sequence[int]) -> int:
        return self._length + len(prefix)

    def _check_drawable(self, row: FloatArray, prefix: Sequence[int]) -> None:
        if not np.isfinite(row.max()):  # NaN passes through max
            raise undrawable(f"position {self._position(prefix)}")


def undrawable(place: str) -> SamplingError:
    """The error of a row without a token."""
    return SamplingError(
        f"the logits of {place} hold NaN or +inf, or leave no token possible; expected at least one finite "
        "logit after logit_bias, forbidden_tokens, allowed_tokens and min_tokens. Check the weights and these options"
    )


def _bias_arrays(bias: Mapping[int, float]) -> tuple[IntArray, FloatArray]:
    return _ids(tuple(bias)), np.array(tuple(bias.values()), dtype=np.float64)


def _ids(tokens: Sequence[int]) -> IntArray:
    return np.array(tokens, dtype=np.int64)
