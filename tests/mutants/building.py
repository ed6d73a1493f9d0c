"""Builds the kernels of a copy of the package, for defects in their source: the set that every machine runs, alone."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tests.mutants.mutant import StaleMutantError

ROOT = Path(__file__).resolve().parents[2]
SOURCES = "native/source/"
"""Where files lie that a change of makes the kernels old."""


def build_kernels(package: Path) -> None:
    """Compiles the library of a copy of the package in place, portable and barely optimised: it takes a few seconds.

    Raises ``StaleMutantError`` where there is no compiler, or the source does not compile.
    """
    setup = _setup()
    compiler = setup.find_compiler(os.environ)
    if compiler is None:
        raise StaleMutantError("there is no C++ compiler; expected one, to build the kernels with their defect")
    source, library = package / SOURCES, package / "native" / setup.LIBRARY
    library.unlink(missing_ok=True)
    parts = [source / name for name in (*(unit.source for unit in setup.NEEDED), setup.ENTRY)]
    left_out = [f"-D{unit.without}" for unit in setup.X86]
    command = [*compiler, *setup.COMMON, "-O1", *left_out, "-shared", *map(str, parts), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StaleMutantError(f"the kernels do not compile with their defect: {setup.first_error(done.stderr)}")


def _setup() -> ModuleType:
    """setup.py as a module; it sets nothing up when it is imported."""
    spec = importlib.util.spec_from_file_location("surefoot_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
