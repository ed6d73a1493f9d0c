"""The rules of the code base that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import typer.main
from tools.size import SOURCES, measure, measure_all

import surefoot
from surefoot import errors
from surefoot.cli import COMMANDS, build_app

ROOT = SOURCES.parent
PACKAGE = SOURCES / "surefoot"

LAYERS = {
    0: {"types", "protocols", "errors", "options", "native"},
    1: {"noise", "streams", "sampling", "tree", "verify", "stats", "logprobs", "ops", "cache"},
    2: {"models"},
    3: {"drafters"},
    4: {"control", "decode"},
    5: {
        "api",
        "bench",
        "chat",
        "conversation",
        "describe",
        "doctor",
        "engine",
        "explain",
        "loading",
        "opening",
        "presets",
        "prompts",
        "prove",
        "provenance",
        "request",
        "rescoring",
        "settings",
        "samples",
        "stops",
        "stop_strings",
        "text",
        "train",
    },
    6: {"__main__", "cli"},
}
LAYER_OF = {module: layer for layer, modules in LAYERS.items() for module in modules}

PAIR = [
    *["--draft-model", "--drafter", "--method", "--lookup-min", "--speculative-config", "--threads"],
    *["--config", "--profile"],
]
LAW = [
    *["--temperature", "--top-k", "--top-p", "--min-p"],
    *["--repetition-penalty", "--presence-penalty", "--frequency-penalty"],
    *["--logit-bias", "--forbidden-token", "--allowed-token"],
    *["--min-tokens", "--max-tokens", "--stop", "--stop-token-id", "--ignore-eos", "--seed"],
]
SPECULATION = ["--num-draft", "--num-draft-tokens", "--tree-width", "--acceptance", "--draft-sampling"]
LOADING = ["--dtype", "--device", "--exact", "--prefill-chunk"]
FLAGS = {
    "": ["--version"],
    "generate": [
        *[*PAIR, *LAW, *SPECULATION, *LOADING],
        *["--prompt", "--prompt-file", "--chat", "--system", "--prediction"],
        *["--n", "--sample-index", "--logprobs", "--prompt-logprobs", "--model-sampling", "--trace"],
        *["--measure-plain", "--no-measure-plain", "--json"],
    ],
    "chat": [
        *[*PAIR, *LAW, *SPECULATION, *LOADING],
        *["--system", "--raw", "--no-raw", "--measure-plain", "--json"],
    ],
    "explain": [
        *[*PAIR, *LAW, *SPECULATION, *LOADING],
        *["--prompt", "--prompt-file", "--chat", "--system", "--prediction", "--rounds", "--json"],
    ],
    "doctor": [
        *[*PAIR, *LOADING],
        *["--num-draft", "--num-draft-tokens", "--tree-width", "--context", "--files-only", "--json"],
    ],
    "bench": [
        *[*PAIR, *SPECULATION, *LOADING],
        *["--questions", "--kind", "--limit", "--repeats", "--temperature", "--raw", "--html", "--json"],
        *["--top-k", "--top-p", "--min-p", "--max-tokens", "--ignore-eos", "--seed"],
    ],
    "inspect": ["--presets", "--config", "--json"],
    "prove": [
        *[*PAIR, *LOADING],
        *["--prompts", "--limit", "--temperature", "--seeds", "--json"],
        *["--top-k", "--top-p", "--min-p"],
        *["--repetition-penalty", "--presence-penalty", "--frequency-penalty"],
        *["--max-tokens", "--ignore-eos"],
        *["--num-draft", "--num-draft-tokens", "--tree-width", "--draft-sampling"],
    ],
    "train": [],
    "train dflash": [
        *["--target", "--data", "--out", "--threads", "--json", "--dtype", "--device"],
        *["--layers", "--heads", "--kv-heads", "--head-dim", "--inner-size", "--block-size", "--taps", "--tap-layer"],
        *["--mask-token-id", "--rope-theta", "--init", "--anchors", "--gamma"],
        *["--answers", "--length", "--prompt-tokens", "--answer-tokens", "--temperature", "--greedy-share"],
        *["--held-out", "--max-sequences"],
        *["--epochs", "--steps", "--batch", "--at-once", "--learning-rate", "--warmup", "--weight-decay", "--clip"],
        *["--seed", "--precision"],
        *["--save-every", "--evaluate-every", "--prefetch", "--check-prompts"],
    ],
    "init": ["--path", "--force", "--json"],
    "config": [],
    "config path": ["--config", "--json"],
    "config get": ["--config", "--json"],
    "config set": ["--config", "--json"],
    "config show": ["--profile", "--config", "--json"],
}
"""The command line, frozen: a flag that comes, goes or changes its name edits this list and the changelog."""

ENTRY = re.compile(r"^((?:  )*)(\S+?)(/?)(?:\s{2,}.*)?$")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """``surefoot.cli.show``; a package is called like its folder."""
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in source_files()}


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules of the package that a tree imports, submodules by their own name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "surefoot")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their module in full"
            if node.module and node.module.split(".")[0] == "surefoot":
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    yield submodule if submodule in MODULES else node.module


def layer(module: str) -> int:
    return LAYER_OF[module.split(".")[1]]


def test_every_module_has_a_layer_and_every_name_a_module() -> None:
    assert {module.split(".")[1] for module in MODULES - {"surefoot"}} == set(LAYER_OF)


@pytest.mark.parametrize("path", source_files(), ids=module_name)
def test_imports_go_downward(path: Path) -> None:
    module = module_name(path)
    if module == "surefoot":
        return
    for imported in imports(parsed(path)):
        if imported != "surefoot":  # the version, and nothing else, lives at the root
            assert layer(imported) <= layer(module), f"{module} (layer {layer(module)}) imports {imported}"


def test_the_round_knows_no_concrete_model_and_one_drafter() -> None:
    named = {module for module in imports(parsed(PACKAGE / "decode.py")) if layer(module) in (2, 3)}
    assert named <= {"surefoot.drafters.none"}


def test_modules_have_no_import_cycles() -> None:
    graph = {module_name(path): set(imports(parsed(path))) - {"surefoot"} for path in source_files()}
    graph.pop("surefoot")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_functions_import_nothing_of_ours() -> None:
    for path in source_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert not list(imports(node)), f"{path}:{node.lineno} {node.name} imports inside a function"


def test_files_functions_and_arguments_keep_their_caps() -> None:
    assert [line for file in measure_all() for line in file.excesses()] == []


def test_the_caps_are_measured(tmp_path: Path) -> None:
    big = tmp_path / "big.py"
    arguments = ", ".join(f"a{i}" for i in range(8))
    big.write_text(f"def f(self, {arguments}):\n" + "    pass\n" * 60 + "\n" * 400)
    assert len(list(measure(big).excesses())) == 3


def test_only_options_reads_the_environment() -> None:
    readers = set()
    for path in source_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "getenvb", "putenv"):
                readers.add(path.name)
    assert readers == {"options.py"}


def test_the_public_names_are_the_designs_and_every_error() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert set(surefoot.__all__) == raised | {"load", "Engine", "SamplingParams", "SpeculativeOptions", "__version__"}
    assert list(surefoot.__all__) == sorted(surefoot.__all__)
    for name in surefoot.__all__:
        assert getattr(surefoot, name) is not None
    with pytest.raises(AttributeError):
        surefoot.Speedup  # noqa: B018


def loaded_by(statement: str) -> set[str]:
    """The modules a fresh process has after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import surefoot", "import surefoot.cli"])
