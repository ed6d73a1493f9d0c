"""Defects of the networks: caches, masks, positions, row arithmetic."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

KV = "tests/cache/test_kv.py::"
COMMIT = KV + "test_a_commit_keeps_the_rows_of_its_path_in_every_layer"
ATTENTION = "tests/ops/test_attention.py::test_attention_equals_the_obvious_loop"
EXACTNESS = "tests/ops/test_exactness.py::"
ROPE = "tests/ops/test_rope.py::"
SCALING = "tests/ops/test_rope_scaling.py::"
SCORE = "tests/models/test_score.py::"
ROWS = SCORE + "test_rows_of_any_tree_equal_plain_decoding_in_fp64"
PARITY = "tests/models/test_parity.py::test_logits_and_every_layer_agree_with_transformers"
LIVED = "tests/drafters/test_draft_model.py::test_a_proposal_of_a_real_model_that_was_never_scored_leaves_nothing"

CACHES = (
    Mutant(
        name="commit-without-gather",
        bug="an accepted path that is no prefix of the nodes keeps the rows of rejected siblings",
        file="cache/kv.py",
        before="if settled < len(nodes):",
        after="if settled > len(nodes):",
        killer=COMMIT,
    ),
    Mutant(
        name="gather-one-row-off",
        bug="the row before each accepted node is kept",
        file="cache/kv.py",
        before="rows = torch.tensor(nodes, device=self._rows_LKCD.device) + self.length",
        after="rows = torch.tensor(nodes, device=self._rows_LKCD.device) + self.length - 1",
        killer=COMMIT,
    ),
    Mutant(
        name="gather-to-the-rounds-first-row",
        bug="moved rows overwrite those that stood where they belong",
        file="cache/kv.py",
        before="self._move(nodes[settled:], self.length + settled)",
        after="self._move(nodes[settled:], self.length)",
        killer=COMMIT,
    ),
    Mutant(
        name="commit-keeps-one-row-too-many",
        bug="rollback by one too few: a rejected row stays (mlx-examples 149)",
        file="cache/base.py",
        before="NONE_OPEN, self.length + count",
        after="NONE_OPEN, self.length + count + 1",
        killer=COMMIT,
    ),
    Mutant(
        name="commit-keeps-one-row-too-few",
        bug="rollback by one too many: the last accepted row is lost",
        file="cache/base.py",
        before="NONE_OPEN, self.length + count",
        after="NONE_OPEN, self.length + count - 1",
        killer=COMMIT,
    ),
    Mutant(
        name="rollback-does-nothing",
        bug="trimming is silently a no-op (mlx-lm 1109, mlx-swift-lm 424)",
        file="cache/base.py",
        before='stand in a ``finally``."""\n        self.open = NONE_OPEN',
        after='stand in a ``finally``."""\n        pass',
        killer=LIVED,
    ),
    Mutant(
        name="truncate-does-nothing",
        bug="trimming is silently a no-op (mlx-lm 1109)",
        file="cache/base.py",
        before="        self.length = length",
        after="        pass",
        killer=KV + "test_between_rounds_and_inside_them_other_things_are_allowed",
    ),
    Mutant(
        name="interrupted-commit-passes-unnoticed",
        bug="half moved rows are used as if they were whole",
        file="cache/base.py",
        before="        self._broken = True",
        after="        pass",
        killer=KV + "test_an_interrupted_commit_breaks_the_cache_for_good",
    ),
    Mutant(
        name="one-token-more-than-the-capacity",
        bug="a write past the end at the last positions (lorax 474)",
        file="cache/base.py",
        before="if used + count > self.capacity:",
        after="if used + count > self.capacity + 1:",
        killer=KV + "test_only_what_fits_is_taken",
    ),
    Mutant(
        name="paths-are-not-checked",
        bug="nodes of different branches are committed as one text",
        file="cache/base.py",
        before="or self.open.parents[node] != expected:",
        after="or False:",
        killer=KV + "test_a_path_must_lead_from_the_root_down",
    ),
)

BOUNDARY = "tests/models/test_rope_boundary.py::"

