"""Checks of a loaded pair: its arithmetic, its answers with and without speculation, its speed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from statistics import median

import torch

from surefoot.doctor.check import Check
from surefoot.doctor.speed import Prediction, Trial, predict
from surefoot.engine import Engine
from surefoot.errors import LoadError
from surefoot.models.decoder import DecoderModel
from surefoot.native import why_not
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions
from surefoot.prompts import builtin
from surefoot.prove import Settings, prove
from surefoot.provenance import Provenance
from surefoot.types import Tokens

EQUALITY_TOKENS = 64
EQUALITY_PROMPTS = 2
WARM_TEMPERATURE = 0.8
SPEED_PROMPTS = 8


def check_device(device: torch.device) -> Check:
    """What it will run on."""
    if device.type == "cuda":
        found = f"{device}: {torch.cuda.get_device_name(device)}"
    else:
        circumstances = Provenance.collect(str(device))
        found = f"{device}: {circumstances.processor}, {circumstances.num_threads} threads"
    return Check(name="device", level="PASS", found=found)


def check_kernels(engine: Engine, options: LoadOptions) -> Check:
    """Whether a row's bits depend on the rows beside it, as asked for and in the other mode."""
    model = engine.target
    assert isinstance(model, DecoderModel), model
    if model.kernels is not None:
        return _native(model.kernels, model.strict)
    fast = _strict(model, "auto", options)
    exact = _strict(model, "require", options)
    model.prepare(exact=options.exact, prefill_chunk=options.prefill_chunk)
    details = (
        f"exact=auto: {'row-exact' if fast else 'not row-exact: nearly equal tokens may swap'}",
        f"exact=require: {'row-exact, at the price of speed' if exact else 'not available here'}",
        f"no native kernels: {why_not() or _unfit(model)}",
    )
    if model.strict:
        found = f"row-exact with exact={options.exact}: strict, the same bits with and without speculation"
        return Check(name="kernels", level="PASS", found=found, details=details)
    mend = "Load with exact=require where bits matter" if exact else "Load in another dtype where bits matter"
    return Check(
        name="kernels",
        level="WARN",
        found="not row-exact: rounding may swap nearly equal tokens; the law of the text is the same",
        mend=mend,
        details=details,
    )


def _unfit(model: DecoderModel) -> str:
    """What about a model the kernels, which are there, cannot compute."""
    return (
        "they compute float32 and bfloat16 on a CPU, with attention heads of at most 256 and convolutions of at most "
        f"8; found {str(model.dtype).removeprefix('torch.')} on {model.device.type}, heads of {model.config.head_dim}"
    )


def _native(instructions: str, strict: bool) -> Check:
    """The account of our own kernels, whose rows are exact by construction and tested."""
    name = f"native kernels ({instructions})"
    if strict:
        found = f"{name}: row-exact, the same bits with and without speculation"
        return Check(name="kernels", level="PASS", found=found)
    mend = "Set SUREFOOT_NATIVE=0 to compute with torch, and report this"
    return Check(name="kernels", level="FAIL", found=f"{name}: the self-test found rows that differ", mend=mend)


def _strict(model: DecoderModel, exact: str, options: LoadOptions) -> bool:
    try:
        model.prepare(exact="require" if exact == "require" else "auto", prefill_chunk=options.prefill_chunk)
    except LoadError:
        return False
    return model.strict


