"""Defects of drafters that fill in a block, and of their training: nearly all cost acceptance and nothing else."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DFLASH = "tests/drafters/test_dflash.py::"
NETWORK = "tests/drafters/test_dflash_network.py::"
TREE = "tests/drafters/test_dflash_tree.py::"
TRAIN = "tests/train/"
FLOOR = DFLASH + "test_what_was_learnt_is_drafted_right"
CONTEXT = DFLASH + "test_slots_do_not_depend_on_how_the_context_came"
TRANSFORMERS = NETWORK + "test_blocks_over_several_rounds_are_those_of_transformers"
DENSE = NETWORK + "test_windows_and_causality_are_those_of_a_dense_reference"

DRAFTS = (
    Mutant(
        name="block-reads-the-layer-before",
        bug="layers are counted with the embedding as the first (speculators and z-lab differ by one)",
        file="drafters/dflash/drafter.py",
        before="Capture(layers=self._config.target_layer_ids)",
        after="Capture(layers=tuple(max(0, layer - 1) for layer in self._config.target_layer_ids))",
        killer=FLOOR,
    ),
    Mutant(
        name="block-has-another-mask",
        bug="the slots hold another reserved row than they were trained with",
        file="drafters/dflash/drafter.py",
        before="[config.mask_token_id] * (num_rows - 1)",
        after="[config.mask_token_id - 1] * (num_rows - 1)",
        killer=FLOOR,
    ),
    Mutant(
        name="slots-are-shifted",
        bug="a slot is read as the token after its own position, as next-token heads are",
        file="drafters/dflash/drafter.py",
        before="denoise(self._context, noise_NH)[1 : count + 1]",
        after="denoise(self._context, noise_NH)[:count]",
        killer=FLOOR,
    ),
    Mutant(
        name="slots-name-each-others-laws",
        bug="a slot is judged by another one's law than it was drawn from, so that rejection is biased",
        file="drafters/dflash/drafter.py",
        before="q=torch.stack(laws) if",
        after="q=torch.stack(laws).roll(1, 0) if",
        killer=DFLASH + "test_under_rejection_each_slot_is_drawn_from_the_law_it_names",
    ),
    Mutant(
        name="slots-are-not-sharpened",
        bug="an option is read and does nothing",
        file="drafters/dflash/drafter.py",
        before="            rows_KV = rows_KV * self._shared.sharpness",
        after="            pass",
        killer=DFLASH + "test_under_rejection_each_slot_is_drawn_from_the_law_it_names",
    ),
    Mutant(
        name="context-takes-rows-that-were-not-accepted",
        bug="the first rows of the round enter the context, whatever path was verified",
        file="drafters/dflash/drafter.py",
        before="    if list(path) == list(range(count)):",
        after="    if count:",
        killer=CONTEXT,
    ),
    Mutant(
        name="context-keeps-what-was-cut",
        bug="rows of a turn that was taken back stay in the context",
        file="drafters/dflash/context.py",
        before="        self.length = length",
        after="        pass",
        killer=CONTEXT,
    ),
    Mutant(
        name="context-is-one-position-late",
        bug="the context's keys are rotated by other positions than the block's queries",
        file="drafters/dflash/native_blocks.py",
        before="self._rope.run(context.length, count)",
        after="self._rope.run(context.length + 1, count)",
        killer=TRANSFORMERS,
    ),
    Mutant(
        name="block-is-one-position-late",
        bug="the block stands where it was not trained, on the path without kernels",
        file="drafters/dflash/blocks.py",
        before="angles = self._angles(context.length, count, noise)",
        after="angles = self._angles(context.length + 1, count, noise)",
        killer=TRANSFORMERS,
    ),
    Mutant(
        name="block-is-causal",
        bug="slots see only the slots before them (a target's mask taken over)",
        file="drafters/dflash/native_blocks.py",
        before="np.arange(1, count + 1) if causal else count",
        after="np.arange(1, count + 1)",
        killer=TRANSFORMERS,
    ),
    Mutant(
        name="sliding-block-is-not-causal",
        bug="sliding layers look ahead inside the block (z-lab's module under SDPA)",
        file="drafters/dflash/reading.py",
        before="tuple(not everywhere and kind == SLIDING for kind in kinds)",
        after="tuple(False for kind in kinds)",
        killer="tests/drafters/test_dflash_config.py::test_windows_and_causality",
    ),
    Mutant(
        name="block-window-is-one-longer",
        bug="a window counted from the key before it",
        file="drafters/dflash/native_blocks.py",
        before="np.maximum(places - window + 1, 0)",
        after="np.maximum(places - window, 0)",
        killer=DENSE,
    ),
    Mutant(
        name="tree-order-is-that-of-the-search",
        bug="the chain is not the beginning of the round, so that a commit has to gather rows",
        file="drafters/dflash/tree.py",
        before="    return _chain_first(chosen)",
        after="    return chosen",
        killer=TREE + "test_the_plan_is_kept_and_the_chain_comes_first",
    ),
    Mutant(
        name="tree-forgets-what-a-child-costs",
        bug="a child is as likely as its parent, so that trees become chains",
        file="drafters/dflash/tree.py",
        before="(cost - depths[depth + 1][0], found + 1,",
        after="(cost, found + 1,",
        killer=TREE + "test_no_tree_around_the_chain_is_better",
    ),
    Mutant(
        name="second-drafter-is-not-told",
        bug="rounds that lookup drafted are missing in the context of the drafter behind it",
        file="drafters/stacked.py",
        before="        self._then.observe(tokens, out, path)",
        after="        pass",
        killer=DFLASH + "test_lookup_before_it_copies_and_tells_both",
    ),
)

TRAINING = (
    Mutant(
        name="training-shows-the-anchor-twice",
        bug="the anchor's own row of the context is seen, which drafting does not have yet",
        file="train/blocks.py",
        before="device=device) < rows_WQ[..., None]",
        after="device=device) <= rows_WQ[..., None]",
        killer=TRAIN + "test_blocks.py::test_blocks_in_one_forward_equal_each_block_alone",
    ),
    Mutant(
        name="training-learns-past-the-answer",
        bug="slots behind the end of an answer are trained on the next prompt",
        file="train/blocks.py",
        before="valid_WNK = np.logical_and.accumulate(learnt_WNK, axis=-1)",
        after="valid_WNK = learnt_WNK",
        killer=TRAIN + "test_blocks.py::test_labels_are_the_tokens_after_the_anchor_until_what_is_learnt_ends",
    ),
    Mutant(
        name="features-are-read-twice-at-once",
        bug="sequences read ahead and sequences judged by share one cache at the same time",
        file="train/features.py",
        before="        with self._lock:",
        after="        if self._lock:",
        killer=TRAIN + "test_trainer.py::test_reading_ahead_and_looking_at_what_is_kept_aside_take_turns",
    ),
    Mutant(
        name="state-is-named-before-it-is-forced",
        bug="after a power failure the name leads to an empty file",
        file="train/checkpoint.py",
        before="        _force(aside)",
        after="        pass",
        killer=TRAIN + "test_checkpoint.py::test_a_state_is_forced_to_disk_before_it_gets_its_name",
    ),
    Mutant(
        name="answers-stand-for-other-prompts",
        bug="data changed between two starts, and the answers written to the old ones were kept",
        file="train/run.py",
        before='"sha256": digest_of(documents)',
        after='"sha256": ""',
        killer=TRAIN + "test_run.py::test_answers_do_not_stand_for_other_prompts",
    ),
    Mutant(
        name="altered-state-is-taken-for-the-run",
        bug="a state that still parses is gone on with, whatever was changed in it",
        file="train/checkpoint.py",
        before="metadata[KEY], tensors)) != found:",
        after="metadata[KEY], tensors)) is None:",
        killer=TRAIN + "test_checkpoint.py::test_a_state_that_is_not_what_was_written_is_refused",
    ),
    Mutant(
        name="two-processes-share-a-folder",
        bug="a second start of the same command writes over the first one's states",
        file="train/folder.py",
        before="            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        after="            pass",
        killer=TRAIN + "test_folder.py::test_two_processes_do_not_train_in_one_folder_until_one_is_killed",
    ),
    Mutant(
        name="another-width-goes-on-with-a-run",
        bug="--dtype was no part of what a run is made of, so that a resumed one read other features",
        file="train/run.py",
        before='"dtype": target.model.dtype,',
        after='"dtype": "float32",',
        killer=TRAIN + "test_folder.py::test_numbers_of_another_width_do_not_go_on_with_a_run",
    ),
    Mutant(
        name="thread-count-is-not-told",
        bug="a run resumed with other threads passes for one that was made in one piece",
        file="train/folder.py",
        before='{"threads": provenance.get("num_threads"), ',
        after="{",
        killer=TRAIN + "test_folder.py::test_another_thread_count_is_told_and_recorded",
    ),
    Mutant(
        name="answers-say-the-mask",
        bug="an answer with the mask's id makes all that the target wrote useless",
        file="train/answers.py",
        before="        stop_token_ids=(end,),",
        after="        stop_token_ids=(),",
        killer=TRAIN + "test_run.py::test_answers_end_before_the_masks_id",
    ),
    Mutant(
        name="order-is-drawn-anew-on-resume",
        bug="a resumed run begins its epoch again and sees its first sequences twice",
        file="train/trainer.py",
        before="steps = range(self.progress.step, self.num_steps)",
        after="steps = range(0, self.num_steps)",
        killer=TRAIN + "test_trainer.py::test_a_run_that_was_stopped_and_resumed_has_the_bits_of_one_that_was_not",
    ),
)

FILLING = (*DRAFTS, *TRAINING)