FORKS = (
    Mutant(
        name="fork-shares-its-rows",
        bug="a prefix cache is handed out without a copy: one answer writes into another's",
        file="cache/kv.py",
        before="other._rows_LKCD.narrow(2, 0, self.length).copy_(self._rows_LKCD.narrow(2, 0, self.length))",
        after="other._rows_LKCD = self._rows_LKCD",
        killer=KV + "test_forks_of_forks_go_their_own_ways",
    ),
    Mutant(
        name="fork-inside-a-round",
        bug="tentative rows are taken for committed ones",
        file="cache/base.py",
        before='self.require_closed("fork")',
        after="self.require_sound()",
        killer=KV + "test_a_fork_needs_a_closed_round_and_room_for_what_is_committed",
    ),
    Mutant(
        name="table-by-the-capacity",
        bug="how much is drafted decides how positions are turned",
        file="models/decoder.py",
        before="rope=forward.rope_tables.table(length),",
        after="rope=forward.rope_tables.table(length + spare),",
        killer=BOUNDARY + "test_what_is_spare_has_no_say",
    ),
    Mutant(
        name="every-cache-serves-every-length",
        bug="a turn beyond the original context goes on with keys of the short table",
        file="models/decoder.py",
        before="return self._ready().rope_tables.is_for(cache.rope, length)",
        after="return self._ready().rope_tables.is_for(cache.rope, cache.rope.length)",
        killer=BOUNDARY + "test_a_cache_serves_sequences_of_its_own_table_and_so_do_its_forks",
    ),
    Mutant(
        name="answers-are-rescored-by-their-own-length",
        bug="a proof compares rows of two tables",
        file="rescoring.py",
        before="single = _rows(target.new_cache(length), target, prompt, answer, 1)",
        after="single = _rows(target.new_cache(len(prompt) + len(answer)), target, prompt, answer, 1)",
        killer=BOUNDARY + "test_an_answer_that_ended_early_is_rescored_under_the_requests_table",
    ),
)

