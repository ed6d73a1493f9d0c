"""Defects of the kernels for delta layers and experts, and of what calls them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DELTA = "tests/native/test_delta.py::"
EXPERTS = "tests/native/test_experts.py::"
CHAINS = DELTA + "test_a_chain_of_any_number_of_rows_is_its_rows_one_by_one[portable-torch.float32]"
TREES = DELTA + "test_a_node_of_any_tree_is_the_end_of_its_path_and_so_is_its_commit[portable-torch.float32]"
REFERENCE = DELTA + "test_it_is_what_the_plain_operations_say[portable-5 heads of 32 and 64]"
WHOLE = "tests/native/test_whole_hybrids.py::"

CALLS = (
    Mutant(
        name="a-tree-is-told-of-the-back",
        bug="the branches of a tree continue from each other's states, as a chain's rows do",
        file="models/native_states.py",
        before="chain = nodes.is_chain",
        after="chain = True",
        killer=TREES,
    ),
    Mutant(
        name="states-of-the-first-sequence-for-all",
        bug="sequences of one call read and write one sequence's states",
        file="models/native_forward.py",
        before="_address(words) + index * NUM_WORDS * _WORD",
        after="_address(words) + 0 * index * NUM_WORDS * _WORD",
        killer=WHOLE + "test_trees_of_several_sequences_in_one_call_are_decoding_step_by_step[qwen3_5-torch.float32]",
    ),
    Mutant(
        name="the-selftest-replays-nothing",
        bug="a commit that differs from decoding passes for exact",
        file="models/native_forward.py",
        before="return layer_differs(compute, cache, x_NH) or commit_differs(compute, cache, x_NH, memory)",
        after="return layer_differs(compute, cache, x_NH)",
        killer=WHOLE + "test_one_wrong_bit_of_one_block_is_found_at_loading[replay-qwen3_5-a delta layer]",
    ),
    Mutant(
        name="the-shared-experts-gate-is-turned-round",
        bug="the shared expert is open where it should be closed",
        file="models/native_blocks.py",
        before="else torch.cat((weights.router, weights.shared_gate))",
        after="else torch.cat((weights.router, -weights.shared_gate))",
        killer=EXPERTS + "test_experts_are_what_the_plain_operations_say[portable-torch.float32]",
    ),
)

SOURCES = (
    Mutant(
        name="late-workers-count-other-experts",
        bug="a worker that wakes late counts the next block's experts, and waits for ever for items that never were",
        file="native/source/experts.hpp",
        before="const int64_t most_busy = rows * active < block.num_experts ? rows * active : block.num_experts;",
        after="const int64_t most_busy = groups.num_busy;",
        killer="tests/native/test_pool.py::test_workers_that_wake_late_go_through_blocks_that_are_done",
    ),
    Mutant(
        name="a-replay-keeps-the-history",
        bug="the convolution's window is not brought up to what was accepted",
        file="native/source/replay.hpp",
        before="const int64_t from = place + count;",
        after="const int64_t from = place + 0 * count;",
        killer=TREES,
    ),
    Mutant(
        name="a-replay-decays-by-the-row-before",
        bug="the tape's decays are read one off",
        file="native/source/replay.hpp",
        before="states.decays[node * replay.value_heads + head]",
        after="states.decays[(node - (t > 0)) * replay.value_heads + head]",
        killer=TREES,
    ),
    Mutant(
        name="states-decay-after-the-change-is-known",
        bug="what a head knows of a key is read from the state before it decayed",
        file="native/source/delta.hpp",
        before="- known[v] * decay) * beta;",
        after="- known[v]) * beta;",
        killer=REFERENCE,
    ),
    Mutant(
        name="keys-keep-their-length",
        bug="keys are not normalised before they are written under",
        file="native/source/delta.hpp",
        before="to_unit(token.key, block.key_dim, 1.0f);",
        after="to_unit(token.key, 0, 1.0f);",
        killer=REFERENCE,
    ),
    Mutant(
        name="a-row-continues-from-the-row-before",
        bug="siblings of a tree see each other's states",
        file="native/source/delta.hpp",
        before="chain ? 0 : parent - states.first), room};",
        after="chain ? 0 : index - 1), room};",
        killer=TREES,
    ),
    Mutant(
        name="windows-hold-the-first-row-of-the-call",
        bug="the convolution of every row reads the call's first row in place of its own and its ancestors'",
        file="native/source/delta.hpp",
        before="return {seat.row(node - states.first), nullptr};",
        after="return {seat.row(0 * (node - states.first)), nullptr};",
        killer=CHAINS,
    ),
    Mutant(
        name="of-equal-experts-the-last-is-taken",
        bug="ties between experts go to another one than in training",
        file="native/source/experts.hpp",
        before="best = chances[e] > chances[best] ? e : best;",
        after="best = chances[e] >= chances[best] ? e : best;",
        killer=EXPERTS + "test_of_equally_likely_experts_the_first_are_taken[portable]",
    ),
    Mutant(
        name="scores-of-experts-are-not-rounded",
        bug="near ties go to other experts than in transformers, and than on torch",
        file="native/source/experts.hpp",
        before="Store<T> logits{shop.fused, scores, scores};",
        after="Store<float> logits{shop.fused, scores, scores};",
        killer=EXPERTS + "test_scores_are_rounded_to_the_models_type_before_experts_are_chosen[portable]",
    ),
    Mutant(
        name="attention-is-not-gated",
        bug="the output gate is computed and not used",
        file="native/source/kernels.hpp",
        before="if (block.gated) value = value * sigmoid(",
        after="if (block.gated) value = value + zero() * sigmoid(",
        killer="tests/native/test_blocks.py::test_attention_is_what_the_plain_operations_say[portable-fp32]",
    ),
)

DELTA_KERNELS = (*CALLS, *SOURCES)
