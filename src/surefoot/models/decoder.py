"""The shared decoder stack."""

from __future__ import annotations

import torch
from torch import nn

from surefoot.models.config import DecoderConfig
from surefoot.models.weights import DecoderLayer


class DecoderModel(nn.Module):
    """A dense decoder: parameters only, so that it can be built on the ``meta`` device and filled."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = nn.Parameter(torch.empty(config.hidden_size), requires_grad=False)
        self.head: nn.Parameter | None = None
        if not config.tied_head:
            self.head = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)

    @property
    def config(self) -> DecoderConfig:
        """What it was built from."""
        return self._config
