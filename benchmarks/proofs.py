"""Runs ``surefoot prove`` on the hybrid and on DFlash drafters: all prompts, fp32 and bf16, temperatures 0 and 0.8.

A result file for each pair and dtype; anything but ``identical`` is told and makes the exit code 1.

    python -m benchmarks.proofs
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from benchmarks.common import RESULTS

PAIRS = (
    ("pebble", "pebble-dflash", 7),
    ("pebble-hybrid", "pebble-hybrid-dflash", 7),
    ("pebble-hybrid", "lookup", 4),
    ("pebble-hybrid", "pebble-draft", 4),
)
"""Target, drafter and drafts a round."""
DTYPES = ("float32", "bfloat16")
MAX_TOKENS = 200


def main() -> int:
    """Proves every pair in every dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=None, help="prompts of the evaluation set")
    parser.add_argument("--target", default=None, help="only pairs of this target")
    parser.add_argument("--drafter", default=None, help="only pairs with this drafter")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    failed = False
    for target, drafter, num_draft in PAIRS:
        if args.target in (None, target) and args.drafter in (None, drafter):
            for dtype in DTYPES:
                limit = [] if args.limit is None else ["--limit", str(args.limit)]
                words = [target, "--drafter", drafter, "--num-draft", str(num_draft), "--dtype", dtype, *limit]
                failed |= not prove(words, f"prove_{target}_{drafter}_{dtype}", args.threads)
    return int(failed)


def prove(words: list[str], name: str, threads: int) -> bool:
    """One proof in a process of its own; whether all answers were identical."""
    rest = ["--max-tokens", str(MAX_TOKENS), "--threads", str(threads), "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "surefoot", "prove", *words, *rest], stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        proof = json.loads(ran.stdout)
    except json.JSONDecodeError:
        print(f"{name}: no proof, exit code {ran.returncode}", flush=True)
        return False
    (RESULTS / f"{name}.json").write_text(json.dumps(proof) + "\n", encoding="utf-8")
    accepted, rounds = (sum(case[key] for case in proof["cases"]) for key in ("accepted", "rounds"))
    length = 1 + accepted / max(rounds, 1)
    print(f"{name}: {proof['conclusion']}, strict {proof['strict']}, {length:.2f} tokens per round", flush=True)
    return ran.returncode == 0 and proof["strict"] is True


if __name__ == "__main__":
    sys.exit(main())
