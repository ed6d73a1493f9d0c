"""From a checked request to everything that carries it out: sampler, stops, drafter and cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from surefoot.control.policy import FixedPolicy
from surefoot.decode import Decoding
from surefoot.drafters.predicted import PredictedDrafter
from surefoot.logprobs import LogprobScorer, PromptLogprobs
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.protocols import Cache, Drafter, DrafterModel, Target
from surefoot.request import Request
from surefoot.sampling import RequestSampler
from surefoot.stats import RoundRecord
from surefoot.stops import Limits, NoText, OnToken, RequestStops, TextStream
from surefoot.text import StreamDecoder, Tokenizer
from surefoot.types import Tokens
from surefoot.verify import verify, verify_reject

Message: TypeAlias = Mapping[str, object]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages (``{"role": ..., "content": ...}``)."""

OnRound = Callable[[RoundRecord], None]
"""Called with a record of each round, after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request.

    Attributes:
        prompt: its ids.
        params: how tokens are drawn and when the request ends.
        seed: the one that is used, whether it was given or drawn.
        speculative: how it speculates.
        drafter: what guesses.
        prediction: ids of a predicted answer; none where nothing shall be drafted.
        eos_ids: the model's ids that end it.
        text_before: ids whose text the answer's goes on from; none for a chat, whose answers are texts of their own.
        on_token, on_round: who watches.
    """

    prompt: Tokens
    params: SamplingParams
    seed: int
    speculative: SpeculativeOptions
    drafter: DrafterModel
    prediction: Tokens
    eos_ids: frozenset[int]
    text_before: Tokens = ()
    on_token: OnToken | None = None
    on_round: OnRound | None = None

    def sample(self, index: int) -> Asked:
        """The same request with another sample index."""
        return replace(self, params=replace(self.params, sample_index=index))

    @property
    def spare(self) -> int:
        """Tentative tokens a round may have beyond the sequence."""
        return self.speculative.num_draft + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """What all requests of an engine are opened with."""

    target: Target
    tokenizer: Tokenizer | None

    def length(self, asked: Asked) -> int:
        """Most tokens the sequence can have, the prompt's included."""
        return min(len(asked.prompt) + asked.params.max_tokens, self.target.context_length)

    def open(self, asked: Asked) -> Request:
        """A request with a cache and a drafter of its own."""
        cache = self.target.new_cache(self.length(asked), spare=asked.spare)
        return self.resume(asked, cache, asked.drafter.start(self.target), keeps_drafter=False)

    def resume(self, asked: Asked, cache: Cache, drafter: Drafter, *, keeps_drafter: bool) -> Request:
        """A request on a cache that holds a beginning of its prompt, which ``drafter`` has observed too."""
        params, speculative = asked.params, asked.speculative
        num_new = self.length(asked) - len(asked.prompt)
        limits = Limits(
            stop_ids=frozenset(params.stop_token_ids),
            eos_ids=asked.eos_ids,
            stop=params.stop,
            max_tokens=num_new,
            at_context_end=num_new < params.max_tokens,
            min_tokens=params.min_tokens,
        )
        stops = RequestStops(limits, self._text(asked), asked.on_token, scorer=self._scorer(params.logprobs))
        sampler = RequestSampler(
            params,
            asked.prompt,
            seed=asked.seed,
            vocab_size=self.target.vocab_size,
            stop_ids=asked.eos_ids.union(params.stop_token_ids),
            speculative=speculative,
        )
        if asked.prediction:
            drafter = PredictedDrafter(asked.prediction, drafter, num_observed=cache.length)
        prompt_scorer = self._scorer(params.prompt_logprobs)
        prompt_logprobs = PromptLogprobs(prompt_scorer) if prompt_scorer else None
        rejecting = speculative.acceptance == "reject" and not params.greedy
        decoding = Decoding(
            cache=cache,
            drafter=drafter,
            sampler=sampler,
            stops=stops,
            policy=FixedPolicy(speculative.num_draft, speculative.tree_width),
            verify=verify_reject if rejecting else verify,
            vocab_size=self.target.vocab_size,
            keeps_drafter=keeps_drafter,
            on_prompt=prompt_logprobs.read if prompt_logprobs else None,
            on_round=asked.on_round,
        )
        return Request(
            prompt=asked.prompt,
            seed=asked.seed,
            sample_index=params.sample_index,
            num_cached=cache.length,
            target=self.target,
            stops=stops,
            decoding=decoding,
            prompt_logprobs=prompt_logprobs,
        )

    def _text(self, asked: Asked) -> TextStream:
        return StreamDecoder(self.tokenizer, after=asked.text_before) if self.tokenizer else NoText()

    def _scorer(self, num_top: int | None) -> LogprobScorer | None:
        if num_top is None:
            return None
        return LogprobScorer(num_top=num_top, vocab_size=self.target.vocab_size)
