"""A chat without its terminal: what was said, the settings of the next answer, and what all answers cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from surefoot.cli.chat.transcript import Transcript, as_prompt
from surefoot.engine import Engine
from surefoot.errors import OptionError, PromptError, TokenizerError
from surefoot.options import MAX_SEED, SamplingParams, SpeculativeOptions
from surefoot.request import Result, Stream
from surefoot.stats import Seconds, Stats
from surefoot.text import Tokenizer
from surefoot.types import Tokens


@dataclass(slots=True)
class Totals:
    """What all answers of a session came to.

    Attributes:
        answers: answers given, those that were taken back or given anew included.
        tokens: tokens of those answers.
        prompt_tokens: tokens of their prompts.
        cached_tokens: prompt tokens that were in the cache already.
        rounds: target forwards after the prefills.
        drafted: drafted tokens the target was shown.
        accepted: emitted tokens that had been drafted.
        drafted_by_position: as in ``Stats``.
        accepted_by_position: as in ``Stats``.
        fallbacks: answers in which the drafter failed and was dropped.
        seconds: by phase.
    """

    answers: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    fallbacks: int = 0
    seconds: Seconds = field(default_factory=Seconds)

    def add(self, result: Result) -> None:
        """Counts one answer."""
        stats: Stats = result.stats
        self.answers += 1
        self.tokens += len(result.tokens)
        self.prompt_tokens += result.usage.prompt_tokens
        self.cached_tokens += result.usage.cached_tokens
        self.rounds += stats.rounds
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.fallbacks += stats.fallbacks
        self.seconds.add(stats.seconds)
        _add_counts(self.drafted_by_position, stats.drafted_by_position)
        _add_counts(self.accepted_by_position, stats.accepted_by_position)


def _add_counts(totals: list[int], counts: tuple[int, ...]) -> None:
    totals.extend([0] * (len(counts) - len(totals)))
    for position, count in enumerate(counts):
        totals[position] += count


class Session:
    """One chat with one engine.

    ``say``, ``regenerate`` and ``edit`` start an answer and return its stream; ``keep`` takes the answer, whole or
    stopped, into the transcript. Until then the session is what it was before, so an answer that cannot be given loses
    nothing.

    Each answer is the one ``Engine.generate`` gives to the whole prompt: how much of it the cache already holds changes
    the time alone.

    Args:
        engine: what answers; it needs a tokenizer.
        sampling: how tokens are drawn.
        options: how they are guessed while ``speculating`` is on.
        completing: the transcript is one text that the model goes on with; no chat template is used.
        system: what stands before all that is said.
    """

    def __init__(
        self,
        engine: Engine,
        sampling: SamplingParams,
        options: SpeculativeOptions,
        *,
        completing: bool = False,
        system: str = "",
    ) -> None:
        self._engine = engine
        self._tokenizer = _tokenizer_of(engine, completing)
        self._conversation = engine.conversation()
        self._pending = Transcript()
        self._prompt: Tokens = ()
        self._attempt = 0
        self.context_length = engine.target.context_length
        self.completing = completing
        self.sampling = sampling
        self.options = options
        self.speculating = True
        self.has_drafter = engine.drafter is not None and engine.drafter.method != "none"
        self.transcript = Transcript().with_system(system)
        self.totals = Totals()

    @property
    def speculative(self) -> SpeculativeOptions:
        """How the next answer is guessed."""
        return self.options if self.speculating and self.has_drafter else replace(self.options, num_draft=0)

    def say(self, text: str) -> Stream:
        """Starts the answer to what the user says next.

        Raises:
            RequestError: it cannot be answered as asked; the session is as it was.
        """
        return self._answer(self.transcript.say("user", text), 0)

    def regenerate(self) -> Stream:
        """Starts another answer to what was said last, drawn from the next seed."""
        return self._answer(self.transcript.unanswered(), self._attempt + 1)

    def edit(self, text: str, number: int | None = None) -> Stream:
        """Starts the answer to the user's message ``number`` (None: the last), which now reads ``text``.

        What followed it is dropped once the answer is kept.
        """
        return self._answer(self.transcript.edited(text, number), 0)

    def keep(self, stream: Stream) -> Result:
        """Closes the stream ``say``, ``regenerate`` or ``edit`` gave, and takes its answer into the transcript."""
        stream.close()
        result = stream.result
        self.transcript = self._pending.say("assistant", result.text)
        self.totals.add(result)
        return result

    def plainly(self, result: Result) -> Result:
        """The answer that was kept last, given again without drafts and from nothing, as long as it was."""
        sampling = replace(self.sampling, seed=result.seed, max_tokens=len(result.tokens))
        return self._engine.generate(self._prompt, sampling, speculative=replace(self.options, num_draft=0))

    def encode(self, transcript: Transcript) -> Tokens:
        """The ids the model reads."""
        if self.completing:
            return self._tokenizer.encode(transcript.text)
        return self._tokenizer.chat(as_prompt(transcript))

    def _answer(self, transcript: Transcript, attempt: int) -> Stream:
        tokens = self.encode(transcript)
        if len(tokens) >= self.context_length:
            raise PromptError(
                f"the context is full: with this message the prompt has {len(tokens)} tokens; expected fewer than the "
                f"model's context of {self.context_length}. Nothing is lost: /undo takes back the last message with "
                "its answer, /clear all of them, /save FILE keeps them"
            )
        stream = self._conversation.stream(tokens, self._sampling(attempt), speculative=self.speculative)
        self._pending, self._prompt, self._attempt = transcript, tokens, attempt
        return stream

    def _sampling(self, attempt: int) -> SamplingParams:
        """Another attempt at a message takes another seed: a drawn one, or the next after the one that was set."""
        if self.sampling.seed is None:
            return self.sampling
        return replace(self.sampling, seed=(self.sampling.seed + attempt) % (MAX_SEED + 1))


def _tokenizer_of(engine: Engine, completing: bool) -> Tokenizer:
    if engine.tokenizer is None:
        raise TokenizerError("the model has no tokenizer.json; a chat is text, so expected one beside the weights")
    if not completing and engine.tokenizer.chat_template is None:
        raise OptionError(
            "found no chat template (in tokenizer_config.json or chat_template.jinja); expected one for a chat. "
            "With --raw the model goes on with the text you type"
        )
    return engine.tokenizer
