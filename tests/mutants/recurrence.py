"""Defects of the delta layers and of what undoes their rounds."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RULE = "tests/ops/test_delta_rule.py::"
STATES = "tests/cache/test_recurrent.py::"
FORMULAS = RULE + "test_the_layer_is_the_formulas[3-odd]"
COUNTS = STATES + "test_every_accepted_count_is_never_having_speculated[even-fp32]"
TREES = STATES + "test_every_path_of_a_tree_is_that_path_alone[fp32-long run]"
LATER = STATES + "test_nodes_that_come_later_find_their_parents"
BACK = STATES + "test_a_cache_goes_back_to_where_its_last_prefill_chunk_began"
LONG = STATES + "test_two_thousand_tokens_in_rounds_of_every_kind_are_those_of_plain_decoding"

LAYER = (
    Mutant(
        name="delta-from-the-state-before-the-round",
        bug="every delta of a round is computed from its first state (dflash-mlx without Metal)",
        file="ops/delta_rule.py",
        before="known_VE = torch.bmm(k_VD[:, None], state_VDE)[:, 0]",
        after="known_VE = torch.bmm(k_VD[:, None], place.committed.state * inputs.alpha[row][:, None, None])[:, 0]",
        killer=RULE + "test_rows_side_by_side_are_those_of_single_steps[even-fp32]",
    ),
    Mutant(
        name="output-read-before-the-write",
        bug="a token's output lacks what it wrote itself",
        file="ops/delta_rule.py",
        before="reads.append(torch.bmm(_spread(inputs.q[row], heads)[:, None], state_VDE)[:, 0])",
        after="reads.append(torch.bmm(_spread(inputs.q[row], heads)[:, None], before_VDE)[:, 0])",
        killer=FORMULAS,
    ),
    Mutant(
        name="epsilon-outside-the-sum",
        bug="queries and keys are normalised by another formula",
        file="ops/delta_rule.py",
        before="qk_NUD = qk_NUD / (qk_NUD.square().sum(-1, keepdim=True) + NORM_EPS).sqrt()",
        after="qk_NUD = qk_NUD / (qk_NUD.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()",
        killer=FORMULAS,
    ),
    Mutant(
        name="key-heads-tiled",
        bug="value heads take their key heads in turn instead of in runs",
        file="ops/delta_rule.py",
        before="spread = heads_UD[:, None].expand(num_key_heads, num_value_heads // num_key_heads, size)",
        after="spread = heads_UD[None].expand(num_value_heads // num_key_heads, num_key_heads, size)",
        killer=RULE + "test_the_layer_is_the_formulas[3-even]",
    ),
    Mutant(
        name="convolution-back-to-front",
        bug="taps are applied newest first",
        file="ops/conv.py",
        before="    return rows[::-1]",
        after="    return rows",
        killer=TREES,
    ),
    Mutant(
        name="tree-windows-by-node-order",
        bug="a branch's convolution reads its sibling's rows",
        file="ops/conv.py",
        before="node = parents[node] if node >= 0 else node - 1",
        after="node = node - 1",
        killer=TREES,
    ),
    Mutant(
        name="branches-share-one-state",
        bug="a second child goes on from its sibling's state",
        file="ops/delta_rule.py",
        before="before_VDE = states.pop(parent) if last_child[parent] == first + row else states[parent]",
        after="before_VDE = state_VDE if row else states[parent]",
        killer=TREES,
    ),
    Mutant(
        name="later-nodes-start-from-the-committed-state",
        bug="a tree that grows forgets the nodes it has",
        file="ops/delta_rule.py",
        before="return replay(place.committed, place.tape, path_to(place.parents, node)).state",
        after="return place.committed.state",
        killer=LATER,
    ),
)

UNDOING = (
    Mutant(
        name="history-is-not-restored",
        bug="the convolution goes on with rows of rejected tokens (higgs)",
        file="cache/recurrent.py",
        before="        after.history.copy_(memory.history)",
        after="        pass",
        killer=COUNTS,
    ),
    Mutant(
        name="replay-one-node-short",
        bug="the last accepted token is missing from the state",
        file="ops/delta_rule.py",
        before="    for node in path:",
        after="    for node in path[:-1]:",
        killer=COUNTS,
    ),
    Mutant(
        name="replay-onto-the-state-after-the-round",
        bug="a rejected round stays in the state, and the accepted part comes twice",
        file="cache/recurrent.py",
        before="enumerate(zip(states.committed.layers, states.tentative.layers, strict=True)):",
        after="enumerate(zip(states.tentative.layers, states.tentative.layers, strict=True)):",
        killer=COUNTS,
    ),
    Mutant(
        name="every-commit-swaps",
        bug="a partly accepted round leaves the state after all of it (llama.cpp's gdn-replay)",
        file="cache/recurrent.py",
        before="if not (nodes.is_chain and len(path) == len(nodes.parents) == self._reached):",
        after="if not nodes.is_chain:",
        killer=COUNTS,
    ),
    Mutant(
        name="a-failed-forwards-states-are-believed",
        bug="what an interrupted forward wrote is taken for the end of the round before it",
        file="cache/recurrent.py",
        before="self._continues = num_old > 0 and nodes.is_chain and self._reached == num_old",
        after="self._continues = num_old > 0 and nodes.is_chain",
        killer=LONG,
    ),
    Mutant(
        name="a-failed-calls-states-are-believed",
        bug="what the kernels wrote before they ran out of memory is taken for the end of the round before it",
        file="cache/recurrent.py",
        before="self._continues = num_old > 0 and nodes.is_chain and self._reached == num_old",
        after="self._continues = num_old > 0 and nodes.is_chain",
        killer="tests/models/test_hybrid_rounds.py::test_a_call_of_the_kernels_that_fails_leaves_its_round_as_it_was",
    ),
    Mutant(
        name="a-longer-tape-is-empty",
        bug="nodes of a round that outgrew its tape are lost",
        file="cache/recurrent.py",
        before="        if self._tape is not None and num_old:",
        after="        if False:",
        killer=STATES + "test_a_tape_grows_with_its_round_and_a_long_one_goes_with_it",
    ),
    Mutant(
        name="a-long-tape-stays",
        bug="memory of the longest round is held for the rest of the sequence",
        file="cache/recurrent.py",
        before="if self._tape is not None and self._tape.qkv.shape[1] > _MOST_KEPT_TAPE:",
        after="if False:",
        killer=STATES + "test_a_tape_grows_with_its_round_and_a_long_one_goes_with_it",
    ),
    Mutant(
        name="back-to-any-length",
        bug="a prefix is gone back to whose state is not there",
        file="cache/hybrid.py",
        before="        if length != self.restorable(length):",
        after="        if False:",
        killer=STATES + "test_going_back_to_what_is_gone_is_refused_and_changes_nothing",
    ),
    Mutant(
        name="what-is-kept-outlives-its-text",
        bug="a cache that began anew goes back into the text before",
        file="cache/recurrent.py",
        before="self._kept, self._kept_length = None, 0  # of a text that is gone",
        after="pass",
        killer=BACK,
    ),
    Mutant(
        name="going-back-forgets-the-state",
        bug="keys are truncated and the recurrent state is not",
        file="cache/recurrent.py",
        before="                self._front.copy(self._kept)",
        after="                pass",
        killer=BACK,
    ),
    Mutant(
        name="fork-shares-its-state",
        bug="one answer's tokens show in another's state",
        file="cache/recurrent.py",
        before="            other._front.copy(self._front)",
        after="            other._front = self._front",
        killer=STATES + "test_forks_go_their_own_ways",
    ),
)

RECURRENCE = (*LAYER, *UNDOING)
