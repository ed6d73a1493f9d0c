"""Defects of the draws: noise, streams, processors, history."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DECODE = "tests/test_decode.py::"
ENGINE = "tests/test_engine.py::"
MATCH_SAMPLING = "tests/lossless/test_match_sampling.py::test_every_processor_gives_the_tokens_of_plain_decoding"
NOISE = "tests/sampling/test_noise.py::"
NOISE_ENDS = "tests/sampling/test_noise_ends.py::"
PROCESSORS = "tests/sampling/test_processors.py::"
RACE = "tests/sampling/test_race.py::"
SAMPLER = "tests/sampling/test_sampler.py::"
STREAMS = "tests/sampling/test_streams.py::"

RANDOMNESS = (
    Mutant(
        name="noise-ignores-the-sample-index",
        bug="all samples of one prompt are the same",
        file="noise.py",
        before="return stream_key(_NOISE_DOMAIN, seed, sample, position)",
        after="return stream_key(_NOISE_DOMAIN, seed, 0, position)",
        killer=ENGINE + "test_sample_indices_give_different_samples",
    ),
    Mutant(
        name="noise-ignores-the-seed",
        bug="a per-request seed changes nothing (vllm 6038)",
        file="noise.py",
        before="return stream_key(_NOISE_DOMAIN, seed, sample, position)",
        after="return stream_key(_NOISE_DOMAIN, 0, sample, position)",
        killer=SAMPLER + "test_seed_sample_and_position_each_change_the_draws",
    ),
    Mutant(
        name="noise-is-keyed-by-call",
        bug="a zero-draft step advances the generator (vllm-ascend 13608): kept rows are found by the number of calls",
        file="noise.py",
        before="self._rows[position] = row",
        after="self._rows[self._rows.__len__()] = row",
        killer=SAMPLER + "test_a_draw_does_not_depend_on_the_draws_before_it",
    ),
    Mutant(
        name="noise-ignores-the-drafted-path",
        bug="every row of a round draws with the root's noise",
        file="sampling/sampler.py",
        before="return self._length + len(prefix)",
        after="return self._length",
        killer=SAMPLER + "test_a_path_counts_like_tokens_already_emitted",
    ),
    Mutant(
        name="noise-belongs-to-ranks-not-ids",
        bug="truncation shifts the noise from token to token, so supports must agree to the last id",
        file="noise.py",
        before="return gumbel_of_weyl(self.key(position), self._weyl[ids])",
        after="return gumbel_of_weyl(self.key(position), self._weyl[: len(ids)])",
        killer=NOISE + "test_a_kept_row_and_single_ids_have_the_same_bits",
    ),
    Mutant(
        name="race-knows-no-ties",
        bug="of tokens as likely as the last that top-p keeps, one that it drops is drawn",
        file="sampling/race.py",
        before="likelier_or_tied, total = mass_above(row, x - near)",
        after="likelier_or_tied, total = mass_above(row, x + near)",
        killer=RACE + "test_ties_that_truncation_tells_apart_are_left_to_the_definition",
    ),
    Mutant(
        name="the-likeliest-stays-though-others-are-as-likely",
        bug="of tokens tied at the top, top-p keeps one it drops",
        file="sampling/race.py",
        before="np.count_nonzero(row.narrow > np.float32(x - near)) == 1:",
        after="np.count_nonzero(row.narrow > np.float32(x - near)) >= 1:",
        killer=RACE + "test_ties_that_truncation_tells_apart_are_left_to_the_definition",
    ),
    Mutant(
        name="race-compares-logits-before-the-shift",
        bug="logits that are one number once the largest is taken off are told apart by what that rounded away",
        file="sampling/race.py",
        before="NEAR = 2.0**-21",
        after="NEAR = 0.0",
        killer=RACE + "test_logits_that_are_tied_only_after_the_shift_are_all_kept",
    ),
    Mutant(
        name="key-parts-are-only-added",
        bug="neighbouring seeds and positions share noise",
        file="noise.py",
        before="key = splitmix64(key ^ (part & _WORD))",
        after="key = (key + part) & _WORD",
        killer=NOISE + "test_the_parts_of_a_key_are_not_interchangeable",
    ),
    Mutant(
        name="uniform-may-be-nought",
        bug="a uniform of 0 makes infinite noise and draws impossible tokens",
        file="noise.py",
        before="uniforms -= 1.0 - 2.0**-53",
        after="uniforms -= 1.0",
        killer=NOISE_ENDS + "test_noise_is_finite_at_both_ends_of_the_word",
    ),
    Mutant(
        name="coin-is-inclusive",
        bug="a draft of probability zero is accepted by coin <= p (sglang 35771)",
        file="streams.py",
        before="return self.uniform(node, purpose) < probability",
        after="return self.uniform(node, purpose) <= probability",
        killer=STREAMS + "test_a_coin_is_never_true_at_0_and_always_at_1",
    ),
    Mutant(
        name="streams-repeat-every-round",
        bug="every round tosses the same coins",
        file="streams.py",
        before="uniform(stream_key(self._key, self._round, node, name))",
        after="uniform(stream_key(self._key, 0, node, name))",
        killer=STREAMS + "test_variates_are_equal_only_for_equal_keys",
    ),
    Mutant(
        name="streams-ignore-the-purpose",
        bug="coin, draft and residual of a node share their randomness: TV .05",
        file="streams.py",
        before="uniform(stream_key(self._key, self._round, node, name))",
        after="uniform(stream_key(self._key, self._round, node))",
        killer=STREAMS + "test_variates_are_equal_only_for_equal_keys",
    ),
    Mutant(
        name="streams-ignore-the-node",
        bug="all positions of a round toss the same coin",
        file="streams.py",
        before="uniform(stream_key(self._key, self._round, node, name))",
        after="uniform(stream_key(self._key, self._round, name))",
        killer=STREAMS + "test_variates_are_equal_only_for_equal_keys",
    ),
    Mutant(
        name="argmax-draft-with-softmax-law",
        bug="the draft is the likeliest token, q says it was sampled: [.8, .2] against [.6, .4] (transformers 32867)",
        file="sampling/sampler.py",
        before='return self._choices.categorical(law, len(prefix) + 1, "draft"), law',
        after="return int(law.argmax()), law",
        killer=SAMPLER + "test_under_reject_a_draft_comes_with_the_law_it_was_sampled_from",
    ),
    Mutant(
        name="raw-law-returned",
        bug="the processed law is sampled and the raw one returned: TV .227 (transformers 47932)",
        file="sampling/sampler.py",
        before='return self._choices.categorical(law, len(prefix) + 1, "draft"), law',
        after='return self._choices.categorical(law, len(prefix) + 1, "draft"), logits.double().softmax(0)',
        killer=SAMPLER + "test_under_reject_a_draft_comes_with_the_law_it_was_sampled_from",
    ),
)

HISTORY = (
    Mutant(
        name="repetition-penalty-misses-the-path",
        bug="the penalty is applied to the first token of a round only (mlx-node 11)",
        file="sampling/sampler.py",
        before="seen, _ = self._seen.with_path(prefix)",
        after="seen, _ = self._seen.with_path(())",
        killer=MATCH_SAMPLING + "[{'repetition_penalty': 1.5}-0.8]",
    ),
    Mutant(
        name="frequency-penalty-misses-the-path",
        bug="frequency_penalty silently has no effect on drafts (vllm 18902)",
        file="sampling/sampler.py",
        before="ids, counts = self._output.with_path(prefix)",
        after="ids, counts = self._output.with_path(())",
        killer=MATCH_SAMPLING + "[{'frequency_penalty': 0.8}-0.8]",
    ),
    Mutant(
        name="emitted-tokens-are-not-counted",
        bug="penalties know the prompt alone",
        file="sampling/sampler.py",
        before="        self._output.add(tokens)",
        after="        pass",
        killer=PROCESSORS + "test_presence_and_frequency_penalise_the_output_alone",
    ),
    Mutant(
        name="counts-are-not-refreshed",
        bug="the counts of the round before are used (vllm 41768)",
        file="sampling/history.py",
        before="        self._arrays = None",
        after="        pass",
        killer=MATCH_SAMPLING + "[{'frequency_penalty': 0.8}-0.8]",
    ),
    Mutant(
        name="min-tokens-off-by-one",
        bug="EOS is masked one row too many (vllm 41768)",
        file="sampling/sampler.py",
        before="self._num_edited = params.min_tokens if len(self._stop_ids) > 0 else 0",
        after="self._num_edited = params.min_tokens + 1 if len(self._stop_ids) > 0 else 0",
        killer=SAMPLER + "test_rows_may_be_drawn_together_once_min_tokens_is_reached",
    ),
    Mutant(
        name="min-tokens-ignores-the-path",
        bug="a whole round is masked, or none of it, by its first position",
        file="sampling/sampler.py",
        before="if self._forbids_stops(self._num_emitted + len(prefix)):",
        after="if self._forbids_stops(self._num_emitted):",
        killer=SAMPLER + "test_a_path_counts_like_tokens_already_emitted",
    ),
    Mutant(
        name="min-tokens-skipped-at-temperature-zero",
        bug="the fast path for verified rows skips the stop mask (vllm 42744)",
        file="sampling/sampler.py",
        before="self._is_argmax and self._num_emitted >= self._num_edited",
        after="self._is_argmax",
        killer=SAMPLER + "test_rows_are_drawn_together_only_where_nothing_edits_them",
    ),
    Mutant(
        name="presence-penalty-on-bonus-tokens-only",
        bug="a processor is honoured in the row by row path alone (vllm 42744)",
        file="sampling/sampler.py",
        before="            or params.presence_penalty != 0",
        after="            or False",
        killer=SAMPLER + "test_rows_are_drawn_together_only_where_nothing_edits_them",
    ),
)

PROCESSING = (
    Mutant(
        name="nan-is-laundered",
        bug="a NaN beside finite logits is drawn over as if it were not there (vllm 41834)",
        file="sampling/sampler.py",
        before="if not np.isfinite(row.max()):",
        after="if not np.isfinite(np.nanmax(row)):",
        killer=SAMPLER + "test_nan_and_infinity_are_errors",
    ),
    Mutant(
        name="nan-wins-the-argmax",
        bug="greedy rows of NaN give an id (vllm 45060)",
        file="native/tensors.py",
        before="torch.where(most.isfinite(), tokens, -1).tolist()",
        after="tokens.tolist()",
        killer=SAMPLER + "test_rows_drawn_together_are_the_first_maxima",
    ),
    Mutant(
        name="tiny-temperatures-are-not-greedy",
        bug="one path takes 1e-6 as greedy, the other divides by it (Automodel 3627, vllm 27077)",
        file="options.py",
        before="return self.temperature < GREEDY_EPSILON",
        after="return self.temperature == 0",
        killer=SAMPLER + "test_temperatures_below_epsilon_are_greedy",
    ),
    Mutant(
        name="temperature-overflows",
        bug="logits over a small temperature overflow to infinity (Automodel 3627)",
        file="sampling/processors.py",
        before="logits=(row - row.max()) / temperature)",
        after="logits=row / temperature)",
        killer=PROCESSORS + "test_temperature_cannot_overflow",
    ),
    Mutant(
        name="padding-is-drawn",
        bug="padded rows of the vocabulary are emitted (vllm 13849)",
        file="native/tensors.py",
        before="width = columns if columns < most else most",
        after="width = columns",
        killer=SAMPLER + "test_padding_beyond_the_vocabulary_is_never_drawn",
    ),
    Mutant(
        name="top-p-on-unnormalised-weights",
        bug="top-p over weights that top-k left unnormalised (sglang, joint top-k and top-p)",
        file="sampling/processors.py",
        before="    probs = support.probabilities()",
        after="    probs = np.exp(support.logits)",
        killer=PROCESSORS + "test_top_p_of_a_large_row_equals_the_plain_definition",
    ),
    Mutant(
        name="top-k-loses-ties",
        bug="of tied tokens those with the k-th are dropped, so that ids decide",
        file="sampling/processors.py",
        before="return support.keep(support.logits >= threshold)",
        after="return support.keep(support.logits > threshold)",
        killer=PROCESSORS + "test_top_k_keeps_all_ties_with_the_kth",
    ),
    Mutant(
        name="top-p-drops-the-lowest-of-ties",
        bug="tied tokens leave in the other order",
        file="sampling/processors.py",
        before='np.argsort(-probs[candidates], kind="stable")[::-1]',
        after='np.argsort(probs[candidates], kind="stable")',
        killer=PROCESSORS + "test_top_p_drops_the_highest_of_tied_ids_first",
    ),
    Mutant(
        name="negative-logits-are-divided",
        bug="the repetition penalty makes unlikely tokens likelier",
        file="sampling/processors.py",
        before="np.where(values < 0, values * penalty, values / penalty)",
        after="np.where(values < 0, values / penalty, values / penalty)",
        killer=PROCESSORS + "test_a_processor_has_the_law_of_transformers",
    ),
    Mutant(
        name="frequency-counts-once",
        bug="frequency_penalty acts as a presence penalty",
        file="sampling/processors.py",
        before="presence + counts[inside] * frequency",
        after="presence + frequency",
        killer=PROCESSORS + "test_presence_and_frequency_penalise_the_output_alone",
    ),
    Mutant(
        name="ties-go-to-the-highest-id",
        bug="equal logits, common in bf16, are broken otherwise than elsewhere",
        file="native/tensors.py",
        before="torch.where(most.isfinite(), tokens, -1).tolist()",
        after="torch.where(most.isfinite(), width - 1 - logits[:, :width].flip(1).argmax(dim=1), -1).tolist()",
        killer=SAMPLER + "test_rows_drawn_together_are_the_first_maxima",
    ),
)

SAMPLING = (*RANDOMNESS, *HISTORY, *PROCESSING)
