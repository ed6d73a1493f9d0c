"""``surefoot bench`` on both bundled targets: lookup, the draft model, and DFlash as a chain and as a tree.

Every drafter stands beside plain decoding in one interleaved run of its own engine.

    python -m benchmarks.pairs
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from benchmarks.common import write_result

RUNS = (
    ("pebble", "pebble-draft", ("--num-draft", "4", "--method", "lookup", "--method", "draft")),
    ("pebble", "pebble-dflash", ("--num-draft", "7", "--tree-width", "3", "--method", "dflash")),
    ("pebble-hybrid", "pebble-draft", ("--num-draft", "4", "--method", "lookup", "--method", "draft")),
    ("pebble-hybrid", "pebble-hybrid-dflash", ("--num-draft", "7", "--tree-width", "3", "--method", "dflash")),
)
"""Target, drafter, and how it drafts."""
LEFT_OUT = ("comparisons", "texts")


def main() -> int:
    """Measures every pair and writes the cells of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=None, help="questions of each kind")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="pairs", help="of the result file")
    args = parser.parse_args()
    extent = ["--repeats", str(args.repeats), "--max-tokens", str(args.max_tokens), "--threads", str(args.threads)]
    if args.limit is not None:
        extent += ["--limit", str(args.limit)]
    runs = []
    for target, drafter, ways in RUNS:
        words = ["bench", target, "--drafter", drafter, *ways, *extent]
        print("surefoot", *words, flush=True)
        ran = subprocess.run(
            [sys.executable, "-m", "surefoot", *words, "--json"], stdout=subprocess.PIPE, text=True, check=False
        )
        if ran.returncode != 0:
            print(f"exit code {ran.returncode}: nothing is written")
            return 1
        found = json.loads(ran.stdout)
        runs.append({"command": ["surefoot", *words], **{k: v for k, v in found.items() if k not in LEFT_OUT}})
        for cell in found["cells"]:
            if cell["times_plain"] is not None:
                print(f"  {cell['kind']:12} {cell['arm']:12} {cell['times_plain']['median']:.2f} times plain")
    print(f"written to {write_result(args.name, {'options': vars(args), 'runs': runs})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