POSITIONS = (
    Mutant(
        name="siblings-see-each-other",
        bug="a tree's mask is the lower triangle",
        file="tree.py",
        before="mask[node] |= mask[parent]",
        after="mask[node, :node] = True",
        killer=ROWS + "[tree-llama]",
    ),
    Mutant(
        name="rope-by-node-index",
        bug="a node's position is its index, not its depth (MNN 4421)",
        file="cache/base.py",
        before="depth = depths[parent] + 1",
        after="depth = node",
        killer=ROWS + "[tree-llama]",
    ),
    Mutant(
        name="positions-of-a-tree-plus-one",
        bug="speculated positions are one off from plain ones (llama.cpp 26478)",
        file="models/forward.py",
        before="cache.rope.rows([cache.length + depth for depth",
        after="cache.rope.rows([cache.length + depth + 1 for depth",
        killer=ROWS + "[tree-llama]",
    ),
    Mutant(
        name="positions-of-a-later-call-restart",
        bug="a round grown in several calls gives each call the root's position",
        file="models/forward.py",
        before="cache.rope.run(cache.length + len(parents) - num_new, num_new)",
        after="cache.rope.run(cache.length, num_new)",
        killer=ROWS + "[chain in several calls-llama]",
    ),
    Mutant(
        name="positions-of-the-first-sequence-for-all",
        bug="per-row offsets are wrong where sequences have different lengths (mlx-vlm 1155)",
        file="models/forward.py",
        before="parts = [_span_angles(span) for span in spans]",
        after="parts = [_span_angles(Span(spans[0].cache, span.nodes, span.num_new)) for span in spans]",
        killer=SCORE + "test_sequences_in_one_call_do_not_see_each_other[llama]",
    ),
    Mutant(
        name="sequences-get-each-others-rows",
        bug="a batch hands a sequence another one's logits (mlx-vlm 2113)",
        file="models/decoder.py",
        before="in zip(logits, layers, finals, strict=True)",
        after="in zip(logits[::-1], layers, finals, strict=True)",
        killer=SCORE + "test_sequences_in_one_call_do_not_see_each_other[llama]",
    ),
    Mutant(
        name="window-one-too-wide",
        bug="a sliding window keeps one position too many (transformers 48280)",
        file="ops/attention.py",
        before="positions_T[-around.num_new :, None] - positions_T < window",
        after="positions_T[-around.num_new :, None] - positions_T <= window",
        killer=ATTENTION + "[tree-3-exact]",
    ),
    Mutant(
        name="window-one-too-wide-for-a-single-row",
        bug="plain steps and bursts cut the window differently (transformers 48280)",
        file="ops/attention.py",
        before="max(0, around.stop - window)",
        after="max(0, around.stop - window - 1)",
        killer=ATTENTION + "[plain step-3-fast]",
    ),
    Mutant(
        name="window-starts-one-late",
        bug="the oldest visible row is left out",
        file="ops/attention.py",
        before="self.length + shallowest - window + 1",
        after="self.length + shallowest - window + 2",
        killer=ATTENTION + "[tree-3-fast]",
    ),
    Mutant(
        name="fast-rows-see-the-next-token",
        bug="the causal mask is off by one",
        file="ops/attention.py",
        before="bias_NT.triu_(num_read - num_new + 1)",
        after="bias_NT.triu_(num_read - num_new + 2)",
        killer=ATTENTION + "[chain-None-fast]",
    ),
    Mutant(
        name="exact-rows-see-the-next-token",
        bug="the causal mask is off by one",
        file="ops/attention.py",
        before=".tril_(around.stop - around.num_new)",
        after=".tril_(around.stop - around.num_new + 1)",
        killer=ATTENTION + "[chain-None-exact]",
    ),
    Mutant(
        name="mask-rows-of-the-first-nodes",
        bug="prompt and tree lengths are confused: new nodes get the mask of old ones (MNN 4421)",
        file="ops/attention.py",
        before="ancestor_mask(around.parents)[-around.num_new :]",
        after="ancestor_mask(around.parents)[: around.num_new]",
        killer=ATTENTION + "[end of a tree-None-exact]",
    ),
    Mutant(
        name="mask-of-another-head-group",
        bug="rows and heads of grouped queries are interleaved in the other order",
        file="ops/attention.py",
        before="bias_NT.repeat_interleave(group, 0)",
        after="bias_NT.repeat(group, 1)",
        killer=ATTENTION + "[tree-None-fast]",
    ),
)

