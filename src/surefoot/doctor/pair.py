"""Whether a draft model speaks its target's language, and how far: tokenizers, vocabularies, context lengths."""

from __future__ import annotations

from itertools import islice

from surefoot.doctor.check import Check
from surefoot.doctor.files import ModelFiles
from surefoot.loading.pairing import NUM_SHOWN, different_rules, different_tokens

CHOOSE = "Choose a draft model of the target's own family, or copy from the text instead: --method lookup"


def check_tokenizers(target: ModelFiles, draft: ModelFiles | None) -> Check:
    """Whether each id means the same to both, with the first that do not: ``id: target's piece | draft's piece``."""
    name = "tokenizers"
    ours = target.tokenizer
    if draft is None:
        if ours is None:
            return Check(
                name=name,
                level="WARN",
                found="the target has no tokenizer.json: only token ids can be given",
                mend="Put the model's tokenizer.json beside its weights",
            )
        return Check(
            name=name, level="PASS", found=f"one, of {ours.vocab_size} ids: what is drafted is in the target's"
        )
    theirs = draft.tokenizer
    if ours is None or theirs is None:
        return _uncompared(name, target, draft)
    differing = list(different_tokens(ours, theirs))
    if differing:
        shown = [*differing[:NUM_SHOWN], *(["..."] if len(differing) > NUM_SHOWN else [])]
        return Check(
            name=name,
            level="FAIL",
            found=f"{len(differing)} of {max(ours.vocab_size, theirs.vocab_size)} ids mean something else to the two",
            expected="the same piece for each id",
            mend=CHOOSE,
            details=("id: target | draft model", *shown),
        )
    rules = list(islice(different_rules(ours, theirs), NUM_SHOWN))
    if rules:
        return Check(
            name=name,
            level="FAIL",
            found="the same pieces, but text becomes ids by other rules",
            expected="the same ids for the same text",
            mend=CHOOSE,
            details=("part: target | draft model", *rules),
        )
    return Check(name=name, level="PASS", found=f"the same: {ours.vocab_size} ids, pieces, special tokens and rules")


def _uncompared(name: str, target: ModelFiles, draft: ModelFiles) -> Check:
    sizes = (target.config.vocab_size, draft.config.vocab_size)
    without = " and ".join(side.name for side in (target, draft) if side.tokenizer is None)
    return Check(
        name=name,
        level="WARN" if sizes[0] == sizes[1] else "FAIL",
        found=f"{without} has no tokenizer.json, so they cannot be compared; vocabularies of {sizes[0]} and {sizes[1]}",
        expected="a tokenizer.json in both",
        mend="Put the tokenizer.json of each model beside its weights",
    )


def check_vocabulary(target: ModelFiles, draft: ModelFiles | None) -> Check:
    """Rows of the embeddings against ids of the tokenizers; rows beyond the ids are padding and never drawn."""
    problems: list[str] = []
    lines: list[str] = []
    for side, files in (("target", target), ("draft model", draft)):
        if files is None:
            continue
        rows, ids = files.config.vocab_size, files.tokenizer.vocab_size if files.tokenizer else None
        if ids is None:
            lines.append(f"{side}: {rows} rows")
        elif rows < ids:
            problems.append(side)
            lines.append(f"{side}: {rows} rows for {ids} ids")
        else:
            lines.append(f"{side}: {rows} rows for {ids} ids, {rows - ids} of them padding")
    found = "; ".join(lines)
    if "draft model" in problems:
        mend = "Choose another draft model: this one cannot read every token"
        return Check(name="vocabulary", level="FAIL", found=found, expected="a row for each id", mend=mend)
    if problems:
        mend = "Check that the tokenizer belongs to the model: text with those ids is refused"
        return Check(name="vocabulary", level="WARN", found=found, expected="a row for each id", mend=mend)
    return Check(name="vocabulary", level="PASS", found=found)


def check_context(target: ModelFiles, draft: ModelFiles | None, wanted: int | None) -> Check:
    """Context lengths; ``wanted`` is the one the user means to use."""
    ours = target.config.context_length
    reach = ours if wanted is None else wanted
    found = f"target {ours} tokens" + (f", draft model {draft.config.context_length}" if draft else "")
    if reach > ours:
        return Check(
            name="context length",
            level="WARN",
            found=f"{found}; {reach} are wanted",
            mend=f"Plan with {ours} tokens: requests end there",
        )
    if draft is not None and draft.config.context_length < reach:
        return Check(
            name="context length",
            level="WARN",
            found=f"{found}: beyond {draft.config.context_length} tokens nothing is drafted, decoding goes on plainly",
            mend="Keep requests shorter, or choose a draft model with a longer context",
        )
    return Check(name="context length", level="PASS", found=found)
