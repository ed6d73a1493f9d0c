"""Defects around the models: loading, pairing, text, proof, command line."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BESIDE = "tests/loading/test_beside.py::"
FORMATS = "tests/loading/test_formats.py::"
HEADER = "tests/loading/test_header.py::"
PAIRING = "tests/loading/test_pairing.py::"
SHARDS = "tests/loading/test_shards.py::"
WEIGHTS = "tests/loading/test_weights.py::"
LOAD = "tests/test_load.py::"
CHAT = "tests/text/test_chat.py::"
STREAM = "tests/text/test_stream.py::"
TOKENIZER = "tests/text/test_tokenizer.py::"
PROVE = "tests/prove/test_prove.py::"
STOPS = "tests/test_stops.py::"

LOADING = (
    Mutant(
        name="weights-of-nan-pass",
        bug="NaN or infinite weights load and answer nonsense",
        file="loading/checkpoint.py",
        before="return bool(torch.isfinite(low) & torch.isfinite(high))",
        after="return True",
        killer=WEIGHTS + "test_one_bad_number_at_the_end_of_a_fused_part_is_found[float32-nan]",
    ),
    Mutant(
        name="missing-tensors-pass",
        bug="an incomplete checkpoint loads with whatever memory held (Model-Optimizer 1104)",
        file="loading/checkpoint.py",
        before="if spec.name not in stored:",
        after="if spec.name is None:",
        killer=WEIGHTS + "test_all_that_is_wrong_is_named_in_one_error",
    ),
    Mutant(
        name="unexpected-tensors-pass",
        bug="weights of another architecture are silently left out",
        file="loading/checkpoint.py",
        before="if name not in expected and",
        after="if name in expected and",
        killer=WEIGHTS + "test_all_that_is_wrong_is_named_in_one_error",
    ),
    Mutant(
        name="links-lead-out-of-the-directory",
        bug="a link to any file of the machine is followed",
        file="loading/files.py",
        before="if not any(real.is_relative_to(root) for root in _roots(directory)):",
        after="if not any(True for root in _roots(directory)):",
        killer=SHARDS + "test_a_link_out_of_the_directory_is_refused_and_one_inside_is_not",
    ),
    Mutant(
        name="tensor-size-is-not-checked",
        bug="shape and offsets disagree: reads beyond the tensor (CVE-2026-7482)",
        file="loading/header.py",
        before="if elements * BITS[dtype] != 8 * (offsets[1] - offsets[0]):",
        after="if elements * BITS[dtype] < 0:",
        killer=HEADER + "test_a_damaged_or_lying_file_is_refused_by_name[shape larger than the bytes]",
    ),
    Mutant(
        name="tensors-may-overlap",
        bug="one tensor's bytes are another's",
        file="loading/header.py",
        before="if tensor.start != end:",
        after="if tensor.start > end:",
        killer=HEADER + "test_a_damaged_or_lying_file_is_refused_by_name[overlap]",
    ),
    Mutant(
        name="code-of-a-checkpoint-passes",
        bug="auto_map is ignored, or worse, run (CVE-2026-22807)",
        file="loading/tokenizer.py",
        before='if config.get("auto_map") is not None:',
        after='if config.get("auto_map") is config:',
        killer=FORMATS + "test_code_of_the_checkpoint_is_refused_and_never_runs",
    ),
    Mutant(
        name="eos-of-one-file-only",
        bug="the chat model's second EOS is missed and the answer never ends",
        file="loading/generation.py",
        before='in (("config.json", config), (GENERATION, generation)):',
        after='in (("config.json", config),):',
        killer=BESIDE + "test_eos_ids_of_both_files_are_merged",
    ),
    Mutant(
        name="tokenizers-are-compared-by-size",
        bug="a draft model of another tokenizer is accepted (llama.cpp 17480)",
        file="loading/pairing.py",
        before="list(islice(different_tokens(ours, theirs), NUM_SHOWN + 1)) or list(different_rules(ours, theirs))",
        after="list[str]()",
        killer=PAIRING + "test_a_different_tokenizer_is_refused_showing_where",
    ),
    Mutant(
        name="padded-vocabularies-are-refused",
        bug="151936 against 152064 rows of one tokenizer (vllm 13849, mlc-llm 3212)",
        file="loading/pairing.py",
        before="if rows[1] < theirs.vocab_size:",
        after="if rows[1] != rows[0]:",
        killer=PAIRING + "test_the_same_tokenizer_pairs_whatever_the_padding",
    ),
    Mutant(
        name="unset-temperature-of-a-model-is-greedy",
        bug="only top_k given becomes argmax (TensorRT-LLM 19390)",
        file="loading/generation.py",
        before='temperature = _number(generation, "temperature", 1.0)',
        after='temperature = _number(generation, "temperature", 0.0)',
        killer=BESIDE + "test_sampling_defaults_are_the_models",
    ),
)

TEXT = (
    Mutant(
        name="open-character-is-never-flushed",
        bug="the tail the detokeniser holds back is lost (vmlx-swift 148)",
        file="text.py",
        before='rest = self._utf8.decode(b"", final=True)',
        after='rest = ""',
        killer=STREAM + "test_what_is_open_at_the_end_is_flushed_once",
    ),
    Mutant(
        name="characters-are-decoded-token-by-token",
        bug="words are dropped where a character is split between tokens (vllm 52469)",
        file="text.py",
        before="text = self._utf8.decode(self._tokenizer.token_bytes(token))",
        after='text = self._tokenizer.token_bytes(token).decode("utf-8", "replace")',
        killer=STREAM + "test_a_character_comes_whole_and_as_soon_as_it_is_complete",
    ),
    Mutant(
        name="tail-of-a-request-is-lost",
        bug="the end of the text is never asked for (vmlx-swift 148)",
        file="stops.py",
        before="            shown += self._text.flush()",
        after="            pass",
        killer=STOPS + "test_text_held_back_comes_with_the_last_event",
    ),
    Mutant(
        name="stop-id-is-shown",
        bug="the terminating token is part of the text (openvino.genai 1951)",
        file="stops.py",
        before='shown = "" if finish == "stop" else self._text.feed((token,))',
        after="shown = self._text.feed((token,))",
        killer=STOPS + "test_the_terminating_id_is_an_id_and_no_text",
    ),
    Mutant(
        name="cancelled-text-loses-its-tail",
        bug="what is held back when the caller says no is lost",
        file="stops.py",
        before="text=event.text + rest, finish_reason",
        after="text=event.text, finish_reason",
        killer=STOPS + "test_text_held_back_comes_with_the_last_event",
    ),
    Mutant(
        name="min-tokens-of-stops-off-by-one",
        bug="a stop id ends the request one token too late or too early (vllm 41768)",
        file="stops.py",
        before="if self._count > limits.min_tokens and (",
        after="if self._count > limits.min_tokens + 1 and (",
        killer=STOPS + "test_a_stop_id_counts_from_min_tokens_on",
    ),
    Mutant(
        name="chat-gets-special-tokens-twice",
        bug="an extra BOS before what the template wrote (transformers 46124)",
        file="text.py",
        before="return self.encode(text, add_special_tokens=False)",
        after="return self.encode(text, add_special_tokens=True)",
        killer="tests/text/test_chat_specials.py::test_nothing_is_added_to_what_a_template_wrote",
    ),
    Mutant(
        name="text-gets-special-tokens-twice",
        bug="a prompt that brings its BOS gets another one",
        file="text.py",
        before="if ids[: len(before)] == before:",
        after="if not before:",
        killer=TOKENIZER + "test_special_tokens_surround_a_text_exactly_once",
    ),
    Mutant(
        name="templates-run-unsandboxed",
        bug="a chat template executes code (CVE-2024-34359, CVE-2026-5760)",
        file="chat.py",
        before="from jinja2.sandbox import ImmutableSandboxedEnvironment",
        after="from jinja2 import Environment as ImmutableSandboxedEnvironment",
        killer=CHAT + "test_a_template_cannot_leave_the_sandbox",
    ),
)

PROOF = (
    Mutant(
        name="every-difference-is-a-near-tie",
        bug="a divergence is excused without measuring it (TensorRT-LLM compares by similarity)",
        file="prove.py",
        before="self.gap is not None and self.reproduced and self.gap <= self.threshold",
        after="self.gap is not None",
        killer=PROVE + "test_rows_that_are_wrong_beside_others_are_a_divergence",
    ),
    Mutant(
        name="flag-is-parsed-and-not-forwarded",
        bug="a command-line flag changes nothing (mlx-lm 1297)",
        file="cli/flags.py",
        before="for name in names if name in values})",
        after='for name in names if name in values and name != "top_k"})',
        killer="tests/cli/test_generate.py::test_every_flag_changes_what_comes_out[base1-flag1-tokens]",
    ),
    Mutant(
        name="proof-without-drafts",
        bug="plain decoding compared with itself is called a proof (vllm: metrics checked, outputs not)",
        file="prove.py",
        before="if not accepted or min(accepted.values()) == 0 or any(",
        after="if not accepted or any(",
        killer=PROVE + "test_equal_answers_without_accepted_drafts_prove_nothing",
    ),
)

SERVING = (*LOADING, *TEXT, *PROOF)
