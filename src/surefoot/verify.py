"""Decides which of a tree's drafted tokens stand, so that the emitted ones are the target's own.

``verify`` (match): the target draws its own token at each node it walks to; the tree only decides whether the next row
of logits is already there. ``verify_reject``: rejection sampling along a chain of sampled drafts (Leviathan et al.,
2211.17192; Chen et al., 2302.01318), exact in law. Rows that are not walked to change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from surefoot.errors import DrafterError, OptionError, TargetError
from surefoot.protocols import Sampler
from surefoot.sampling import UNDRAWABLE, undrawable
from surefoot.tree import chain_path, is_chain
from surefoot.types import DraftTree, Origin, Tokens, Verdict


def verify(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    """Walks the tree along the target's own draws from ``logits [N, V]``; emits the draws, the last one undrafted.

    Of siblings with the same token the first is walked to.

    Raises:
        TargetError: the number of rows is not the number of nodes.
        SamplingError: a row on the walk has no token.
    """
    if sampler.greedy_rows:
        draws = sampler.draw_rows(logits)  # one argmax over all rows, and one transfer of what it gives
        _check_rows(tree, len(draws))
        if is_chain(tree.parents):
            return _walk_chain(tree.ids, draws)
        return _walk(tree, lambda node, prefix: _drawn(draws, node, len(prefix)))
    _check_rows(tree, len(logits))
    rows = logits.cpu()  # one transfer for the whole walk; none where the logits are on the host already
    return _walk(tree, lambda node, prefix: sampler.draw(rows[node], prefix))


def _walk_chain(tokens: Tokens, draws: Sequence[int]) -> Verdict:
    """What :func:`_walk` gives of a chain of ``tokens`` whose draws are all there."""
    node, last = 0, len(tokens) - 1
    while node < last and draws[node] == tokens[node + 1]:
        node += 1
    fed = tokens if node == last else tokens[: node + 1]
    origin: Origin = "plain" if last == 0 else "bonus" if node == last else "correction"
    return Verdict(chain_path(node + 1), fed, _drawn(draws, node, node), origin, last)


def _drawn(draws: Sequence[int], node: int, depth: int) -> int:
    token = draws[node]
    if token == UNDRAWABLE:
        raise undrawable(f"{depth} tokens after the round's root")
    return token


def _walk(tree: DraftTree, draw: Callable[[int, Sequence[int]], int]) -> Verdict:
    parents, tokens = tree.parents, tree.ids
    node = 0
    path = [node]
    prefix: list[int] = []
    while True:
        token = draw(node, prefix)
        for child in range(node + 1, len(parents)):  # a parent comes before its children
            if parents[child] == node and tokens[child] == token:
                break
        else:
            break
        node = child
        path.append(node)
        prefix.append(token)
    return _verdict(tree, path, (tokens[0], *prefix), token, is_leaf=node not in parents)


def verify_reject(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    """Accepts each drafted token with probability ``min(1, p / q)``, else draws from the part of p that q lacks.

    ``logits [N, V]`` give p through the sampler; ``tree.q`` is the law each drafted token was sampled from. Coins,
    residuals and the bonus are choices of their own, keyed by node and purpose. Drafts chosen without sampling have no
    q: a draw from p that walks on where a child carries it is then the same law, on trees too, and that is done.

    Raises:
        OptionError: a tree of sampled drafts has branches.
        DrafterError: ``q`` has the wrong shape, or gives a drafted token no probability.
        TargetError, SamplingError: as for :func:`verify`.
    """
    if tree.q is None:
        return verify(tree, logits, sampler)
    _check_rows(tree, len(logits))
    tokens = tree.ids
    rows = logits.cpu()
    laws = _drafted_laws(tree, tree.q)
    choices = sampler.choices
    for node in range(1, len(tree)):
        prefix = tokens[1:node]
        p, q, token = sampler.law(rows[node - 1], prefix), laws[node - 1], tokens[node]
        _check_law(q, p, token)
        if not choices.bernoulli(min(1.0, float(p[token] / q[token])), node, "accept"):
            correction = choices.categorical(residual(p, q), node, "residual")
            return _verdict(tree, list(range(node)), tokens[:node], correction, is_leaf=False)
    last = len(tree) - 1
    bonus = choices.categorical(sampler.law(rows[last], tokens[1:]), last, "bonus")
    return _verdict(tree, list(range(len(tree))), tokens, bonus, is_leaf=True)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """``(p - q)+`` normalised, ``[V]``: what a rejected draft is replaced from.

    Where p equals q nothing is ever rejected, save by rounding; p itself is then the law to draw from.
    """
    lacking = (p - q).clamp(min=0)
    mass = lacking.sum()
    return lacking / mass if mass > 0 else p


def _drafted_laws(tree: DraftTree, q: Tensor) -> Tensor:
    if not is_chain(tree.parents):
        raise OptionError("acceptance 'reject' found sampled drafts that branch; expected a chain. Use 'match'")
    if len(q) != len(tree) - 1:
        raise DrafterError(f"q has {len(q)} rows; expected {len(tree) - 1}, one for each drafted token")
    return q.cpu()


def _check_law(q: Tensor, p: Tensor, token: int) -> None:
    if q.shape != p.shape:
        raise DrafterError(f"q covers {len(q)} ids; expected the target's {len(p)}")
    if not 0 <= token < len(q) or not q[token] > 0:
        raise DrafterError(f"q gives the drafted token {token} no probability; expected the law it was sampled from")


def _check_rows(tree: DraftTree, num_rows: int) -> None:
    if num_rows != len(tree.parents):
        raise TargetError(f"the target scored {num_rows} rows; expected {len(tree)}, one for each node of the tree")


def _verdict(tree: DraftTree, path: list[int], fed: Tokens, next_token: int, *, is_leaf: bool) -> Verdict:
    origin: Origin = "plain" if len(tree) == 1 else "bonus" if is_leaf else "correction"
    return Verdict(path=tuple(path), fed=fed, next_token=next_token, next_origin=origin, num_drafted=len(tree) - 1)
