"""Text in, events out: one target, with or without a drafter."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from surefoot.conversation import Conversation
from surefoot.drafters import DRAFTERS
from surefoot.drafters.none import NoDrafts
from surefoot.drafters.stacked import Stacked
from surefoot.errors import OptionError, PromptError, TokenizerError
from surefoot.opening import Asked, Message, OnRound, Opener, Prompt
from surefoot.options import MAX_SEED, SamplingParams, SpeculativeOptions
from surefoot.protocols import DrafterModel, Target
from surefoot.request import Result, Stream
from surefoot.samples import Samples
from surefoot.stops import OnToken
from surefoot.text import Tokenizer
from surefoot.types import Tokens

_GREEDY = SamplingParams()
_SPECULATE = SpeculativeOptions()


class Engine:
    """Serves requests on a target. Any objects of the protocols take part; token ids need no tokenizer.

    Requests may be interleaved: each stream has its own cache, sampler and drafter.

    Args:
        target: the model whose draws are the answer.
        drafter: what guesses; None guesses nothing by itself.
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
        self.drafter: DrafterModel = NoDrafts() if drafter is None else drafter
        self.tokenizer = tokenizer
        self.eos_token_ids = tuple(eos_token_ids)
        self.sampling_defaults = sampling_defaults
        self.notes = tuple(notes)
        self._opener = Opener(target=target, tokenizer=tokenizer)
        drafters: list[DrafterModel] = [make() for make in DRAFTERS.values()]
        if isinstance(self.drafter, Stacked):
            drafters.append(self.drafter.then)
        self._by_method = {one.method: one for one in (*drafters, self.drafter)}

    @property
    def methods(self) -> tuple[str, ...]:
        """What a request may name in ``SpeculativeOptions.method``."""
        return tuple(self._by_method)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        speculative: SpeculativeOptions = _SPECULATE,
        prediction: str | Sequence[int] | None = None,
        on_token: OnToken | None = None,
        on_round: OnRound | None = None,
    ) -> Result:
        """Answers a prompt: the events of :meth:`stream`, read to their end."""
        return self.stream(
            prompt, params, speculative=speculative, prediction=prediction, on_token=on_token, on_round=on_round
        ).read()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        speculative: SpeculativeOptions = _SPECULATE,
        prediction: str | Sequence[int] | None = None,
        on_token: OnToken | None = None,
        on_round: OnRound | None = None,
    ) -> Stream:
        """Answers a prompt token by token.

        Args:
            prompt: text (the tokenizer adds its special tokens once), ids as they are, or chat messages. An answer's
                text goes on from that of text or ids; the answer to a chat is a text of its own.
            params: how tokens are drawn and when the request ends.
            speculative: how tokens are drafted and accepted.
            prediction: a text much of which the answer is expected to repeat, such as the file being edited: drafted
                from wherever the answer follows it, before the drafter is asked.
            on_token: called with each event before its token is committed; False ends the request after that token.
            on_round: called with a record of each round, after it.

        Raises:
            RequestError: the prompt or an option cannot be served as asked. Nothing has been computed then.
        """
        asked = self.ask(prompt, params, speculative, prediction)
        return Stream(self._opener.open(replace(asked, on_token=on_token, on_round=on_round)))

    def samples(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        n: int,
        speculative: SpeculativeOptions = _SPECULATE,
        prediction: str | Sequence[int] | None = None,
    ) -> Samples:
        """Several answers to one prompt, which is read once.

        Sample ``i`` is the answer of a single request of the same seed whose ``sample_index`` is ``i`` more than that
        of ``params``.

        Raises:
            RequestError: as for :meth:`stream`, or ``n`` is less than 1.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise OptionError(f"n is {n!r}; expected an integer of at least 1")
        asked = self.ask(prompt, params, speculative, prediction)
        requests = [self._opener.open(asked)]
        cache = requests[0].decoding.cache
        try:
            for i in range(1, n):
                drafter = asked.drafter.start(self.target)
                sample = asked.sample(params.sample_index + i)
                requests.append(self._opener.resume(sample, cache, drafter, keeps_drafter=False))
        except BaseException:
            Samples(requests).close()
            raise
        return Samples(requests)

    def conversation(self) -> Conversation:
        """A conversation, whose turns keep what they share with the turns before."""
        return Conversation(self._opener, self.ask)

    def ask(
        self,
        prompt: Prompt,
        params: SamplingParams,
        speculative: SpeculativeOptions,
        prediction: str | Sequence[int] | None,
    ) -> Asked:
        """A request in ids, checked; its seed drawn where none was given.

        Raises:
            RequestError: as for :meth:`stream`.
        """
        tokens = self.encode(prompt)
        self._check_ids(params)
        if isinstance(prediction, str):
            prediction = self._tokenizer_for("a prediction").encode(prediction, add_special_tokens=False)
        off = speculative.num_draft == 0 or speculative.method == "none"
        predicted = () if off else self._checked(_as_ids(prediction or ()), "the prediction")
        if params.stop:
            self._tokenizer_for("a stop string")
        return Asked(
            prompt=tokens,
            params=params,
            seed=secrets.randbelow(MAX_SEED) if params.seed is None else params.seed,
            speculative=speculative,
            drafter=self._drafter_for(speculative),
            prediction=predicted,
            eos_ids=frozenset(() if params.ignore_eos else self.eos_token_ids),
            text_before=() if _is_chat(prompt) else tokens,
        )

    def encode(self, prompt: Prompt) -> Tokens:
        """The ids a prompt becomes, checked against vocabulary and context.

        Raises:
            TokenizerError: text or chat without a tokenizer.
            PromptError: nothing to read, an id outside the vocabulary, or no room left for an answer.
        """
        if isinstance(prompt, str):
            tokens = self._tokenizer_for("a text prompt").encode(prompt)
        elif _is_chat(prompt):
            messages = _as_messages(prompt)
            tokens = self._tokenizer_for("a chat prompt").chat(messages)
        else:
            tokens = _as_ids(prompt)
        if not tokens:
            raise PromptError("the prompt has no tokens; expected at least one")
        self._checked(tokens, "the prompt")
        context = self.target.context_length
        if len(tokens) >= context:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens; the model's context of {context} leaves room for {context - 1} "
                "and an answer; shorten the prompt"
            )
        return tokens

    def _drafter_for(self, speculative: SpeculativeOptions) -> DrafterModel:
        if speculative.num_draft == 0:
            return self._by_method["none"]
        method = speculative.method or self.drafter.method
        if method not in self._by_method:
            raise OptionError(
                f"method is {method!r}; this engine drafts with one of {', '.join(self.methods)}. Load the drafter you "
                "want with the engine"
            )
        return self._by_method[method]

    def _checked(self, tokens: Tokens, what: str) -> Tokens:
        size = self.target.vocab_size
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise PromptError(f"{what} holds id {wrong}; the vocabulary has ids 0 to {size - 1}")
        return tokens

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


def _is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _as_messages(messages: Sequence[object]) -> list[Message]:
    for message in messages:
        if not isinstance(message, Mapping):
            raise PromptError(f"found {message!r:.80} among chat messages; expected each to have a role and content")
    return [message for message in messages if isinstance(message, Mapping)]


def _as_ids(ids: Sequence[object]) -> Tokens:
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise PromptError(f"found {token!r} among token ids; expected integers, text, or chat messages")
    return tuple(token for token in ids if isinstance(token, int))
