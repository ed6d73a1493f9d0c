"""What is refused before a weight is read: formats that execute code, formats and models not implemented."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from surefoot.drafters.dflash.reading import is_dflash
from surefoot.errors import CheckpointError, UnsupportedModelError
from surefoot.models import FAMILIES, family_named
from surefoot.models.family import Family

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")

ADVICE: Mapping[str, str] = {
    ".gguf": "Load the original checkpoint it was made from: GGUF is not read",
    ".onnx": "Load the original checkpoint it was exported from: ONNX is not read",
    ".h5": "Save the model with save_pretrained: TensorFlow weights are not read",
    ".msgpack": "Save the model with save_pretrained: Flax weights are not read",
    ".npz": "Save the model with save_pretrained: NumPy archives are not read",
}
"""Other formats by file name ending, with what to do."""

MODALITIES = ("vision_config", "audio_config", "image_token_id", "audio_token_id", "video_token_id", "vision_tower")


def refuse_foreign(directory: Path) -> None:
    """Refuses a directory by the files in it; none of them is opened."""
    try:
        suffixes = {path.suffix.lower(): path.name for path in sorted(directory.iterdir(), reverse=True)}
    except OSError as fault:
        raise CheckpointError(f"{directory}: cannot be read: {fault}. Check its permissions") from fault
    has_config = (directory / "config.json").exists()
    if (directory / "adapter_config.json").exists():
        raise UnsupportedModelError(
            f"{directory}: found adapter_config.json, an adapter (LoRA); expected a whole model. "
            "Merge it into its base model (peft: merge_and_unload), save that with save_pretrained and load it"
        )
    if ".safetensors" in suffixes:
        return
    for ending in PICKLES:
        if ending in suffixes:
            raise UnsupportedModelError(
                f"{directory}: found {suffixes[ending]} and no safetensors; expected safetensors. Pickles can execute "
                "code and are never opened: load the model in its own library and save it with save_pretrained"
            )
    for ending, advice in ADVICE.items():
        if ending in suffixes:
            raise UnsupportedModelError(
                f"{directory}: found {suffixes[ending]} and no safetensors; expected safetensors. {advice}"
            )
    if not has_config:
        raise CheckpointError(
            f"{directory}: found no config.json and no safetensors; expected a model in the Hugging Face layout. "
            "Check the path"
        )


def family_of(raw: Mapping[str, object], where: str) -> Family:
    """The family of a raw config; refuses by name what is not a causal text model of a known family."""
    if is_dflash(raw):
        raise UnsupportedModelError(
            f"{where}: found a DFlash drafter, which cannot answer by itself; expected a whole model. Name the target "
            "it was trained for first, and the drafter with --draft-model"
        )
    model_type = raw.get("model_type")
    family = family_named(model_type)
    code = raw.get("auto_map")
    if code is not None and (family is None or not family.names_own_code(code)):
        refuse_code(where)
    architectures = raw.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    for name in names:
        if family is not None and name in family.whole_models:
            continue  # its text part is read, its notes say so
        if "ConditionalGeneration" in name or "Vision" in name:
            raise UnsupportedModelError(
                f"{where}: architectures names {name}, a model of several modalities; expected a causal text model. "
                "Load its language model if that is published apart"
            )
    around = raw if family is None else family.flatten(raw)
    for field in MODALITIES:
        if around.get(field) is not None:
            raise UnsupportedModelError(
                f"{where}: {field} announces images, audio or video; expected a causal text model. "
                "Load its language model if that is published apart"
            )
    if family is None:
        raise UnsupportedModelError(
            f"{where}: model_type is {model_type!r:.80}; expected one of {', '.join(sorted(FAMILIES))}. "
            "Use a model of these families"
        )
    return family


def refuse_code(where: str) -> None:
    """Refuses a file whose ``auto_map`` names code that comes with the checkpoint."""
    raise UnsupportedModelError(
        f"{where}: auto_map asks for Python code that comes with the checkpoint, which is never executed; "
        "expected a model this library implements itself. Use the original model of its family"
    )
