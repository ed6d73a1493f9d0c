"""Tokens per round of the bundled DFlash drafters on pebble's evaluation set: chains and trees, short blocks and whole
ones, and at a temperature the ways of choosing a slot's token. Not a timing.

    python -m benchmarks.dflash
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks.acceptance import accepted
from benchmarks.common import evaluation_prompts, write_result
from surefoot.drafters.dflash.drafter import DFlash
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.stacked import MIN_MATCH, Stacked
from surefoot.engine import Engine
from surefoot.loading import find_dflash, load_dflash, load_target
from surefoot.loading.loaded import LoadedTarget
from surefoot.options import Acceptance, DTypeName, LoadOptions, SpeculativeOptions

PAIRS = {"pebble": "pebble-dflash", "pebble-hybrid": "pebble-hybrid-dflash"}
AIM = 3.0
"""Tokens per round of a chain of 7 at temperature 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One row of the table.

    Attributes:
        tree_width: 1 drafts a chain of ``num_draft`` tokens, more a tree of as many.
        sharpness: what logits are multiplied by before a slot is drawn under the target's noise; None takes the
            likeliest token.
        whole_block: whether all rows of the trained block are computed, however few tokens are drafted.
        stacked: whether lookup drafts first.
    """

    temperature: float = 0.0
    num_draft: int = 7
    tree_width: int = 1
    sharpness: float | None = None
    whole_block: bool = False
    stacked: bool = False
    acceptance: Acceptance = "match"

    @property
    def is_aimed(self) -> bool:
        """Whether the aim is for this one."""
        return self == Way()

    def __str__(self) -> str:
        shape = f"tree of {self.num_draft}, width {self.tree_width}" if self.tree_width > 1 else f"{self.num_draft}"
        parts = [f"chain of {shape}" if self.tree_width == 1 else shape]
        if self.whole_block:
            parts.append("whole block computed")
        if self.stacked:
            parts.append("lookup first")
        if self.temperature and self.tree_width == 1:
            drawn = "drawn from their laws" if self.acceptance == "reject" else "shared noise"
            sharpened = "" if self.sharpness in (None, 1.0) else f", sharpened {self.sharpness:g} times"
            parts.append("likeliest tokens" if self.sharpness is None else drawn + sharpened)
        if self.acceptance == "reject":
            parts.append("rejection")
        return "; ".join(parts)


WAYS = (
    Way(),
    Way(num_draft=5),
    Way(num_draft=4),
    Way(num_draft=4, whole_block=True),
    Way(num_draft=2),
    Way(tree_width=3),
    Way(num_draft=12, tree_width=3),
    Way(num_draft=16, tree_width=4),
    Way(stacked=True),
    Way(temperature=0.8),
    Way(temperature=0.8, sharpness=1.0),
    Way(temperature=0.8, sharpness=1.0, num_draft=4),
    Way(temperature=0.8, sharpness=2.0),
    Way(temperature=0.8, sharpness=4.0),
    Way(temperature=0.8, num_draft=12, tree_width=3),
    Way(temperature=0.8, acceptance="reject"),
    Way(temperature=0.8, acceptance="reject", sharpness=1.0),
)


def engine_for(target: LoadedTarget, network: DFlashNetwork, way: Way) -> Engine:
    """The pair as the way has it."""
    drafter = DFlash(
        network, whole_block=way.whole_block, shared_noise=way.sharpness is not None, sharpness=way.sharpness or 1.0
    )
    return Engine(target.model, Stacked(Lookup(min_match=MIN_MATCH), drafter) if way.stacked else drafter)


def main() -> None:
    """Measures every way on every pair, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=None, help="prompts of the evaluation set")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--target", action="append", help="of those with a bundled drafter; may be repeated")
    parser.add_argument("--draft-model", default=None, help="another drafter than the bundled one")
    parser.add_argument("--name", default="dflash", help="of the result file")
    args = parser.parse_args()
    dtype: DTypeName = args.dtype
    options = LoadOptions(dtype=dtype)
    prompts = evaluation_prompts(args.limit)
    rows = []
    for name in args.target or PAIRS:
        drafter = args.draft_model or PAIRS[name]
        target, found = load_pair(name, drafter, options)
        for way in WAYS:
            speculative = SpeculativeOptions(
                num_draft=way.num_draft, tree_width=way.tree_width, acceptance=way.acceptance
            )
            counts = accepted(engine_for(target, found, way), way.temperature, speculative, prompts)
            aim = AIM if way.is_aimed else None
            row = {"target": name, "drafter": drafter, "way": str(way), "temperature": way.temperature, "aim": aim}
            rows.append({**row, **counts})
            print(f"{name:14} T={way.temperature:<4g} {way!s:52} {counts['mean_acceptance_length']:.3f}", flush=True)
    print(f"written to {write_result(args.name, {'options': vars(args), 'rows': rows})}")


def load_pair(name: str, drafter: str, options: LoadOptions) -> tuple[LoadedTarget, DFlashNetwork]:
    """The target and its drafter's weights."""
    target = load_target(name, options)
    files = find_dflash(drafter)
    if files is None:
        raise SystemExit(f"{drafter} is no DFlash drafter; expected one of {name}")
    network, notes = load_dflash(files, options, target)
    for note in notes:
        print(f"note: {note}")
    return target, network


if __name__ == "__main__":
    main()
