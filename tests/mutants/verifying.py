"""Defects of the verifiers: the walk of ``match``, the arithmetic of ``reject``."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MATCH = "tests/verify/test_match.py::"
REJECT = "tests/verify/test_reject.py::"
LAW = "tests/lossless/test_reject_law.py::test_the_law_is_that_of_plain_decoding"
PATHWISE = "tests/lossless/test_match_pathwise.py::"

VERIFYING = (
    Mutant(
        name="first-draft-is-never-verified",
        bug="an off-by-one row of logits: each node is judged by its parent's row (lattice 243)",
        file="verify.py",
        before="while node < last and draws[node] == tokens[node + 1]:",
        after="while node < last and draws[max(node - 1, 0)] == tokens[node + 1]:",
        killer=MATCH + "test_a_chain_is_accepted_up_to_the_first_difference",
    ),
    Mutant(
        name="bonus-of-a-chain-comes-from-the-row-before",
        bug="the bonus token is drawn from the wrong row",
        file="verify.py",
        before="fed, _drawn(draws, node, node)",
        after="fed, _drawn(draws, max(node - 1, 0), node)",
        killer=MATCH + "test_a_fully_accepted_chain_ends_with_a_bonus",
    ),
    Mutant(
        name="bonus-comes-from-the-row-before",
        bug="the bonus token is drawn from the wrong row",
        file="verify.py",
        before="lambda node, prefix: sampler.draw(rows[node], prefix)",
        after="lambda node, prefix: sampler.draw(rows[min(node, max(len(rows) - 2, 0))], prefix)",
        killer=MATCH + "test_a_fully_accepted_chain_ends_with_a_bonus",
    ),
    Mutant(
        name="penalties-miss-the-drafted-path",
        bug="processors at verified rows see the history without the tokens drafted before them (vllm 18902)",
        file="verify.py",
        before="lambda node, prefix: sampler.draw(rows[node], prefix)",
        after="lambda node, prefix: sampler.draw(rows[node])",
        killer=PATHWISE + "test_every_tree_and_every_sequence_of_draws[2-5-row by row]",
    ),
    Mutant(
        name="every-draft-is-accepted",
        bug="drafts are always accepted: the count of matches is inverted (transformers 28508)",
        file="verify.py",
        before="if parents[child] == node and tokens[child] == token:",
        after="if parents[child] == node:",
        killer=PATHWISE + "test_every_tree_and_every_sequence_of_draws[2-5-rows together]",
    ),
    Mutant(
        name="nan-row-becomes-a-token",
        bug="a row of NaN gives an id that no token has, and a crash steps later (vllm 45060, 53029)",
        file="verify.py",
        before="if token == UNDRAWABLE:",
        after="if token < UNDRAWABLE:",
        killer=MATCH + "test_only_rows_on_the_walk_can_fail",
    ),
    Mutant(
        name="acceptance-forgets-q",
        bug="a draft is accepted with probability p, as if it had been certain",
        file="verify.py",
        before="float(p[token] / q[token])",
        after="float(p[token])",
        killer=LAW + "[1-4-0]",
    ),
    Mutant(
        name="residual-is-p",
        bug="a rejected draft is replaced from p itself: TV .245 (EAGLE 20 and 50)",
        file="verify.py",
        before="choices.categorical(residual(p, q), node",
        after="choices.categorical(p, node",
        killer=LAW + "[1-4-0]",
    ),
    Mutant(
        name="residual-is-the-distance",
        bug="the residual keeps mass where q exceeds p",
        file="verify.py",
        before="lacking = (p - q).clamp(min=0)",
        after="lacking = (p - q).abs()",
        killer=LAW + "[1-4-0]",
    ),
    Mutant(
        name="residual-without-mass-is-nan",
        bug="nought over nought gives a law of NaN (MTPLX 82)",
        file="verify.py",
        before="return lacking / mass if mass > 0 else p",
        after="return lacking / mass if mass >= 0 else p",
        killer=REJECT + "test_a_residual_without_mass_is_the_targets_law",
    ),
    Mutant(
        name="bonus-comes-from-the-draft",
        bug="after full acceptance the bonus is drawn from the draft's law: TV .269",
        file="verify.py",
        before='choices.categorical(sampler.law(rows[last], tokens[1:]), last, "bonus")',
        after='choices.categorical(laws[last - 1], last, "bonus")',
        killer=LAW + "[1-4-0]",
    ),
    Mutant(
        name="reject-judges-by-the-childs-row",
        bug="the ratio's p is the next position's",
        file="verify.py",
        before="sampler.law(rows[node - 1], prefix)",
        after="sampler.law(rows[node], prefix)",
        killer=LAW + "[1-4-0]",
    ),
    Mutant(
        name="coin-and-residual-share-a-stream",
        bug="the residual is drawn with the coin that rejected: biased by TV .05",
        file="verify.py",
        before='residual(p, q), node, "residual")',
        after='residual(p, q), node, "accept")',
        killer=REJECT + "test_coins_residual_and_bonus_are_those_of_the_paper",
    ),
    Mutant(
        name="reject-history-misses-the-path",
        bug="p and q are compared under different histories (vllm 18902)",
        file="verify.py",
        before="prefix = tokens[1:node]",
        after="prefix = tokens[1:1]",
        killer=LAW + "_with_every_processor[{'repetition_penalty': 1.3}]",
    ),
    Mutant(
        name="rejected-token-is-kept",
        bug="the rejected token stays in the cache, its replacement is never observed: TV .262",
        file="verify.py",
        before="_verdict(tree, list(range(node)), tokens[:node], correction, is_leaf=False)",
        after="_verdict(tree, list(range(node + 1)), tokens[: node + 1], correction, is_leaf=False)",
        killer=LAW + "[1-4-0]",
    ),
    Mutant(
        name="draft-without-probability-passes",
        bug="q that does not cover the drafted token is used silently (vllm 40269)",
        file="verify.py",
        before="or not q[token] > 0:",
        after="or not q[token] >= 0:",
        killer=REJECT + "test_a_wrong_q_is_the_drafters_fault",
    ),
    Mutant(
        name="sampled-branches-pass",
        bug="siblings of a sampled tree are judged as a chain: TV .725",
        file="verify.py",
        before="if not is_chain(tree.parents):",
        after="if len(tree.parents) == 0:",
        killer=REJECT + "test_sampled_drafts_that_branch_are_refused",
    ),
)
