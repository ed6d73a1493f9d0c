"""The kernels called from C++, here and on AArch64; products and sums are fused only where the source says so."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest
from tests.native.cross.running import build_program, load_setup, missing_tool, run_cross, run_program

from surefoot.native.library import INSTRUCTIONS, Library, open_library
from surefoot.options import Environment

setup = load_setup()
COMPILER = setup.find_compiler(os.environ)
BUILT = Path(setup.__file__).parent / "src" / setup.PACKAGE / setup.LIBRARY
X86 = platform.machine().lower() in {"x86_64", "amd64"}

PROBE = """
__attribute__((noinline, noclone)) float unfused(float a, float b, float c, float d) { return a * b + c * d; }
int main(int count, char**) {
  const float a = count + 0x1p-12f;  // not known before it runs
  return unfused(a, a, -a, a) != 0.0f;
}
"""


def sets_here() -> list[str]:
    """The instruction sets this processor has; the library is left as it was."""
    opened = open_library(BUILT, Environment()) if BUILT.exists() else None
    if not isinstance(opened, Library):
        return []
    before = opened.instructions
    found = [name for name in INSTRUCTIONS if opened.choose(name)]
    opened.choose(before)
    return found


@pytest.mark.skipif(COMPILER is None or not sets_here(), reason="the kernels were not built")
def test_rows_trees_threads_and_values_hold_when_called_from_cpp(tmp_path: Path) -> None:
    here = sets_here()
    build_program(COMPILER, BUILT, tmp_path / "rows")
    failed, lines = run_program(tmp_path / "rows", here)
    assert failed == 0, [line for line in lines if "FAILS" in line]
    assert {line.split()[0] for line in lines} == set(here)
    assert f"portable holds: a product and a sum are rounded {'twice' if X86 else 'once'}" in lines


@pytest.mark.skipif(missing_tool() is not None, reason=f"untested on AArch64: {missing_tool()}")
def test_rows_trees_threads_and_values_hold_on_aarch64() -> None:
    failed, lines = run_cross()
    assert failed == 0, [line for line in lines if "holds" not in line]
    assert "portable holds: every AArch64 fuses them" in lines
    assert sum("holds" in line for line in lines) >= 40


def fuses(flags: tuple[str, ...], folder: Path) -> bool:
    """Whether a compiled probe rounds a product and its sum at once, which the source does not ask for."""
    source, program = folder / "probe.cpp", folder / "probe"
    source.write_text(PROBE)
    subprocess.run([*COMPILER, *flags, str(source), "-o", str(program)], check=True)
    return subprocess.run([str(program)], check=False).returncode == 1


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_the_flags_forbid_fusing(tmp_path: Path) -> None:
    assert not fuses(setup.COMMON, tmp_path)
    if "avx2" in sets_here():
        assert not fuses((*setup.COMMON, *setup.AVX2), tmp_path)


@pytest.mark.skipif(COMPILER is None or "avx2" not in sets_here(), reason="this processor fuses nothing")
def test_other_flags_would_fuse(tmp_path: Path) -> None:
    """The negative control of the above."""
    flags = tuple(flag for flag in setup.COMMON if "contract" not in flag)
    assert fuses((*flags, *setup.AVX2, "-ffp-contract=fast"), tmp_path)
