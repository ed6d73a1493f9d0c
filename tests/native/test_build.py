"""The build: one object per source with its own flags, whatever the compiler lacks left out, nothing compiled twice."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from surefoot import native
from surefoot.native.library import Library, open_library
from surefoot.options import Environment

ROOT = Path(__file__).resolve().parents[2]


def load_setup() -> ModuleType:
    """setup.py as a module; it sets nothing up when it is imported."""
    spec = importlib.util.spec_from_file_location("surefoot_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


build = load_setup()
COMPILER = build.find_compiler(os.environ)
WITHOUT = [unit.without for unit in build.X86]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
Builder = Callable[[], "build.Outcome"]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Sources as the kernels', tiny: the library says which objects it was linked with."""
    folder = tmp_path / "source"
    folder.mkdir()
    folder.joinpath("model.hpp").write_text("#pragma once\n#define VALUE 1\n")
    for unit in (*build.NEEDED, *build.X86):
        name = Path(unit.source).stem
        folder.joinpath(unit.source).write_text(f'#include "model.hpp"\nint {name}_value() {{ return VALUE; }}\n')
    parts = [f"int {Path(unit.source).stem}_value();" for unit in (*build.NEEDED, *build.X86)]
    known = [
        f"#if defined(__x86_64__) && !defined({unit.without})\n"
        f"  value = value * 10 + {Path(unit.source).stem}_value();\n"
        "#endif"
        for unit in build.X86
    ]
    entry = [
        *parts,
        '#pragma GCC visibility push(default)\nextern "C" int value() {',
        "  int value = pool_value() * 10 + kernels_portable_value();",
        *known,
        "  return value;\n}",
    ]
    folder.joinpath("library.cpp").write_text("\n".join(entry) + "\n")
    return folder


@pytest.fixture
def run(sources: Path, tmp_path: Path) -> Builder:
    return lambda: build.build_library(COMPILER, sources, tmp_path / "objects", tmp_path / "out" / "built.so")


def value(tmp_path: Path) -> int:
    """What the library just built says, from a process of its own: a library stays open as it was."""
    code = f"import ctypes; print(ctypes.CDLL({str(tmp_path / 'out' / 'built.so')!r}).value())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def all_sets() -> int:
    asked = subprocess.run([*COMPILER, "-dumpmachine"], capture_output=True, text=True, check=True)
    return int("1" * len(build.units_for(asked.stdout.strip())))


def test_a_machine_with_a_compiler_has_the_kernels() -> None:
    opened = open_library(Path(native.__file__).with_name("libsurefoot.so"), Environment())
    assert isinstance(opened, Library), opened.reason


def test_every_object_is_in_the_library(run: Builder, tmp_path: Path) -> None:
    assert run() == build.Outcome(True, ())
    assert value(tmp_path) == all_sets()


def test_an_instruction_set_that_does_not_compile_is_left_out(run: Builder, sources: Path, tmp_path: Path) -> None:
    if all_sets() == 11:
        pytest.skip("this processor has one instruction set")
    sources.joinpath("kernels_avx512_bf16.cpp").write_text("#error no such set\n")
    outcome = run()
    assert outcome.built
    assert len(outcome.lines) == 1
    assert outcome.lines[0].startswith("kernels_avx512_bf16.cpp is left out: ")
    assert "no such set" in outcome.lines[0]
    assert value(tmp_path) == 1111


@pytest.mark.parametrize("broken", ["pool.cpp", "kernels_portable.cpp", "library.cpp", "model.hpp"])
def test_no_library_is_left_where_a_needed_source_does_not_compile(
    run: Builder, sources: Path, tmp_path: Path, broken: str
) -> None:
    assert run().built
    sources.joinpath(broken).write_text("#error broken\n")
    outcome = run()
    assert not outcome.built
    assert "error" in outcome.lines[-1]
    assert outcome.lines[-1].startswith("The kernels did not compile; torch computes")
    assert not (tmp_path / "out" / "built.so").exists()


def test_sources_that_are_missing_or_do_not_link_make_no_library(run: Builder, sources: Path) -> None:
    text = sources.joinpath("pool.cpp").read_text()
    sources.joinpath("pool.cpp").unlink()
    assert not run().built
    sources.joinpath("pool.cpp").write_text(text)
    assert run().built


def test_without_a_compiler_nothing_is_built_and_one_line_says_so(tmp_path: Path) -> None:
    assert build.find_compiler({"PATH": str(tmp_path), "CXX": "g++"}) is None
    outcome = build.build_library(None, tmp_path, tmp_path, tmp_path / "built.so")
    assert not outcome.built
    assert len(outcome.lines) == 1
    assert "CXX" in outcome.lines[0]


