"""Builds the kernels and ``rows.cpp``, for this machine or for AArch64, and runs it, there under qemu."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("rows.cpp")
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
CROSS_SYSTEM = Path("/usr/aarch64-linux-gnu")
CROSS_FOLDER = ROOT / "build" / "cross"


def load_setup() -> ModuleType:
    """setup.py as a module; it sets nothing up when it is imported."""
    spec = importlib.util.spec_from_file_location("surefoot_setup_of_cross", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def emulator() -> str | None:
    """The program that runs AArch64 programs here, if there is one."""
    return next((name for name in EMULATORS if shutil.which(name)), None)


def missing_tool() -> str | None:
    """What the cross build lacks here, and where Debian has it; None where it can run."""
    if shutil.which(CROSS_COMPILER) is None:
        return f"{CROSS_COMPILER} is not installed (Debian: g++-aarch64-linux-gnu)"
    return "qemu-aarch64 is not installed (Debian: qemu-user)" if emulator() is None else None


def build_program(compiler: Sequence[str], library: Path, program: Path) -> None:
    """Compiles ``rows.cpp`` against a library. Raises ``CalledProcessError``."""
    sources = load_setup().SOURCES
    command = [*compiler, "-O1", "-std=c++17", "-I", str(ROOT / sources), str(PROGRAM), str(library)]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", str(program)], check=True)


def run_program(
    program: Path, instructions: Sequence[str] = (), emulation: Sequence[str] = ()
) -> tuple[int, list[str]]:
    """How many checks failed, and the lines that were printed."""
    done = subprocess.run(
        [*emulation, str(program), *instructions], capture_output=True, text=True, check=False, timeout=600
    )
    return done.returncode, done.stdout.splitlines()


def run_cross() -> tuple[int, list[str]]:
    """The same for AArch64; what is compiled lies in ``build/cross`` and is compiled again only when it is old."""
    setup = load_setup()
    library, program = CROSS_FOLDER / str(setup.LIBRARY), CROSS_FOLDER / "rows"
    outcome = setup.build_library((CROSS_COMPILER,), ROOT / setup.SOURCES, CROSS_FOLDER, library)
    if not outcome.built:
        return 1, list(outcome.lines)
    build_program((CROSS_COMPILER,), library, program)
    return run_program(program, (), (str(emulator()), "-L", str(CROSS_SYSTEM)))