def test_importing_the_package_waits_for_nothing_slow(statement: str) -> None:
    assert loaded_by(statement).isdisjoint({"torch", "numpy", "tokenizers", "transformers", "huggingface_hub"})


def test_the_library_needs_neither_the_reference_implementation_nor_the_command_line() -> None:
    assert loaded_by("import surefoot.api").isdisjoint({"transformers", "typer"})


def flags_of(command: str) -> list[str]:
    words = command.split()
    chosen = typer.main.get_command(build_app(words[0] if words else None))
    for word in words:
        chosen = chosen.commands[word]
    names = [name for parameter in chosen.params for name in (*parameter.opts, *parameter.secondary_opts)]
    return [name for name in names if name.startswith("-") and name != "--help"]


def every_command() -> set[str]:
    """Each command, and each command of one that is a group: ``config``, ``config get``, ..."""
    names = set(COMMANDS)
    for name in COMMANDS:
        group = typer.main.get_command(build_app(name)).commands[name]
        names |= {f"{name} {word}" for word in getattr(group, "commands", ())}
    return names


@pytest.mark.parametrize("command", FLAGS)
def test_the_flags_are_frozen(command: str) -> None:
    assert sorted(flags_of(command)) == sorted(FLAGS[command])


def test_every_command_is_frozen() -> None:
    assert set(FLAGS) == {"", *every_command()}


