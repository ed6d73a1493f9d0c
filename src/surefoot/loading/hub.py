"""Snapshots from the Hugging Face hub: the only place that opens connections, and only for a hub id the user named."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from surefoot.errors import ModelNotFoundError

ALLOWED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
"""Files that are downloaded; no pickle and no Python."""
IGNORED = ["*/*", "consolidated*", "*.onnx*", "*.gguf*"]


def snapshot(hub_id: str, offline: bool) -> Path:
    """The local snapshot of ``hub_id``, downloaded where it is not in the cache and ``offline`` does not forbid it."""
    try:
        found = huggingface_hub.snapshot_download(
            hub_id, allow_patterns=ALLOWED, ignore_patterns=IGNORED, local_files_only=offline
        )
    except GatedRepoError as fault:
        raise _not_found(hub_id, "it is gated", "Accept its terms on the hub and run `hf auth login`") from fault
    except RepositoryNotFoundError as fault:
        raise _not_found(
            hub_id, "the hub has no such model, or it is private", "Check the spelling, or run `hf auth login`"
        ) from fault
    except HFValidationError as fault:
        raise _not_found(hub_id, str(fault), "Check the spelling") from fault
    except (LocalEntryNotFoundError, IncompleteSnapshotError) as fault:
        reason = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
        advice = "Unset it" if offline else "Check the connection"
        raise _not_found(
            hub_id, f"{reason} and it is not in the local cache", f"{advice}, or give a directory"
        ) from fault
    except (HfHubHTTPError, OSError) as fault:
        raise _not_found(
            hub_id, f"the download failed ({type(fault).__name__}: {fault})", "Try again, or give a directory"
        ) from fault
    return Path(found)


def _not_found(hub_id: str, reason: str, advice: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"found no directory and no bundled model {hub_id!r}, and as a hub id: {reason}. {advice}"
    )
