"""The section of the measurements page on decoding with an accelerator, from ``results/cuda.json``."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.markdown import circumstances, table

_NOTE = """{num_prompts} prompts of the evaluation set, {max_tokens} tokens each, {num_draft} drafts a round, on
{device}. Every answer is compared with plain decoding of the same engine; `strict` says whether the
self-test on loading found that a row's bits do not depend on the number of rows. Seconds are of whole requests, prefill
included; times faster is the median over prompts. A target of 10M parameters is too small for speculation to pay much
on such a card. In bfloat16 `auto` takes cuDNN's attention, which was slow wherever a shape was new: the requests at
temperature 0 came first and met most of them. With cuDNN's attention switched off they were not slow, and not strict.
"""


def section(document: Mapping[str, object]) -> str:
    """A row for each dtype, mode of exactness, drafter and temperature."""
    rows, options, run = document["rows"], document["options"], document["provenance"]
    assert isinstance(rows, list)
    assert isinstance(options, dict)
    assert isinstance(run, dict)
    body = []
    for row in rows:
        differences = row["first_differences"]
        body.append(
            (
                row["dtype"],
                row["exact"],
                "yes" if row["strict"] else "no",
                row["drafter"],
                row["temperature"],
                f"{differences.count(None)} of {len(differences)}",
                f"{row['mean_acceptance_length']:.2f}",
                f"{row['plain_tokens_per_second']:.0f}",
                f"{row['tokens_per_second']:.0f}",
                f"{row['times_faster']:.2f}",
            )
        )
    header = ("dtype", "exact", "strict", "drafter", "T", "identical answers", "tokens per round")
    header += ("plain tokens per second", "tokens per second", "times faster")
    note = _NOTE.format(
        num_prompts=options["limit"],
        max_tokens=options["max_tokens"],
        num_draft=options["num_draft"],
        device=run["device"],
    )
    return "\n".join(["## On an accelerator\n", note, circumstances(document), table(header, body)])
