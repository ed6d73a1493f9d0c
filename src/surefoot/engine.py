"""Text in, events out: one target, with or without a drafter."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from surefoot.control.policy import FixedPolicy
from surefoot.decode import Decoding
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDrafts
from surefoot.errors import OptionError, PromptError, TokenizerError
from surefoot.options import MAX_SEED, SamplingParams, SpeculativeOptions
from surefoot.protocols import DrafterModel, Target
from surefoot.request import Request, Result, Stream
from surefoot.sampling import RequestSampler
from surefoot.stops import Limits, NoText, OnToken, RequestStops
from surefoot.text import StreamDecoder, Tokenizer
from surefoot.types import Tokens
from surefoot.verify import verify, verify_reject

Message: TypeAlias = Mapping[str, object]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages (``{"role": ..., "content": ...}``)."""

_GREEDY = SamplingParams()
_SPECULATE = SpeculativeOptions()


class Engine:
    """Serves requests on a target. Any objects of the protocols take part; token ids need no tokenizer.

    Requests may be interleaved: each stream has its own cache, sampler and drafter.

    Args:
        target: the model whose draws are the answer.
        drafter: what guesses; None decodes plainly.
        tokenizer: turns text and chat into ids and back.
        eos_token_ids: ids that end an answer.
        sampling_defaults: the model's own sampling parameters, for whoever asks for them.
        notes: what a user should know about how the models were loaded.
    """

    def __init__(
        self,
        target: Target,
        drafter: DrafterModel | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        eos_token_ids: Collection[int] = (),
        sampling_defaults: SamplingParams = _GREEDY,
        notes: Sequence[str] = (),
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.tokenizer = tokenizer
        self.eos_token_ids = tuple(eos_token_ids)
        self.sampling_defaults = sampling_defaults
        self.notes = tuple(notes)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        speculative: SpeculativeOptions = _SPECULATE,
        reference: str | Sequence[int] | None = None,
        on_token: OnToken | None = None,
    ) -> Result:
        """Answers a prompt: the events of :meth:`stream`, read to their end."""
        stream = self.stream(prompt, params, speculative=speculative, reference=reference, on_token=on_token)
        with stream:
            for _ in stream:
                pass
        return stream.result

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        speculative: SpeculativeOptions = _SPECULATE,
        reference: str | Sequence[int] | None = None,
        on_token: OnToken | None = None,
    ) -> Stream:
        """Answers a prompt token by token.

        Args:
            prompt: text (the tokenizer adds its special tokens once), ids as they are, or chat messages.
            params: how tokens are drawn and when the request ends.
            speculative: how many tokens are drafted and how they are accepted.
            reference: a further text for the lookup drafter: a predicted answer, or the file being edited.
            on_token: called with each event before its token is committed; False ends the request after that token.

        Raises:
            RequestError: the prompt or an option cannot be served as asked. Nothing has been computed then.
        """
        tokens = self.encode(prompt)
        self._check_ids(params)
        drafter = self._drafter_for(speculative, reference)
        seed = secrets.randbelow(MAX_SEED) if params.seed is None else params.seed
        room = self.target.context_length - len(tokens)
        stop_ids = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(self.eos_token_ids)
        )
        limits = Limits(
            stop_ids=stop_ids,
            max_tokens=min(params.max_tokens, room),
            at_context_end=room < params.max_tokens,
            min_tokens=params.min_tokens,
        )
        stops = RequestStops(limits, StreamDecoder(self.tokenizer) if self.tokenizer else NoText(), on_token)
        sampler = RequestSampler(
            params,
            tokens,
            seed=seed,
            vocab_size=self.target.vocab_size,
            stop_ids=stop_ids,
            speculative=speculative,
        )
        rejecting = speculative.acceptance == "reject" and not params.greedy
        decoding = Decoding(
            cache=self.target.new_cache(len(tokens) + limits.max_tokens + speculative.num_draft),
            drafter=drafter.start(self.target),
            sampler=sampler,
            stops=stops,
            policy=FixedPolicy(speculative.num_draft),
            verify=verify_reject if rejecting else verify,
            vocab_size=self.target.vocab_size,
        )
        return Stream(Request(prompt=tokens, seed=seed, target=self.target, stops=stops, decoding=decoding))

    def encode(self, prompt: Prompt) -> Tokens:
        """The ids a prompt becomes, checked against vocabulary and context.

        Raises:
            TokenizerError: text or chat without a tokenizer.
            PromptError: nothing to read, an id outside the vocabulary, or no room left for an answer.
        """
        if isinstance(prompt, str):
            tokens = self._tokenizer_for("a text prompt").encode(prompt)
        elif prompt and isinstance(prompt[0], Mapping):
            tokens = self._tokenizer_for("a chat prompt").chat([m for m in prompt if isinstance(m, Mapping)])
        else:
            tokens = _as_ids(prompt)
        if not tokens:
            raise PromptError("the prompt has no tokens; expected at least one")
        size, context = self.target.vocab_size, self.target.context_length
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise PromptError(f"the prompt holds id {wrong}; the vocabulary has ids 0 to {size - 1}")
        if len(tokens) >= context:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens; the model's context of {context} leaves room for {context - 1} "
                "and an answer; shorten the prompt"
            )
        return tokens

    def _drafter_for(self, speculative: SpeculativeOptions, reference: str | Sequence[int] | None) -> DrafterModel:
        drafter = self.drafter if self.drafter is not None and speculative.num_draft else NoDrafts()
        if reference is None:
            return drafter
        if not isinstance(self.drafter, Lookup):
            raise OptionError(
                f"a reference text was given and the drafter is {type(self.drafter).__name__}; it is read by the "
                "lookup drafter alone: load the engine with drafter='lookup'"
            )
        if drafter is not self.drafter:
            return drafter
        if isinstance(reference, str):
            reference = self._tokenizer_for("a reference text").encode(reference, add_special_tokens=False)
        return Lookup(min_match=self.drafter.min_match, reference=_as_ids(reference))

    def _tokenizer_for(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(
                f"{what} was given and the engine has no tokenizer; give token ids, or load one with it"
            )
        return self.tokenizer

    def _check_ids(self, params: SamplingParams) -> None:
        """Refuses ids no token has, wherever a request names them."""
        named = {
            "logit_bias": tuple(params.logit_bias),
            "forbidden_tokens": params.forbidden_tokens,
            "allowed_tokens": params.allowed_tokens or (),
            "stop_token_ids": params.stop_token_ids,
        }
        for option, ids in named.items():
            wrong = [token for token in ids if token >= self.target.vocab_size]
            if wrong:
                raise OptionError(
                    f"{option} names id {wrong[0]}; the vocabulary has ids 0 to {self.target.vocab_size - 1}"
                )


def _as_ids(ids: Sequence[object]) -> Tokens:
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise PromptError(f"found {token!r} among token ids; expected integers, text, or chat messages")
    return tuple(token for token in ids if isinstance(token, int))
