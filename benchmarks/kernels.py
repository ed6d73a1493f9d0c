"""What a target costs beside its forwards, together with others, with a draft model, and in long contexts.

Ours alone, in this process, on models made here in the folder ``--cache``. Every figure is a median over turns, and
what is compared takes turns.

    python -m benchmarks.kernels --only draft outside
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import median
from time import perf_counter

import surefoot
from benchmarks.calls import beside, calls
from benchmarks.checkpoints import Kind, checkpoint
from benchmarks.common import rotated
from benchmarks.decode import kv_bytes
from benchmarks.figures import Aim, Figure, Findings, Options, prompts, run
from surefoot.decode import advance, prefill
from surefoot.engine import Engine
from surefoot.opening import Opener
from surefoot.options import DTypeName, SamplingParams, SpeculativeOptions
from surefoot.protocols import Cache, Target
from surefoot.request import Request, Result
from surefoot.tree import chain
from surefoot.types import Capture, Tokens

NUM_SEQUENCES = 8
CONTEXTS = (256, 2048, 8192)
LINEAR = Aim(at_most=1.1)
"""A context costs what reading it costs, a tenth allowed."""
_DTYPES: tuple[DTypeName, ...] = ("bfloat16", "float32")
_PLAIN = SpeculativeOptions(num_draft=0)


def sequences(options: Options) -> Findings:
    """Plain sequences decoded together against one alone, and whether each is then bit-equal to itself alone."""
    figures = []
    for model, dtype in cases(options, ("14m", "0.5b")):
        engine = loaded(model, "random", dtype, options)
        chosen = prompts(NUM_SEQUENCES, options.prompt_tokens, engine.target.vocab_size)
        params = SamplingParams(max_tokens=options.tokens(model), ignore_eos=True)
        groups = {"one": chosen[:1], "together": chosen}
        rates: dict[str, list[float]] = {name: [] for name in groups}
        for turn in range(1 + options.turns):
            for name in rotated(list(groups), turn):
                requests = opened(engine, groups[name], params)
                started = perf_counter()
                to_the_end(engine.target, requests)
                taken = perf_counter() - started
                if turn:
                    rates[name].append(len(requests) * (params.max_tokens - 1) / taken)
        label = f"{model} {dtype}"
        aim = Aim(at_least=5) if (model, dtype) == ("0.5b", "bfloat16") else None
        gain = [many / one for one, many in zip(rates["one"], rates["together"], strict=True)]
        figures += [
            Figure.of(f"{label}: one sequence", "tokens/s", rates["one"]),
            Figure.of(f"{label}: {NUM_SEQUENCES} together", "tokens/s", rates["together"]),
            Figure.of(f"{label}: {NUM_SEQUENCES} together / one", "times", gain, aim),
            equal_alone(f"{label}: sequences bit-equal to themselves alone", engine, chosen, params.max_tokens),
        ]
    return Findings(figures=tuple(figures), versions={})


def draft(options: Options) -> Findings:
    """Microseconds per drafted token of a 1m draft model, its reading of the prompt and of emitted tokens included."""
    figures = []
    kinds: tuple[Kind, ...] = ("repeats", "misses")
    for (model, dtype), kind in product(cases(options, ("14m",)), kinds):
        path = checkpoint(model, "repeats", options.cache)
        engine = surefoot.load(path, checkpoint("1m", kind, options.cache), dtype=dtype)
        speculative = SpeculativeOptions(num_draft=options.num_draft)
        results = answers(engine, options, 4 * options.tokens(model), SamplingParams(), speculative)
        costs = [1e6 * (r.stats.seconds.draft + r.stats.seconds.observe) / r.stats.drafted for r in results]
        right = "right" if kind == "repeats" else "wrong"
        figures.append(Figure.of(f"{model} {dtype}, always {right}: a drafted token", "µs", costs, Aim(at_most=200)))
    return Findings(figures=tuple(figures), versions={})


def outside(options: Options) -> Findings:
    """Microseconds outside the forwards: of a plain token, and of a round with lookup. Text and events included."""
    figures = []
    ways = {"plain token": (_PLAIN, 60.0), "lookup round": (SpeculativeOptions(num_draft=options.num_draft), 150.0)}
    for (model, dtype), (name, (speculative, bound)) in product(cases(options, ("14m",)), ways.items()):
        engine = surefoot.load(checkpoint(model, "repeats", options.cache), "lookup", dtype=dtype)
        costs = []
        for prompt in prompts(1 + options.turns, options.prompt_tokens, engine.target.vocab_size):
            params = SamplingParams(max_tokens=4 * options.tokens(model), ignore_eos=True)
            with engine.stream(prompt, params, speculative=speculative) as stream:
                next(stream)
                started = perf_counter()
                for _ in stream:
                    pass
                taken = perf_counter() - started
            stats = stream.result.stats
            costs.append(1e6 * (taken - stats.seconds.score) / stats.rounds)
        figures.append(Figure.of(f"{model} {dtype}: a {name}", "µs", costs[1:], Aim(at_most=bound)))
    return Findings(figures=tuple(figures), versions={})


def noise(options: Options) -> Findings:
    """The share of a round that processors and noise take at T = 0.8 with top-p 0.9, whatever the law.

    The model that repeats is sure of its tokens; the random one's law is nearly flat, which no trained model's is: the
    most that top-p can cost. At a quarter of the temperature it is like one whose logits spread four times as far.
    """
    figures = []
    ways = {"plain": _PLAIN, "lookup": SpeculativeOptions(num_draft=options.num_draft)}
    laws: dict[str, tuple[Kind, float]] = {
        "sure": ("repeats", 0.8),
        "spread": ("random", 0.2),
        "nearly flat": ("random", 0.8),
    }
    for (model, dtype), (law, (kind, temperature)) in product(cases(options, ("0.5b",)), laws.items()):
        engine = surefoot.load(checkpoint(model, kind, options.cache), "lookup", dtype=dtype)
        params = SamplingParams(temperature=temperature, top_p=0.9, seed=1)
        for name, speculative in ways.items():
            results = answers(engine, options, options.tokens(model), params, speculative)
            shares = [r.stats.seconds.verify / r.stats.seconds.rounds for r in results]
            figures.append(Figure.of(f"{model} {dtype}, {law} law: {name}", "share", shares, Aim(at_most=0.05)))
    return Findings(figures=tuple(figures), versions={})


def context(options: Options) -> Findings:
    """Forwards of 1 and 8 rows after longer and longer contexts.

    What the longest one adds is held to its bytes of keys and values: each costs what it did after fewer. Beside it,
    how a forward grows against all bytes it reads, as if one of keys and values cost no more than one of weights.
    """
    figures = []
    lengths = (64, 256) if options.quick else CONTEXTS
    for model, dtype in cases(options, ("0.5b",)):
        path = checkpoint(model, "random", options.cache)
        engine = loaded(model, "random", dtype, options)
        caches = filled(engine.target, lengths)
        seconds: dict[tuple[int, int], list[float]] = {case: [] for case in product(lengths, (1, 8))}
        for turn in range(2 + options.turns):
            for length, rows in turned(list(seconds), turn):
                one = forward_seconds(engine.target, caches[length], rows)
                if turn > 1:
                    seconds[length, rows].append(one)
        weights = (path / "model.safetensors").stat().st_size * (2 if dtype == "bfloat16" else 4) // 2
        width = engine.target.new_cache(1).rows_to_read(0, 1)[0].element_size()
        read = {length: weights + length * kv_bytes(path, width) for length in lengths}
        for (length, rows), taken in seconds.items():
            label = f"{model} {dtype}, {length} tokens, {rows} row{'s' * (rows > 1)}"
            figures.append(Figure.of(label, "ms", [1e3 * one for one in taken]))
            if length != lengths[0]:
                bytes_alone = read[length] / read[lengths[0]]
                pairs = zip(taken, seconds[lengths[0], rows], strict=True)
                growth = [long / short / bytes_alone for long, short in pairs]
                figures.append(Figure.of(f"{label}: growth / growth of the bytes read", "times", growth))
            for before in lengths[1:-1] if length == lengths[-1] else ():
                first, second, last = (median(seconds[at, rows]) for at in (lengths[0], before, length))
                cost = (last - first) / (second - first) * (before - lengths[0]) / (length - lengths[0])
                case = f"{label}: a byte of keys and values / one of {before} tokens'"
                figures.append(Figure.of(case, "times", [cost], LINEAR))
    return Findings(figures=tuple(figures), versions={})


MEASUREMENTS = {
    "calls": calls,
    "beside": beside,
    "sequences": sequences,
    "draft": draft,
    "outside": outside,
    "noise": noise,
    "context": context,
}


def cases(options: Options, models: Sequence[str]) -> list[tuple[str, DTypeName]]:
    """The models of a measurement in each dtype, as far as the options name them."""
    return [
        (model, dtype)
        for model, dtype in product(models, _DTYPES)
        if model in options.models and dtype in options.dtypes
    ]


def loaded(model: str, kind: Kind, dtype: DTypeName, options: Options) -> Engine:
    """An engine without a drafter."""
    return surefoot.load(checkpoint(model, kind, options.cache), dtype=dtype)


def answers(
    engine: Engine, options: Options, max_tokens: int, law: SamplingParams, speculative: SpeculativeOptions
) -> list[Result]:
    """An answer per turn to fresh prompts, after one that warms up."""
    params = SamplingParams(
        temperature=law.temperature, top_p=law.top_p, seed=law.seed, max_tokens=max_tokens, ignore_eos=True
    )
    chosen = prompts(1 + options.turns, options.prompt_tokens, engine.target.vocab_size)
    results = [engine.generate(prompt, params, speculative=speculative) for prompt in chosen]
    assert not any(result.stats.fallbacks for result in results), "a drafter failed"
    return results[1:]


def opened(engine: Engine, chosen: Sequence[Tokens], params: SamplingParams) -> list[Request]:
    """A request per prompt whose prompt has been read."""
    opener = Opener(target=engine.target, tokenizer=None)
    requests = []
    for prompt in chosen:
        request = opener.open(engine.ask(prompt, params, _PLAIN, None))
        prefill(engine.target, prompt, [request.decoding])
        requests.append(request)
    return requests


def to_the_end(target: Target, requests: Sequence[Request]) -> None:
    """Decodes all of them, every round of all in one forward."""
    while waiting := [request.decoding for request in requests if request.decoding.finish_reason is None]:
        advance(target, waiting)
    for request in requests:
        request.decoding.close()


def equal_alone(case: str, engine: Engine, chosen: Sequence[Tokens], max_tokens: int) -> Figure:
    """The share of sequences whose tokens and log probabilities, to the last bit, are those they have alone."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=1)

    def shown(together: Sequence[Tokens]) -> list[list[object]]:
        requests = opened(engine, together, params)
        to_the_end(engine.target, requests)
        return [[(event.token, event.logprobs) for event in request.new_events()] for request in requests]

    alone = [shown([prompt])[0] for prompt in chosen]
    same = [one == other for one, other in zip(alone, shown(chosen), strict=True)]
    return Figure.of(case, "share", [sum(same) / len(same)], Aim(at_least=1))


def filled(target: Target, lengths: Sequence[int]) -> dict[int, Cache]:
    """Caches that hold the first tokens of one random text, as many as asked for."""
    longest = max(lengths)
    cache = target.new_cache(longest, spare=16)
    (text,) = prompts(1, longest, target.vocab_size)
    for _ in target.prefill(text, cache, Capture()):
        pass
    caches = {length: cache.fork(cache.capacity) for length in lengths}
    for length, fork in caches.items():
        fork.truncate(length)
    return caches


def forward_seconds(target: Target, cache: Cache, rows: int) -> float:
    """Seconds of one forward of a chain."""
    tree = chain(range(16, 16 + rows))
    started = perf_counter()
    target.score([(tree, cache)], Capture())
    taken = perf_counter() - started
    cache.rollback()
    return taken


def turned(items: Sequence[tuple[int, int]], turn: int) -> list[tuple[int, int]]:
    """The cases from another starting point each turn."""
    start = turn % len(items)
    return [*items[start:], *items[:start]]


if __name__ == "__main__":
    run("kernels", __doc__, MEASUREMENTS)