ARITHMETIC = (
    Mutant(
        name="blocks-are-not-padded",
        bug="several rows at once are not the single rows, as kernels differ with their number; tokens flip",
        file="ops/linear.py",
        before="block = x_NK.new_zeros(BLOCK_ROWS, width + padding)",
        after="block = x_NK.new_zeros(rows.shape[0], width + padding)",
        killer=EXACTNESS + "test_blocks_have_one_number_of_rows",
    ),
    Mutant(
        name="blocks-keep-odd-widths",
        bug="rows of odd widths begin anywhere in a cache line, and a router's scores depend on the rows beside them",
        file="ops/linear.py",
        before="padding = -width % INPUT_STEP",
        after="padding = 0",
        killer=EXACTNESS + "test_blocks_are_exact_at_odd_widths_too[torch.float32]",
    ),
    Mutant(
        name="self-test-forgets-attention",
        bug="a mode is called exact that was never compared",
        file="ops/exactness.py",
        before="if context + most <= shapes.context_length:",
        after="if context + most <= 0:",
        killer=EXACTNESS + "test_one_differing_bit_is_found_and_its_shape_named",
    ),
    Mutant(
        name="rotation-the-other-way",
        bug="the halves of a head are rotated in the other layout's direction (ninfer-windows 4)",
        file="ops/rope.py",
        before="torch.cat((-sines, sines), -1)",
        after="torch.cat((sines, -sines), -1)",
        killer=ROPE + "test_rotation_equals_the_obvious_one",
    ),
    Mutant(
        name="linear-scaling-is-ignored",
        bug="positions beyond the trained context (vllm 49343)",
        file="ops/rope_scaling.py",
        before="return 1.0 / series(theta, dim, device) / self.factor",
        after="return 1.0 / series(theta, dim, device)",
        killer=SCALING + "test_linear_divides_every_frequency",
    ),
    Mutant(
        name="long-factors-from-the-boundary-on",
        bug="the long factors are used one token early",
        file="ops/rope_scaling.py",
        before="factors = self.long_factors if length > self.original_context else self.short_factors",
        after="factors = self.long_factors if length >= self.original_context else self.short_factors",
        killer=SCALING + "test_longrope_divides_each_pair_by_the_factor_for_the_length",
    ),
    Mutant(
        name="dynamic-lengths-are-alike",
        bug="the first long sequence's table is kept for all (transformers' max_seq_len_cached)",
        file="ops/rope_scaling.py",
        before="return length if length > self.trained_context else 1",
        after="return self.trained_context + 1 if length > self.trained_context else 1",
        killer=ROPE + "test_lengths_that_are_alike_share_a_table_and_no_others_do",
    ),
    Mutant(
        name="attention-factor-is-ignored",
        bug="yarn and longrope without their scale of scores",
        file="ops/rope.py",
        before="cosines, sines = angles.cos() * self._scale, angles.sin() * self._scale",
        after="cosines, sines = angles.cos(), angles.sin()",
        killer=ROPE + "test_rotation_equals_the_obvious_one",
    ),
    Mutant(
        name="whole-heads-are-rotated-by-halves",
        bug="partial rotation pairs dimensions across the whole head (phi-4-mini)",
        file="ops/rope.py",
        before="turned_NGR = rotate(x_NGD[..., :size], first_N1R, second_N1R)",
        after="turned_NGR = rotate(x_NGD[..., -size:], first_N1R, second_N1R)",
        killer=ROPE + "test_rotation_equals_the_obvious_one",
    ),
    Mutant(
        name="table-grows-from-its-first-row",
        bug="positions beyond the first block repeat it",
        file="ops/rope.py",
        before="blocks = [self._block(start) for start in range(have, num_positions, BLOCK)]",
        after="blocks = [self._block(0) for start in range(have, num_positions, BLOCK)]",
        killer=ROPE + "test_a_table_has_the_same_bits_however_it_grew",
    ),
    Mutant(
        name="query-norm-without-weight",
        bug="a dummy norm: shapes are right, answers are not (vllm 14464)",
        file="models/forward.py",
        before="qk_NGD = rms_norm(qk_NGD, weights.qk_norm, self._eps)",
        after="qk_NGD = rms_norm(qk_NGD, None, self._eps)",
        killer=PARITY + "[qwen3, tied]",
    ),
    Mutant(
        name="captured-layers-in-another-order",
        bug="a head reads the features of other layers: acceptance 0, output right (vllm 49343)",
        file="models/forward.py",
        before="tuple(captured[layer] for layer in capture)",
        after="tuple(captured[layer] for layer in sorted(capture))",
        killer=SCORE + "test_captures_fit_together",
    ),
    Mutant(
        name="last-chunk-of-one-token-is-lost",
        bug="prompts one longer than a multiple of the chunk (vllm 53488: 512 against 513)",
        file="models/decoder.py",
        before="for start in range(0, len(ids), self._prefill_chunk):",
        after="for start in range(0, len(ids) - 1, self._prefill_chunk):",
        killer=SCORE + "test_chunking_changes_no_bit_in_exact_arithmetic[llama-dtype0]",
    ),
    Mutant(
        name="one-token-more-than-the-context",
        bug="positions run past the tables (vllm 49343)",
        file="models/decoder.py",
        before="if length > self._config.context_length:",
        after="if length > self._config.context_length + 1:",
        killer=KV + "test_a_deep_tree_counts_its_depth_not_its_nodes_against_the_context",
    ),
    Mutant(
        name="token-of-the-vocabulary-size-passes",
        bug="an id outside the vocabulary reads foreign memory (vllm 45060)",
        file="models/calls.py",
        before="if lowest < 0 or highest >= config.vocab_size:",
        after="if lowest < 0 or highest > config.vocab_size:",
        killer=KV + "test_wrong_counts_ranges_and_shapes_are_named",
    ),
)

NETWORKS = (*CACHES, *FORKS, *POSITIONS, *ARITHMETIC)
