"""Rejection sampling along a chain, one round at a time: its arithmetic and what it refuses."""

from __future__ import annotations

import pytest
import torch

from surefoot.errors import DrafterError, OptionError, TargetError
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.sampling import RequestSampler
from surefoot.tree import chain
from surefoot.types import DraftTree
from surefoot.verify import residual, verify_reject

V = 4


def sampler(choices=None) -> RequestSampler:
    reject = SpeculativeOptions(acceptance="reject")
    return RequestSampler(
        SamplingParams(temperature=1.0), [0], seed=0, vocab_size=V, speculative=reject, choices=choices
    )


def law(*probs: float) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64)


class Script:
    """Choices that answer as told and write down what they were asked."""

    def __init__(self, *coins: bool) -> None:
        self.coins = list(coins)
        self.asked: list[tuple[str, int, object]] = []

    def bernoulli(self, probability: float, node: int, purpose: str) -> bool:
        self.asked.append((purpose, node, round(probability, 12)))
        return self.coins.pop(0)

    def categorical(self, probs: torch.Tensor, node: int, purpose: str) -> int:
        self.asked.append((purpose, node, [round(p, 12) for p in probs.tolist()]))
        return int(probs.argmax())


P = torch.stack([law(0.1, 0.2, 0.3, 0.4), law(0.5, 0.25, 0.25, 0.0), law(0.0, 0.0, 1.0, 0.0)])
Q = torch.stack([law(0.4, 0.3, 0.2, 0.1), law(0.25, 0.25, 0.25, 0.25)])


def test_coins_residual_and_bonus_are_those_of_the_paper():
    script = Script(True, True)
    verdict = verify_reject(chain([2, 0, 1], q=Q), P.log(), sampler(script))
    assert script.asked == [("accept", 1, 0.25), ("accept", 2, 1.0), ("bonus", 2, [0, 0, 1, 0])]
    assert (verdict.path, verdict.emitted, verdict.next_origin) == ((0, 1, 2), (0, 1, 2), "bonus")

    script = Script(True, False)
    verdict = verify_reject(chain([2, 0, 3], q=Q), P.log(), sampler(script))
    assert script.asked == [("accept", 1, 0.25), ("accept", 2, 0.0), ("residual", 2, [1, 0, 0, 0])]
    assert (verdict.path, verdict.emitted, verdict.next_origin) == ((0, 1), (0, 0), "correction")

    script = Script(False)
    verdict = verify_reject(chain([2, 1, 3], q=Q), P.log(), sampler(script))
    assert script.asked == [("accept", 1, round(2 / 3, 12)), ("residual", 1, [0, 0, 0.25, 0.75])]
    assert (verdict.path, verdict.fed, verdict.emitted) == ((0,), (2,), (3,))


def test_a_root_alone_draws_from_the_target():
    script = Script()
    verdict = verify_reject(chain([2]), P[:1].log(), sampler(script))
    assert script.asked == [("target", 0, [0.1, 0.2, 0.3, 0.4])]
    assert (verdict.path, verdict.emitted, verdict.next_origin) == ((0,), (3,), "plain")


def test_a_residual_without_mass_is_the_targets_law():
    p = law(0.5, 0.5, 0, 0)
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(p, law(0.5, 0.5, 1e-17, 0)), p)
    assert residual(p, law(1, 0, 0, 0)).tolist() == [0, 1, 0, 0]


def test_a_greedy_request_reduces_to_one_hot_laws():
    greedy = RequestSampler(SamplingParams(), [0], seed=0, vocab_size=V)
    one_hot = torch.eye(V, dtype=torch.float64)
    for drafted in range(V):
        verdict = verify_reject(chain([2, drafted], q=one_hot[[drafted]]), P[:2].log(), greedy)
        assert verdict.emitted == ((3, 0) if drafted == 3 else (3,))


def test_sampled_drafts_that_branch_are_refused():
    branched = DraftTree(tokens=torch.tensor([2, 0, 1]), parents=(-1, 0, 0), q=Q)
    with pytest.raises(OptionError, match="branch"):
        verify_reject(branched, P.log(), sampler())


def test_drafts_chosen_without_sampling_are_walked_by_the_targets_own_draws():
    script = Script()
    branched = DraftTree(tokens=torch.tensor([2, 1, 3]), parents=(-1, 0, 0))
    verdict = verify_reject(branched, P[[0, 1, 2]].log(), sampler(script))
    assert script.asked == [("target", 0, [0.1, 0.2, 0.3, 0.4]), ("target", 1, [0, 0, 1, 0])]
    assert (verdict.path, verdict.emitted, verdict.next_origin) == ((0, 2), (3, 2), "bonus")


def test_a_wrong_q_is_the_drafters_fault():
    for q in (Q[:1], Q[:, :3], torch.stack([law(0, 0.5, 0.5, 0), Q[1]])):
        with pytest.raises(DrafterError):
            verify_reject(chain([2, 0, 1], q=q), P.log(), sampler())
    with pytest.raises(TargetError):
        verify_reject(chain([2, 0, 1], q=Q), P[:2].log(), sampler())
