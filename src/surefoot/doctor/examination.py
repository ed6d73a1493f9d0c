"""The examination: every check in order, going on after a failure as far as that makes sense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from surefoot.api import load
from surefoot.doctor.check import Check, Findings, Level, Report
from surefoot.doctor.dflash import DrafterFiles, check_drafter
from surefoot.doctor.files import ModelFiles, examine_files, find
from surefoot.doctor.memory import Need, check_memory, free_memory
from surefoot.doctor.pair import check_context, check_tokenizers, check_vocabulary
from surefoot.doctor.running import check_device, check_equality, check_kernels, check_speed, probe_prompts
from surefoot.doctor.speed import Prediction
from surefoot.drafters.lookup import Lookup
from surefoot.engine import Engine
from surefoot.errors import SurefootError
from surefoot.loading.dflash import find_dflash
from surefoot.loading.load import find_device
from surefoot.options import LoadOptions, SpeculativeOptions
from surefoot.presets import Preset, presets_for

COMPARING = ("tokenizers", "vocabulary", "context length", "memory")
RUNNING = ("weights", "kernels", "equality", "speedup")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What to examine.

    Attributes:
        model: the target's name.
        drafter: ``none``, ``lookup``, or the draft model's name.
        load: how both are loaded.
        speculative: how requests will speculate.
        context: tokens a sequence will have; None: the target's whole context.
        running: whether the pair is loaded and run, not only its files read.
        lookup_min: equal tokens after which lookup drafts; None: its default.
        prior: checks made before, such as the settings file's.
    """

    model: str
    drafter: str
    load: LoadOptions = field(default_factory=LoadOptions)
    speculative: SpeculativeOptions = field(default_factory=SpeculativeOptions)
    context: int | None = None
    running: bool = True
    lookup_min: int | None = None
    prior: tuple[Check, ...] = ()

    @property
    def draft_model(self) -> str | None:
        """The draft model's name, where the drafter is one."""
        return None if self.drafter in ("none", "lookup") else self.drafter

    @property
    def drafter_to_load(self) -> str | Lookup | None:
        """What ``surefoot.load`` takes as the drafter."""
        if self.drafter == "lookup" and self.lookup_min is not None:
            return Lookup(min_match=self.lookup_min)
        return None if self.drafter == "none" else self.drafter

    @property
    def off(self) -> str | None:
        """Why nothing would be drafted, if so."""
        if self.drafter == "none":
            return "the method is none"
        return "num_draft is 0" if self.speculative.num_draft == 0 else None


def examine(given: Examination, show: Callable[[Check], None] = lambda check: None) -> Report:
    """Makes every check; ``show`` sees each as it is made."""
    findings = Findings(show=show)
    for check in given.prior:
        findings.add(check)
    target = _files(findings, given.model, "target")
    draft = _draft(findings, given.draft_model, target) if given.draft_model else None
    lacks_draft = given.draft_model is not None and draft is None
    findings.add(_setting(given, presets_for(given.model, target.raw if target else {})))
    device = _attempt(findings, "device", "Choose --device auto", lambda: _device(given.load.device))
    if target is None:
        findings.skip("the target's files were not understood", *COMPARING)
    else:
        _compare(findings, given, target, draft, lacks_draft, device)
    prediction = _run(findings, given, lacks_draft) if given.running else None
    if not given.running:
        findings.skip("only the files were to be read", *RUNNING)
    return Report(model=given.model, drafter=given.drafter, checks=tuple(findings.checks), prediction=prediction)


def _attempt(findings: Findings, name: str, mend: str, step: Callable[[], tuple[Check, _Found]]) -> _Found | None:
    """The check and the value of a step; where it raises, the failed check and None."""
    try:
        check, value = step()
    except SurefootError as error:
        findings.add(Check.failed(name, error, mend))
        return None
    findings.add(check)
    return value


def _files(findings: Findings, name: str, side: str) -> ModelFiles | None:
    mend = "Check the path, and download the model again if it is incomplete"
    return _attempt(findings, f"{side} files", mend, lambda: examine_files(find(name), side))


def _draft(findings: Findings, name: str, target: ModelFiles | None) -> ModelFiles | DrafterFiles | None:
    """The files of a draft model, or of a DFlash drafter with the target they must fit."""

    def step() -> tuple[Check, ModelFiles | DrafterFiles]:
        found = find_dflash(name)
        return examine_files(find(name), "draft model") if found is None else check_drafter(found, target)

    return _attempt(
        findings, "draft model files", "Check the path, and download the model again if it is incomplete", step
    )


