"""Loading: a name to a model whose every weight was checked.

A package where a single file was drawn, as the checks outgrow the size caps: ``resolve`` and ``hub`` find the
directory, ``formats`` refuses what cannot or must not be read, ``files``, ``header`` and ``shards`` read it without
trusting it, ``checkpoint`` fills the model, ``tokenizer`` and ``generation`` read what lies beside the weights,
``pairing`` compares a draft model with its target, ``load`` puts them in order; ``dflash`` does so for DFlash drafters.
"""

from surefoot.loading.dflash import find_dflash, load_dflash
from surefoot.loading.load import load_draft, load_target
from surefoot.loading.loaded import LoadedTarget
from surefoot.loading.pairing import check_pair
from surefoot.loading.resolve import bundled

__all__ = ["LoadedTarget", "bundled", "check_pair", "find_dflash", "load_dflash", "load_draft", "load_target"]
