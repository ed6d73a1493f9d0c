"""The model families, found by the ``model_type`` of their ``config.json``."""

from surefoot.models.family import Family
from surefoot.models.llama import LLAMA
from surefoot.models.mistral import MISTRAL
from surefoot.models.phi3 import PHI3
from surefoot.models.qwen2 import QWEN2
from surefoot.models.qwen3 import QWEN3
from surefoot.models.qwen3_5 import QWEN3_5
from surefoot.models.qwen3_5_moe import QWEN3_5_MOE
from surefoot.models.qwen3_moe import QWEN3_MOE
from surefoot.models.qwen3_next import QWEN3_NEXT

_ALL = (LLAMA, MISTRAL, PHI3, QWEN2, QWEN3, QWEN3_5, QWEN3_5_MOE, QWEN3_MOE, QWEN3_NEXT)

FAMILIES: dict[str, Family] = {family.model_type: family for family in _ALL}


def family_named(model_type: object) -> Family | None:
    """The family of a config's ``model_type``; the text part of a larger model says so in its own."""
    if not isinstance(model_type, str):
        return None
    whole = FAMILIES.get(model_type.removesuffix("_text"))
    return FAMILIES.get(model_type) or (whole if whole is not None and whole.whole_models else None)