def _device(name: str) -> tuple[Check, torch.device]:
    device = find_device(name)
    return check_device(device), device


def _setting(given: Examination, presets: tuple[Preset, ...]) -> Check:
    known = tuple(
        f"a public draft model for it, not verified here: {preset.draft_model} (surefoot inspect --presets)"
        for preset in presets
        if given.draft_model is None
    )
    if given.off is None:
        found = f"drafts by {given.drafter}, {given.speculative.num_draft} a round"
        return Check(name="settings", level="PASS", found=found, details=known)
    return Check(
        name="settings",
        level="WARN",
        found=f"speculation is switched off: {given.off}",
        mend="Choose --method lookup or a --draft-model, and --num-draft above 0",
        details=known,
    )


def _compare(
    findings: Findings,
    given: Examination,
    target: ModelFiles,
    draft: ModelFiles | DrafterFiles | None,
    lacks_draft: bool,
    device: torch.device | None,
) -> None:
    """Checks that need files only."""
    if lacks_draft:
        findings.skip("the draft model's files were not understood", *COMPARING[:-1])
    else:
        # A DFlash drafter was compared with its target as its files were read; it has no tokenizer of its own.
        beside = draft if isinstance(draft, ModelFiles) else None
        findings.add(check_tokenizers(target, beside))
        findings.add(check_vocabulary(target, beside))
        findings.add(check_context(target, beside, given.context))
    if device is None:
        findings.skip("there is no such device", "memory")
        return
    needs = [Need.of(target, given.load.dtype, device)]
    if isinstance(draft, DrafterFiles):
        needs.append(draft.need(target, given.load.dtype, device))
    elif draft is not None:
        needs.append(Need.of(draft, given.load.dtype, device))
    check = check_memory(tuple(needs), free_memory(device), given.context)
    findings.add(replace(check, found=f"without the draft model: {check.found}") if lacks_draft else check)


def _run(findings: Findings, given: Examination, lacks_draft: bool) -> Prediction | None:
    """Checks of the loaded pair. Without a usable draft model the target is still loaded and looked at."""
    failed = [check.name for check in findings.checks if check.level == "FAIL"]
    blocking = [name for name in failed if name in ("target files", "device", "memory")]
    if blocking:
        findings.skip(f"{' and '.join(blocking)} failed", *RUNNING)
        return None
    alone = lacks_draft or any(name in COMPARING for name in failed)
    engine = _attempt(findings, "weights", "Download the checkpoint again", lambda: _load(given, alone))
    if engine is None:
        findings.skip("the weights were not loaded", *RUNNING[1:])
        return None
    findings.add(check_kernels(engine, given.load))
    reason = "the pair cannot speculate" if alone else given.off and f"there is nothing to compare: {given.off}"
    if reason is None and engine.tokenizer is None:
        reason = "the target has no tokenizer, and the built-in prompts are text"
    if reason is not None:
        findings.skip(reason, *RUNNING[2:])
        return None
    return _speculate(findings, engine, given.speculative)


def _load(given: Examination, alone: bool) -> tuple[Check, Engine]:
    options = given.load
    drafter = None if alone else given.drafter_to_load
    engine = load(
        given.model,
        drafter,
        dtype=options.dtype,
        device=options.device,
        exact=options.exact,
        prefill_chunk=options.prefill_chunk,
    )
    which = "the target's" if alone or given.draft_model is None else "both models'"
    found = f"{which} read: every tensor there, of its shape, finite"
    return Check(name="weights", level="PASS", found=found, details=engine.notes), engine


def _speculate(findings: Findings, engine: Engine, speculative: SpeculativeOptions) -> Prediction | None:
    prompts = probe_prompts(engine)
    mend = "Check that the tokenizer belongs to the model: it cannot read the built-in texts"
    level = _attempt(findings, "equality", mend, lambda: _leveled(check_equality(engine, prompts, speculative)))
    if level in (None, "FAIL"):
        findings.skip("the equality check failed", "speedup")
        return None
    return _attempt(findings, "speedup", "Choose another drafter", lambda: check_speed(engine, prompts, speculative))


def _leveled(check: Check) -> tuple[Check, Level]:
    return check, check.level
