"""``make cross``: the kernels compiled for AArch64 and checked under qemu."""

from __future__ import annotations

import sys

from tests.native.cross.running import missing_tool, run_cross


def main() -> int:
    """Prints every check; 1 where one failed or something is missing."""
    missing = missing_tool()
    if missing is not None:
        print(f"Untested on AArch64: {missing}.")
        return 1
    failed, lines = run_cross()
    print(*lines, sep="\n")
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
