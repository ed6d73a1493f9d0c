"""The model families, found by the ``model_type`` of their ``config.json``."""

from surefoot.models.family import Family
from surefoot.models.llama import LLAMA
from surefoot.models.mistral import MISTRAL
from surefoot.models.phi3 import PHI3
from surefoot.models.qwen2 import QWEN2
from surefoot.models.qwen3 import QWEN3

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, MISTRAL, PHI3, QWEN2, QWEN3)}
