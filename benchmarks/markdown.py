"""Results as Markdown: tables, and how a result was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def circumstances(document: Mapping[str, object]) -> str:
    """How a result was made, in a line."""
    run = document["provenance"]
    assert isinstance(run, dict)
    versions = document.get("versions", {})
    assert isinstance(versions, dict)
    packages = ", ".join(f"{name} {version}" for name, version in (run["packages"] | versions).items())
    command = " ".join(["python -m benchmarks." + run["command"][0].removesuffix(".py"), *run["command"][1:]])
    return (
        f"`{command}`; {run['processor']}, {run['num_cores']} cores, {run['num_threads']} threads; {packages}; "
        f"{run['finished'][:10]}.\n"
    )
