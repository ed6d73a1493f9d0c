"""The check of the settings file: whether it reads, and what it says of the pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from surefoot.doctor.check import Check
from surefoot.errors import OptionError
from surefoot.options import Environment
from surefoot.settings import default_file, read_settings

NAME = "settings file"
MEND = "Correct that line; `surefoot init` writes a commented file, `surefoot config path` says where"


def check_settings_file(given: Path | None, label: str, origins: Mapping[str, str]) -> Check:
    """Whether the settings file reads, and whether the model called ``label`` is one of its entries with a drafter.

    ``origins`` says where each setting in force came from.
    """
    environment = Environment.read()
    try:
        settings = read_settings(given, environment)
    except OptionError as error:
        return Check.failed(NAME, error, MEND)
    if settings.file is None:
        return Check(name=NAME, level="PASS", found=f"none at {default_file(environment)}: the defaults hold")
    said = tuple(f"{key} is from {place}" for key, place in origins.items() if place.startswith(str(settings.file)))
    found = f"{settings.file}: {len(settings.models)} models, {len(settings.profiles)} profiles"
    entry = settings.model(label)
    if entry is None:
        return Check(name=NAME, level="PASS", found=f"{found}; {label} is none of them", details=said)
    found = f"{found}; {label} is at {entry.place}"
    if not {"draft_model", "method"} & set(origins):
        return Check(
            name=NAME,
            level="WARN",
            found=f"{found}, and names no drafter: lookup is taken",
            mend='Give the entry a draft_model, or say method = "lookup" if that is meant',
            details=said,
        )
    return Check(name=NAME, level="PASS", found=found, details=said)
