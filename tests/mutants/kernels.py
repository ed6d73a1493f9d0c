"""Defects of the kernels and of what calls them. Killers must not depend on the instruction sets of the machine."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LIBRARY = "tests/native/test_library.py::"
POOL = "tests/native/test_pool.py::"
WHOLE = "tests/native/test_whole_models.py::"
SELFTEST = "tests/native/test_selftest.py::"
BLOCKS = "tests/native/test_blocks.py::"
ATTENTION = "tests/native/test_attention.py::"
WRONG_BIT = SELFTEST + "test_one_wrong_bit_of_one_kernel_at_some_number_of_rows_is_found"
TREES = WHOLE + "test_trees_of_several_sequences_in_one_call_are_decoding_step_by_step"
CHUNKS = WHOLE + "test_a_prompt_in_any_chunks_is_decoding_step_by_step"
SHOWN = WHOLE + "test_what_they_show_is_what_torch_computes"
REFERENCE = BLOCKS + "test_attention_is_what_the_plain_operations_say[portable-fp32]"

BRIDGE = (
    Mutant(
        name="a-record-of-any-size-is-handed-over",
        bug="Python and the library differ in a struct, and the kernels read other fields",
        file="native/library.py",
        before="if size != ctypes.sizeof(record):",
        after="if size is None:",
        killer=LIBRARY + "test_a_record_of_another_size_is_noticed",
    ),
    Mutant(
        name="a-library-of-any-interface-is-used",
        bug="a library from before an upgrade stays in use",
        file="native/library.py",
        before="if found != ABI:",
        after="if found is None:",
        killer=LIBRARY + "test_a_library_of_another_interface_is_not_used",
    ),
    Mutant(
        name="threads-stay-as-they-were",
        bug="the number of threads is read once, and torch's later changes are not followed",
        file="native/library.py",
        before="if wanted != self._set:",
        after="if False:",
        killer=POOL + "test_threads_follow_torch_until_a_number_is_asked_for",
    ),
    Mutant(
        name="packed-weights-are-never-freed",
        bug="every model that was loaded and dropped keeps its memory",
        file="native/tensors.py",
        before="weakref.finalize(self, library.free, memory).atexit = False",
        after="weakref.finalize(self, int, memory).atexit = False",
        killer=LIBRARY + "test_a_packed_weight_gives_its_memory_back",
    ),
    Mutant(
        name="a-pairs-biases-change-places",
        bug="the bias of the gates is added to the ups",
        file="native/tensors.py",
        before="for half, bias in enumerate(biases):",
        after="for half, bias in enumerate(biases[::-1]):",
        killer=LIBRARY + "test_a_pair_holds_gates_and_ups_in_blocks_by_turns[portable-True-torch.float32]",
    ),
    Mutant(
        name="strided-rows-are-read-as-if-packed",
        bug="a view of columns is computed with its neighbours' elements",
        file="native/tensors.py",
        before="if fits and right and tensor.is_cpu and tensor.is_contiguous():",
        after="if fits and right and tensor.is_cpu:",
        killer=LIBRARY + "test_what_the_kernels_cannot_read_is_refused[stride]",
    ),
)

FORWARD = (
    Mutant(
        name="siblings-are-listed-as-seen",
        bug="a node attends to every node before it, whatever its path",
        file="models/native_forward.py",
        before="path = path_to(parents, node)",
        after="path = list(range(node + 1))",
        killer=TREES,
    ),
    Mutant(
        name="positions-by-node-index",
        bug="a tree's branches are rotated as if they followed each other",
        file="models/native_forward.py",
        before="rows.extend((index, length + depths[node], place,",
        after="rows.extend((index, place, place,",
        killer=TREES,
    ),
    Mutant(
        name="a-long-tree-is-laid-out-as-a-chain",
        bug="the quick layout of prompts is taken for any long round",
        file="models/native_forward.py",
        before="return len(spans) == 1 and spans[0].nodes.is_chain and",
        after="return len(spans) == 1 and",
        killer=TREES + "[qwen3, norms, tied-torch.float32]",
    ),
    Mutant(
        name="a-long-chunk-is-rotated-one-off",
        bug="prefill and decoding disagree about positions",
        file="models/native_forward.py",
        before="rows[:, 1:4] = places[:, None]",
        after="rows[:, 1:4] = places[:, None] + (np.arange(3) == 0)",
        killer=CHUNKS,
    ),
    Mutant(
        name="every-row-is-of-the-first-sequence",
        bug="sequences of one call read each other's keys",
        file="models/native_forward.py",
        before="rows.extend((index, place, place, place, len(seen), 1))",
        after="rows.extend((0, place, place, place, len(seen), 1))",
        killer=TREES,
    ),
    Mutant(
        name="tables-are-let-go",
        bug="a table that another thread makes longer is freed while the kernels read it",
        file="cache/kv.py",
        before="first, second = self._factors = rope.reserve(self.capacity)",
        after="first, second = rope.reserve(self.capacity)",
        killer=WHOLE + "test_a_table_that_grows_while_the_kernels_read_it_changes_nothing",
    ),
    Mutant(
        name="layers-are-captured-in-their-own-order",
        bug="a draft head reads its features in another order than it was trained in",
        file="models/native_forward.py",
        before="layers=tuple(layers[layer] for layer in capture.layers)",
        after="layers=tuple(layers.values())",
        killer=WHOLE + "test_layers_come_in_the_order_they_are_asked_for_and_once_each_time",
    ),
    Mutant(
        name="every-layer-has-the-first-layers-window",
        bug="layers with and without a window are computed alike",
        file="models/native_blocks.py",
        before="window=config.windows[layer] or 0,",
        after="window=config.windows[0] or 0,",
        killer=SHOWN + "[qwen2, biases, some windows]",
    ),
    Mutant(
        name="gates-and-ups-change-places",
        bug="the activation is applied to the wrong half",
        file="native/tensors.py",
        before="for first, source in enumerate(sources):",
        after="for first, source in enumerate(sources[::-1]):",
        killer=SHOWN,
    ),
    Mutant(
        name="the-selftest-skips-four-rows",
        bug="a kernel for one number of rows is never tried",
        file="models/native_forward.py",
        before="(1, 4), (9, 13), (2, 9),",
        after="(1, 4), (2, 9),",
        killer=WRONG_BIT + "[torch.float32-the head-at 4 rows]",
    ),
    Mutant(
        name="the-selftest-computes-no-trees",
        bug="siblings that disturb each other pass for exact",
        file="models/selftest.py",
        before="return any(not torch.equal(alone(path), tree[list(path)]) for path in paths)",
        after="return not paths",
        killer=SELFTEST + "test_a_tree_that_differs_from_its_paths_is_found",
    ),
    Mutant(
        name="the-selftest-keeps-no-branch",
        bug="rows that a commit moves to a wrong place, or in part, pass for exact",
        file="models/selftest.py",
        before="(TREE, (0, 2, 6)))",
        after="(TREE, (0, 1)))",
        killer=SELFTEST + "test_one_wrong_bit_of_a_row_that_a_commit_moves_is_found[torch.float32]",
    ),
    Mutant(
        name="the-selftest-chooses-among-unequals",
        bug="a choice that takes another of equal tokens beside other rows passes for exact",
        file="models/native_forward.py",
        before="generator=generator).round()",
        after="generator=generator)",
        killer=SELFTEST + "test_another_choice_among_equals_at_some_number_of_rows_is_found[4]",
    ),
    Mutant(
        name="another-number-of-threads-is-not-tested",
        bug="strict says what held when the model was loaded",
        file="models/decoder.py",
        before="if self._forward is not None and self._tested_on != self._computes_on():",
        after="if self._forward is not None and self._tested_on is None:",
        killer=SELFTEST + "test_another_number_of_threads_is_tested_when_it_is_first_asked_about",
    ),
    Mutant(
        name="only-torchs-threads-are-looked-at",
        bug="strict says what held before the kernels were given another number of threads than torch",
        file="models/decoder.py",
        before="return self._forward.threads, self._forward.instructions",
        after="return torch.get_num_threads(), self._forward.instructions",
        killer=SELFTEST + "test_other_threads_or_instructions_of_the_kernels_alone_are_tested_too",
    ),
    Mutant(
        name="released-weights-are-packed-again",
        bug="a second preparation computes with nothing",
        file="models/decoder.py",
        before="        if self._released:",
        after="        if self._released and trainable:",
        killer=SELFTEST + "test_a_trainable_model_keeps_its_parameters_and_torch_computes",
    ),
)

SOURCES = (
    Mutant(
        name="many-rows-begin-with-the-third-input",
        bug="the order of a sum depends on how many rows are computed together",
        file="native/source/linear.hpp",
        before="  for (const T* stop = w + steps * numbers; w != stop; w += numbers) {",
        after="  if (ROWS > 2 && steps > 2) { Walk<T> third = x; third.step(), third.step(); "
        "accumulate(third, w + 2 * numbers, run, sums); accumulate(x, w, run, sums); x.step(); "
        "accumulate(x, w + numbers, run, sums); x.step(), x.step(); w += 3 * numbers, steps -= 3; } "
        "for (const T* stop = w + steps * numbers; w != stop; w += numbers) {",
        killer=BLOCKS + "test_a_chain_of_any_number_of_rows_is_its_rows_one_by_one[portable-fp32]",
    ),
    Mutant(
        name="the-last-of-odd-inputs-is-dropped",
        bug="bf16 weights are read in pairs, and half a pair is none",
        file="native/source/linear.hpp",
        before="return (inputs + 1) / 2; }",
        after="return inputs / 2; }",
        killer=BLOCKS + "test_the_feed_forward_is_what_the_plain_operations_say[portable-torch.bfloat16]",
    ),
    Mutant(
        name="windows-are-counted-in-rows",
        bug="a window shorter than the round hides no ancestor of a node",
        file="native/source/attention.hpp",
        before="seen.others += hidden - old;",
        after="seen.others += 0;",
        killer=BLOCKS + "test_windows_shorter_than_the_round_and_as_long_as_the_text_are_cut_by_position[portable]",
    ),
    Mutant(
        name="the-last-key-counts-again",
        bug="lanes beyond the last key are weighed like it",
        file="native/source/attention.hpp",
        before="for (int64_t i = count - t; i < LANES; ++i) last[i] = 0.0f;",
        after="for (int64_t i = count - t + 1; i < LANES; ++i) last[i] = 0.0f;",
        killer=ATTENTION + "test_any_number_of_keys_is_weighed_as_in_fp64[portable-17-24]",
    ),
    Mutant(
        name="large-exponents-wrap-around",
        bug="a gate in the hundreds below zero makes garbage of the exponent",
        file="native/source/vectors.hpp",
        before="x = smaller(spread(88.0f), larger(spread(-87.0f), x));",
        after="x = larger(spread(-87.0f), x);",
        killer=BLOCKS + "test_the_feed_forward_is_what_the_plain_operations_say[portable-torch.float32]",
    ),
    Mutant(
        name="nan-becomes-a-small-number",
        bug="a damaged key is quietly ignored",
        file="native/source/vectors.hpp",
        before="x = smaller(spread(88.0f), larger(spread(-87.0f), x));",
        after="x = smaller(larger(x, spread(-87.0f)), spread(88.0f));",
        killer=ATTENTION + "test_nan_in_a_key_shows_in_what_sees_it[portable]",
    ),
    Mutant(
        name="rotation-by-place-in-the-cache",
        bug="a branch is rotated by where its row lies",
        file="native/source/kernels.hpp",
        before="rotate(x, sequence, row.position);",
        after="rotate(x, sequence, row.place);",
        killer=REFERENCE,
    ),
    Mutant(
        name="head-norms-have-no-weight",
        bug="the scale of each head's norm is left out",
        file="native/source/kernels.hpp",
        before="rounded(kept * load_first(weight + i, size - i), as)",
        after="rounded(kept + zero() * load_first(weight + i, size - i), as)",
        killer=REFERENCE,
    ),
    Mutant(
        name="workers-look-for-work-for-ever",
        bug="a pool that never sleeps takes the cores that torch computes on",
        file="native/source/pool.cpp",
        before="constexpr int SPINS = 3000;",
        after="constexpr int SPINS = 2000000000;",
        killer=POOL + "test_workers_sleep_where_there_is_no_work_and_go_where_fewer_are_wanted",
    ),
    Mutant(
        name="callers-flush-denormal-numbers",
        bug="the calling thread rounds otherwise than the workers",
        file="native/source/pool.cpp",
        before="Rounding::Rounding() : before_(control()) { control(DEFAULT); }",
        after="Rounding::Rounding() : before_(control()) {}",
        killer=ATTENTION + "test_denormal_numbers_count_on_every_thread_whatever_the_program_set[portable]",
    ),
)

KERNELS = (*BRIDGE, *FORWARD, *SOURCES)
