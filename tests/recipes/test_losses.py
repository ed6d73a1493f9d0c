"""The losses are what their names say, by slow and obvious formulas."""

from __future__ import annotations

import math

import torch
from recipes.pebble.losses import cross_entropy, divergence, variation


def laws(logits: torch.Tensor, temperature: float) -> list[list[float]]:
    rows = []
    for row in logits.double().flatten(0, -2).tolist():
        weights = [math.exp(value / temperature) for value in row]
        rows.append([weight / sum(weights) for weight in weights])
    return rows


def test_each_loss_is_the_mean_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn(2, 2, 3, 11, generator=generator)
    labels = torch.randint(0, 11, (2, 3), generator=generator)
    p, q = laws(target, 1.0), laws(draft, 1.0)
    entropies = [-math.log(law[label]) for law, label in zip(p, labels.flatten().tolist(), strict=True)]
    assert math.isclose(cross_entropy(target, labels).item(), sum(entropies) / 6, rel_tol=1e-5)
    kl = [sum(a * math.log(a / b) for a, b in zip(one, other, strict=True)) for one, other in zip(p, q, strict=True)]
    assert math.isclose(divergence(target, draft).item(), sum(kl) / 6, rel_tol=1e-5)
    p, q = laws(target, 0.8), laws(draft, 0.8)
    overlaps = [sum(map(min, one, other)) for one, other in zip(p, q, strict=True)]
    assert math.isclose(variation(target, draft, 0.8).item(), 1 - sum(overlaps) / 6, rel_tol=1e-5)
    assert divergence(target, target).item() == variation(target, target, 0.8).item() == 0.0


def test_only_the_draft_learns_from_the_distances() -> None:
    target, draft = torch.randn(4, 11), torch.randn(4, 11, requires_grad=True)
    (divergence(target, draft) + variation(target, draft, 0.8)).backward()
    assert draft.grad is not None
    assert draft.grad.abs().sum() > 0
