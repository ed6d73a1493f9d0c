"""Builds the kernels: one shared object, compiled by the machine's C++ compiler, that asks nothing of Python or torch.

Everything else about the package is said in pyproject.toml. ``python setup.py build_kernels --inplace`` compiles what
has changed for the checkout; ``pip install`` does the same. ``CXX`` names another compiler. Where there is none the
install succeeds without kernels, and torch computes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

PACKAGE = Path("surefoot", "native")
SOURCES = "src" / PACKAGE / "source"
LIBRARY = "libsurefoot.so"
OBJECTS = Path("build", "kernels")

COMMON = (
    *("-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread"),
    # Sums and products are fused where the source says so and nowhere else: the bits are part of the contract.
    *("-ffp-contract=off", "-fno-math-errno"),
    *("-Wall", "-Wextra", "-Wno-unknown-warning-option"),
    *("-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-psabi"),  # said of the compilers' own headers
)
AVX2 = ("-mavx2", "-mfma")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", *AVX2)


@dataclass(frozen=True)
class Unit:
    """One source file and its own flags; ``without`` is what library.cpp is told where this one does not compile."""

    source: str
    flags: tuple[str, ...] = ()
    without: str | None = None


NEEDED = (Unit("pool.cpp"), Unit("kernels_portable.cpp"))
# Ascending: of an inline function that several objects hold, the linker takes the first, which must run everywhere.
X86 = (
    Unit("kernels_avx2.cpp", AVX2, "SUREFOOT_WITHOUT_AVX2"),
    Unit("kernels_avx512.cpp", AVX512, "SUREFOOT_WITHOUT_AVX512"),
    Unit("kernels_avx512_bf16.cpp", (*AVX512, "-mavx512bf16"), "SUREFOOT_WITHOUT_AVX512_BF16"),
)
ENTRY = "library.cpp"


@dataclass(frozen=True)
class Outcome:
    """What became of a build: whether there is a library, and lines for whoever reads along."""

    built: bool
    lines: tuple[str, ...] = ()


def find_compiler(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The words that start the C++ compiler: ``CXX``, else the first known one on the path; None without any."""
    for words in (environment.get("CXX", ""), "g++", "clang++", "c++"):
        command = tuple(shlex.split(words))
        if command and shutil.which(command[0], path=environment.get("PATH")):
            return command
    return None


def units_for(machine: str) -> tuple[Unit, ...]:
    """What is compiled for a processor, as the compiler calls it (``x86_64-linux-gnu``)."""
    return (*NEEDED, *X86) if machine.startswith(("x86_64", "amd64")) else NEEDED