def test_the_compiler_is_the_one_that_is_named(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.write_text("#!/bin/sh\n")
    named.chmod(0o755)
    assert build.find_compiler({"PATH": os.environ["PATH"], "CXX": f"{named} -m64"}) == (str(named), "-m64")
    assert build.find_compiler({"PATH": os.environ["PATH"], "CXX": "no-such-compiler"}) == COMPILER


def times(tmp_path: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "objects").glob("*.o")}


def test_only_what_is_older_than_its_source_is_compiled_again(run: Builder, sources: Path, tmp_path: Path) -> None:
    for path in sources.iterdir():
        os.utime(path, (1e9, 1e9))
    run()
    first = times(tmp_path)
    run()
    assert times(tmp_path) == first
    sources.joinpath("pool.cpp").touch()
    run()
    second = times(tmp_path)
    assert [name for name in first if second[name] != first[name]] == ["pool.o"]
    sources.joinpath("model.hpp").write_text("#pragma once\n#define VALUE 2\n")
    run()
    assert value(tmp_path) == 2 * all_sets()


def test_other_flags_compile_again(run: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    first = times(tmp_path)
    monkeypatch.setattr(build, "COMMON", (*build.COMMON, "-DVALUE_OF_A_FLAG=3"))
    run()
    second = times(tmp_path)
    assert all(second[name] != first[name] for name in first)


def test_flags_pin_the_bits_down_and_no_processor() -> None:
    flags = {unit.source: (*build.COMMON, *unit.flags) for unit in (*build.NEEDED, *build.X86)}
    for own in flags.values():
        assert "-ffp-contract=off" in own
        assert not any("native" in flag or "fast-math" in flag or flag in ("-Ofast", "-march") for flag in own)
    assert not any(flag.startswith("-m") for flag in flags["kernels_portable.cpp"] + flags["pool.cpp"])
    assert build.units_for("aarch64-linux-gnu") == build.NEEDED
    assert len(build.units_for("x86_64-linux-gnu")) == 5


def test_every_kernel_source_is_compiled() -> None:
    compiled = {unit.source for unit in (*build.NEEDED, *build.X86)} | {build.ENTRY}
    assert {path.name for path in (ROOT / build.SOURCES).glob("*.cpp")} == compiled


def test_the_library_says_which_sets_were_left_out() -> None:
    text = (ROOT / build.SOURCES / build.ENTRY).read_text(encoding="utf-8")
    assert [name for name in WITHOUT if f"!defined({name})" not in text] == []


def test_objects_that_run_anywhere_are_linked_first() -> None:
    assert [len(unit.flags) for unit in (*build.NEEDED, *build.X86)] == [0, 0, 2, 6, 7]


@pytest.fixture
def project(sources: Path, tmp_path: Path) -> Path:
    """A project like this one, with tiny kernels."""
    folder = tmp_path / "project"
    package = folder / "src" / "surefoot"
    (package / "native").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("__init__.py", "native/__init__.py"):
        (package / name).write_text('"""Empty."""\n')
    sources.rename(package / "native" / "source")
    return folder


def command(project: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "--quiet", *words],
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_a_wheel_holds_the_library_and_names_its_platform(project: Path) -> None:
    command(project, "bdist_wheel")
    (wheel,) = project.glob("dist/*.whl")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "surefoot/native/libsurefoot.so" in names
    assert [name for name in names if name.endswith(("pp", ".o"))] == []


def test_a_wheel_made_without_a_compiler_is_for_any_platform(project: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    said = command(project, "bdist_wheel", PATH=str(empty), CXX="")
    assert said.count("\n") == 1
    assert "No C++ compiler was found" in said
    (wheel,) = project.glob("dist/*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "surefoot/native/libsurefoot.so" not in zipfile.ZipFile(wheel).namelist()


def test_a_source_distribution_holds_the_sources_and_no_library(project: Path) -> None:
    command(project, "build_kernels", "--inplace")
    assert ctypes.CDLL(str(project / "src" / "surefoot" / "native" / "libsurefoot.so")).value() == all_sets()
    command(project, "sdist")
    (archive,) = project.glob("dist/*.tar.gz")
    with tarfile.open(archive) as held:
        names = {Path(name).name for name in held.getnames()}
    assert {unit.source for unit in (*build.NEEDED, *build.X86)} | {"library.cpp", "model.hpp", "setup.py"} <= names
    assert "libsurefoot.so" not in names