def own_texts() -> Iterator[tuple[Path, str]]:
    """The texts people wrote: sources, tests, tools, examples, documents and set-up."""
    folders = ("src", "tests", "tools", "examples", "benchmarks", "recipes", "docs", ".ci")
    paths = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in ("", ".py", ".md", ".sh")
    ]
    for path in (*paths, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "constraints.txt", ROOT / "pyproject.toml"):
        if path.is_file() and "__pycache__" not in path.parts and path != Path(__file__).resolve():
            yield path, path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"\b(TODO|FIXME|XXX|HACK)\b", "what is not done is an issue, not a comment"),
        (r"(?<![\w.~])/(home|root|Users|work)/\w", "a path of one machine"),
    ],
)
def test_texts_hold_nothing_that_does_not_belong(pattern: str, why: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in own_texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert found == [], why


def test_an_ignored_type_error_names_its_code_and_its_reason() -> None:
    reasoned = re.compile(r"# type: ignore\[[a-z, -]+\]  # \w")
    lines = [line for path in source_files() for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if "type: ignore" in line and not reasoned.search(line)] == []


def tree_in(document: str) -> set[str]:
    """The files and folders that a document's tree lists."""
    text = (ROOT / document).read_text(encoding="utf-8")
    block = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert block, "the document shows the tree of files in a text block"
    folders: list[str] = []
    files = set()
    for line in block.group(1).splitlines():
        match = ENTRY.match(line)
        assert match, line
        indent, name, is_folder = match.groups()
        folders = folders[: len(indent) // 2]
        place = "/".join([*folders, name])
        if is_folder:
            folders.append(name)
        files.add(place)
    return files


def test_every_source_file_is_listed_and_nothing_else() -> None:
    listed = tree_in("docs/files.md")
    assert [place for place in listed if not (ROOT / place).exists()] == []
    assert {str(path.relative_to(ROOT)) for path in source_files()} - listed == set()


def test_the_readme_lists_every_room() -> None:
    listed = tree_in("README.md")
    assert [place for place in listed if not (ROOT / place).exists()] == []
    rooms = {path for path in PACKAGE.iterdir() if path.is_file() or (path / "__init__.py").exists()}
    assert {str(path.relative_to(ROOT)) for path in rooms if path.suffix in ("", ".py")} - listed == set()


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [
        line.split() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    assert len(commands) > 5
    for program, name, *rest in commands:
        if program == "make":
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), name
        else:
            assert program == "surefoot"
            full = f"{name} {rest[0]}" if rest and f"{name} {rest[0]}" in FLAGS else name
            assert {word for word in rest if word.startswith("--")} <= set(FLAGS[full])


def test_the_python_of_the_readme_uses_public_names() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {
        node.attr
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "surefoot"
    }
    assert names
    assert names <= set(surefoot.__all__)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 200
