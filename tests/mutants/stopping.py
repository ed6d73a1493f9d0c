"""Defects of ends and accounts: stop strings, what is held back, the text of an answer, log probabilities."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ANSWERS = "tests/text/test_answers.py::"
LOGPROBS = "tests/test_logprobs.py::"
STOPS = "tests/test_stops.py::"
STREAM = "tests/text/test_stream.py::"
STRINGS = "tests/test_stop_strings.py::"

STOP_STRINGS = (
    Mutant(
        name="stop-string-inside-another-is-missed",
        bug="only the string whose beginning is being read is looked for",
        file="stop_strings.py",
        before="node.ended = node.ended or nodes[node.suffix].ended",
        after="node.ended = node.ended",
        killer=STRINGS + "test_every_short_text_and_pair_of_strings",
    ),
    Mutant(
        name="last-stop-string-of-a-piece-wins",
        bug="not the earliest in the text (vllm 49391)",
        file="stop_strings.py",
        before="if length and may_end and place + 1 - length <= begin:",
        after="if length and may_end:",
        killer=STRINGS + "test_the_cut_is_before_the_string_that_begins_first",
    ),
    Mutant(
        name="shortest-stop-string-wins",
        bug="of strings that begin together the first to end is reported",
        file="stop_strings.py",
        before="if length and may_end and place + 1 - length <= begin:",
        after="if length and may_end and place + 1 - length < begin:",
        killer=STRINGS + "test_the_cut_is_before_the_string_that_begins_first",
    ),
    Mutant(
        name="stop-string-is-half-shown",
        bug="what may become a stop string is streamed before it is known",
        file="stop_strings.py",
        before="final = len(known) - self._nodes[self._state].open",
        after="final = len(known)",
        killer=STRINGS + "test_the_cut_is_before_the_string_that_begins_first",
    ),
    Mutant(
        name="text-is-held-for-nothing",
        bug="text that cannot become a stop string any more is still held back",
        file="stop_strings.py",
        before="node.open = node.depth if node.edges else nodes[node.suffix].open",
        after="node.open = node.depth",
        killer=STRINGS + "test_what_completed_too_early_is_not_found_later",
    ),
    Mutant(
        name="held-text-is-lost-at-the-end",
        bug="the end of the text is missing where it looked like a stop string (vmlx-swift 148)",
        file="stops.py",
        before="            text += self._strings.flush()",
        after="            pass",
        killer=STOPS + "test_held_back_text_comes_as_soon_as_it_cannot_be_a_stop_string",
    ),
    Mutant(
        name="stop-string-ignores-min-tokens",
        bug="a stop string ends a request that asked for more",
        file="stops.py",
        before="may_end=self._count > self._limits.min_tokens)",
        after="may_end=True)",
        killer=STOPS + "test_a_stop_string_counts_from_min_tokens_on",
    ),
    Mutant(
        name="stop-string-at-the-end-is-called-length",
        bug="a stop string on the last allowed token is reported as length (sglang 31599)",
        file="stops.py",
        before='return text, "stop"',
        after='return text, finish or "stop"',
        killer=STOPS + "test_a_stop_string_that_only_the_end_brings_to_light_cuts_too",
    ),
    Mutant(
        name="eos-is-named-as-the-callers-stop",
        bug="the model's own EOS is reported as a stop that was asked for",
        file="stops.py",
        before="self.matched = token if token in limits.stop_ids else None",
        after="self.matched = token",
        killer=STOPS + "test_what_ended_a_request_is_named_but_not_the_models_own_eos",
    ),
    Mutant(
        name="cancelling-from-outside-is-not-heard",
        bug="a cancelled request computes on to its end (llama.cpp 24496)",
        file="stops.py",
        before="if finish is None and (refused or self._cancelled):",
        after="if finish is None and refused:",
        killer=STOPS + "test_cancelling_from_another_thread_keeps_one_more_token_and_all_held_text",
    ),
)

ANSWER_TEXTS = (
    Mutant(
        name="answer-begins-a-text-of-its-own",
        bug="the space between prompt and answer is lost",
        file="opening.py",
        before="StreamDecoder(self.tokenizer, after=asked.text_before)",
        after="StreamDecoder(self.tokenizer)",
        killer=ANSWERS + "test_prompt_and_answer_concatenate_to_the_text_of_both",
    ),
    Mutant(
        name="chat-answer-goes-on-from-the-prompt",
        bug="a chat's answers begin with a space",
        file="engine.py",
        before="text_before=() if _is_chat(prompt) else tokens,",
        after="text_before=tokens,",
        killer=ANSWERS + "test_the_answer_to_a_chat_is_a_text_of_its_own",
    ),
    Mutant(
        name="open-bytes-of-the-prompt-are-gone-on-with",
        bug="bytes the prompt left open are judged together with the answer's",
        file="text.py",
        before="if text is not None:",
        after="if text is not token:",
        killer=STREAM + "test_bytes_of_the_prompt_do_not_reach_into_the_answer",
    ),
)

SCORES = (
    Mutant(
        name="drafts-are-scored-by-the-first-row",
        bug="every token of a round gets the row after the root",
        file="stops.py",
        before="self._scorer.score(token, logits[rows[kept]])",
        after="self._scorer.score(token, logits[0])",
        killer=LOGPROBS + "test_logprobs_equal_teacher_forced_rescoring[right-0.0-False]",
    ),
    Mutant(
        name="drafts-are-scored-in-the-order-of-nodes",
        bug="a branching round's rows are taken in the order they were computed",
        file="stops.py",
        before="rows = verdict.path or (-1,)",
        after="rows = range(len(verdict.path)) or (-1,)",
        killer=LOGPROBS + "test_logprobs_equal_teacher_forced_rescoring[tree-0.0-False]",
    ),
    Mutant(
        name="padding-is-part-of-the-law",
        bug="rows beyond the vocabulary take probability (mlx-examples 1291)",
        file="logprobs.py",
        before="logits.detach()[: self.vocab_size].to",
        after="logits.detach().to",
        killer=LOGPROBS + "test_all_of_a_vocabulary_sums_to_one_and_padding_is_no_part_of_it",
    ),
    Mutant(
        name="logits-are-reported-as-logprobs",
        bug="the normaliser is forgotten (llama.cpp 27972)",
        file="logprobs.py",
        before="logprob=float(row[token] - normaliser),",
        after="logprob=float(row[token] - best),",
        killer=LOGPROBS + "test_a_row_is_normalised_ranked_and_cut_to_its_likeliest",
    ),
    Mutant(
        name="ranks-forget-ties",
        bug="equal tokens share a rank, whichever was drawn",
        file="logprobs.py",
        before="rank=1 + int(before),",
        after="rank=1 + int(np.count_nonzero(row > row[token])),",
        killer=LOGPROBS + "test_ties_go_to_the_lowest_id",
    ),
    Mutant(
        name="prompt-tokens-are-scored-by-their-own-row",
        bug="prompt log probabilities are off by one",
        file="logprobs.py",
        before="else self._scorer.score(token, self._last_row))",
        after="else self._scorer.score(token, row))",
        killer=LOGPROBS + "test_prompt_tokens_are_scored_by_the_row_before_them_across_chunks[sizes0]",
    ),
    Mutant(
        name="first-token-of-a-chunk-reads-a-dead-row",
        bug="the row before a chunk was written over",
        file="logprobs.py",
        before="self._last_row = self._last_row.clone()",
        after="self._last_row = self._last_row.detach()",
        killer=LOGPROBS + "test_prompt_tokens_are_scored_by_the_row_before_them_across_chunks[sizes1]",
    ),
)

STOPPING = (*STOP_STRINGS, *ANSWER_TEXTS, *SCORES)