def compile_object(compiler: Sequence[str], source: Path, flags: Sequence[str], target: Path) -> str | None:
    """Compiles one source unless its object is newer than it, its headers and its command; says what went wrong."""
    command = [*compiler, *COMMON, *flags, "-c", str(source), "-o"]
    record = target.with_suffix(".command")
    texts = [source, *source.parent.glob("*.hpp")]
    if target.exists() and record.exists() and record.read_text() == shlex.join(command):
        age = target.stat().st_mtime
        if all(text.exists() and text.stat().st_mtime < age for text in texts):
            return None
    target.unlink(missing_ok=True)
    started = time.time()
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder, target.name)
        done = subprocess.run([*command, str(made)], capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip() or f"the compiler ended with {done.returncode}"
        sys.stderr.write(done.stderr)
        os.utime(made, (started, started))  # an edit while the compiler ran makes the object old
        made.replace(target)
    record.write_text(shlex.join(command))
    return None


def first_error(text: str) -> str:
    """The line of a compiler's output that says most."""
    lines = text.splitlines()
    return next((line for line in lines if "error" in line), lines[-1])


def build_library(compiler: Sequence[str] | None, sources: Path, objects: Path, library: Path) -> Outcome:
    """Compiles the sources, several at a time, and links ``library``; leaves none where that fails."""
    advice = "; torch computes in place of the kernels"
    if compiler is None:
        library.unlink(missing_ok=True)
        return Outcome(False, (f"No C++ compiler was found{advice}. Install g++ or clang++, or name one in CXX.",))
    asked = subprocess.run([*compiler, "-dumpmachine"], capture_output=True, text=True, check=False)
    objects.mkdir(parents=True, exist_ok=True)
    units = units_for(asked.stdout.strip())

    def made(unit: Unit) -> str | None:
        return compile_object(compiler, sources / unit.source, unit.flags, objects / f"{Path(unit.source).stem}.o")

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        faults = dict(zip(units, threads.map(made, units), strict=True))
    left_out = {unit: fault for unit, fault in faults.items() if fault and unit.without}
    lines = [f"{unit.source} is left out: {first_error(fault)}" for unit, fault in left_out.items()]
    entry = Unit(ENTRY, tuple(f"-D{unit.without}" for unit in left_out))
    fault = next((text for unit, text in faults.items() if text and unit not in left_out), None) or made(entry)
    if fault is None:
        parts = [objects / f"{Path(unit.source).stem}.o" for unit in (entry, *units) if unit not in left_out]
        fault = link(compiler, parts, library)
    if fault is not None:
        library.unlink(missing_ok=True)
        return Outcome(False, (*lines, f"The kernels did not compile{advice}: {first_error(fault)}"))
    return Outcome(True, tuple(lines))


def link(compiler: Sequence[str], parts: Sequence[Path], library: Path) -> str | None:
    """Links a shared object and puts it in place at once, so that a process that has the old one open keeps it."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, library.name)
        command = [*compiler, "-shared", "-pthread", *map(str, parts), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip() or f"the linker ended with {done.returncode}"
        made.replace(library)
    return None


class BuildKernels(Command):
    """The step of ``build`` that compiles the kernels, into the build folder or into the checkout."""

    description = "compile the kernels"
    user_options = [("inplace", "i", "put the library into the checkout")]  # noqa: RUF012 - as setuptools reads it
    boolean_options = ["inplace"]  # noqa: RUF012

    def initialize_options(self) -> None:
        """Sets what setuptools fills in."""
        self.build_lib: str | None = None
        self.editable_mode = False
        self.inplace = False

    def finalize_options(self) -> None:
        """Takes the build folder from the step that copies the modules."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    @property
    def in_build(self) -> Path:
        """The library in the build folder."""
        return Path(self.build_lib or "", PACKAGE, LIBRARY)

    @property
    def library(self) -> Path:
        """The library this command makes."""
        return "src" / PACKAGE / LIBRARY if self.inplace or self.editable_mode else self.in_build

    def run(self) -> None:
        """Builds, and prints what a user should know."""
        outcome = build_library(find_compiler(os.environ), SOURCES, OBJECTS, self.library)
        print(*outcome.lines, sep="\n", end="\n" if outcome.lines else "")

    def get_source_files(self) -> list[str]:
        """What a source distribution must hold."""
        return sorted(str(path) for path in SOURCES.glob("*.[ch]pp"))

    def get_outputs(self) -> list[str]:
        """What a wheel holds."""
        return [str(self.in_build)] if self.library.exists() else []

    def get_output_mapping(self) -> dict[str, str]:
        """Where an editable install finds it."""
        return {str(self.in_build): str(self.library)} if self.editable_mode and self.library.exists() else {}


class Build(build):
    """All steps, the kernels' the last."""

    sub_commands = [*build.sub_commands, ("build_kernels", None)]  # noqa: RUF012


class Package(Distribution):
    """The package, which may hold machine code: that decides the folder it is installed to."""

    def has_ext_modules(self) -> bool:
        """True: the library counts as one."""
        return True


class Wheel(bdist_wheel):
    """A wheel for any Python 3; of one platform where it holds the library, else of any."""

    def get_tag(self) -> tuple[str, str, str]:
        """The tag in the wheel's name."""
        built = self.get_finalized_command("build_kernels").library.exists()
        return "py3", "none", super().get_tag()[2] if built else "any"


if __name__ == "__main__":
    setup(distclass=Package, cmdclass={"build": Build, "build_kernels": BuildKernels, "bdist_wheel": Wheel})