def probe_prompts(engine: Engine) -> list[Tokens]:
    """The built-in prompts that suit the model, which has a tokenizer, none longer than half its context."""
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    half = max(1, engine.target.context_length // 2)
    prompts = builtin(tokenizer)
    return [tuple(tokenizer.encode(one) if isinstance(one, str) else one)[-half:] for one in prompts]


def check_equality(engine: Engine, prompts: Sequence[Tokens], speculative: SpeculativeOptions) -> Check:
    """Whether answers of 64 tokens, greedy and at temperature 0.8 with a seed, are the same with speculation.

    Raises:
        SurefootError: the model cannot read the prompts.
    """
    name = "equality"
    settings = Settings(
        sampling=tuple(
            SamplingParams(temperature=temperature, seed=0, max_tokens=EQUALITY_TOKENS, ignore_eos=True)
            for temperature in (0.0, WARM_TEMPERATURE)
        ),
        speculative=speculative,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        proof = prove(engine, prompts[:EQUALITY_PROMPTS], settings)
    details = tuple(
        f"T={case.temperature:g}, prompt {case.prompt}: {case.outcome}, {case.accepted} of {case.drafted} accepted"
        for case in proof.cases
    )
    said = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    found = f"{len(proof.cases)} answers of {EQUALITY_TOKENS} tokens: {proof.conclusion}"
    if any(case.fallbacks for case in proof.cases):
        mend = "Choose another drafter: this one fails and is dropped, so nothing would be drafted"
        return Check(
            name=name, level="FAIL", found="the drafter failed", expected="drafts", mend=mend, details=(*details, *said)
        )
    if proof.conclusion == "divergence":
        mend = "Run `surefoot prove` on this pair and report what it says; until then decode plainly: --method none"
        expected = "the same tokens, or differences that rounding explains"
        return Check(name=name, level="FAIL", found=found, expected=expected, mend=mend, details=details)
    if proof.conclusion == "near-tie":
        mend = "Load with exact=require where bits matter"
        return Check(name=name, level="WARN", found=f"{found}: rounding decided", mend=mend, details=details)
    if proof.conclusion == "not speculating":
        found = f"{len(proof.cases)} answers of {EQUALITY_TOKENS} tokens are the same, but at some temperature no draft"
        mend = "Try texts of your own: `surefoot prove --prompts FILE`"
        return Check(name=name, level="WARN", found=f"{found} was accepted", mend=mend, details=details)
    return Check(name=name, level="PASS", found=found, details=details)


def check_speed(
    engine: Engine, prompts: Sequence[Tokens], speculative: SpeculativeOptions
) -> tuple[Check, Prediction | None]:
    """The predicted speedup of greedy answers, with its parts.

    Raises:
        SurefootError: the drafter fails while it is timed.
    """
    trial = Trial(
        prompts=tuple(prompts[:SPEED_PROMPTS]),
        params=SamplingParams(max_tokens=EQUALITY_TOKENS),
        speculative=speculative,
    )
    prediction = predict(engine, trial)
    if prediction is None:
        found = "skipped: every answer ended at its first token, so there is no round to count"
        return Check(name="speedup", level="SKIP", found=found), None
    speedup = prediction.forecast.speedup
    found = f"{speedup:.2f} times plain predicted for greedy free text"
    details = tuple(parts(prediction))
    if speedup >= 1:
        return Check(name="speedup", level="PASS", found=found, details=details), prediction
    return (
        Check(
            name="speedup",
            level="WARN",
            found=f"{found}: speculation is slower here",
            mend=_advice(prediction),
            details=details,
        ),
        prediction,
    )


def _advice(prediction: Prediction) -> str:
    if prediction.break_even is None:
        return "Decode plainly (--method none): here a round costs more than all its drafts are worth"
    return "Draft fewer tokens (--num-draft), try another drafter, or measure your own texts with `surefoot bench`"


def parts(prediction: Prediction) -> list[str]:
    """What the prediction is made of, line by line."""
    forecast, costs, acceptance = prediction.forecast, prediction.costs, prediction.acceptance
    count = prediction.num_draft
    rates = " ".join(f"{rate:.2f}" for rate in acceptance.rates) or "none drafted"
    even = "none pays" if prediction.break_even is None else f"{prediction.break_even:.2f}"
    return [
        f"target forward after {costs.target.context} tokens: t(1) {_ms(costs.target.at(1))}, "
        f"t({count + 1}) {_ms(costs.target.at(count + 1))}",
        f"draft: {_ms(costs.draft.fixed)} + {_ms(costs.draft.per_token)} a token, "
        f"reading the prompt {_ms(costs.draft.reading)} once",
        f"acceptance by position: {rates}; break-even at {even} for rounds of {count}",
        f"tokens a round: {acceptance.tokens_per_round:.2f}, over {acceptance.rounds} rounds, {prediction.num_tokens} "
        f"tokens of {prediction.num_prompts} built-in texts; it depends on the text",
        f"a round: draft {_ms(forecast.draft)} + score {_ms(forecast.score)} + the rest {_ms(forecast.overhead)}; "
        f"plain: {_ms(forecast.plain_score)} + {_ms(forecast.plain_overhead)}",
        f"by text: median {median(prediction.by_text):.2f}, from {min(prediction.by_text):.2f} to "
        f"{max(prediction.by_text):.2f}",
        f"the same answers, each timed once: {prediction.observed:.2f} times plain (median)",
    ]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
