"""Defects of drafters that copy from texts beside the sequence: a predicted answer, past answers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ALIGNMENT = "tests/drafters/test_alignment.py::"
PREDICTED = "tests/drafters/test_predicted.py::"
STORE = "tests/drafters/test_store.py::"
SUFFIX = "tests/drafters/test_suffix.py::"
AFTER_A_CUT = "tests/drafters/test_truncate.py::test_proposals_after_a_cut_are_those_of_a_fresh_drafter"

PREDICTIONS = (
    Mutant(
        name="prediction-is-one-token-late",
        bug="the token after the next is drafted, and hardly a draft is right",
        file="drafters/alignment.py",
        before="self._text[place.next : place.next + count]",
        after="self._text[place.next + 1 : place.next + 1 + count]",
        killer=PREDICTED + "test_a_right_prediction_is_accepted_to_its_last_token",
    ),
    Mutant(
        name="prediction-is-lost-at-the-first-edit",
        bug="a prediction that is followed by its index alone is worth nothing after an edit",
        file="drafters/alignment.py",
        before="        if found is not None:",
        after="        if found is not None and place.next is None and not place.last:",
        killer=PREDICTED + "test_an_edit_costs_a_few_rounds_and_then_the_prediction_is_followed_again",
    ),
    Mutant(
        name="prediction-is-found-anywhere",
        bug="the first of equal matches is continued, so that an edit throws the answer back",
        file="drafters/alignment.py",
        before="end >= last, -abs(end - last)",
        after="end < last, -end",
        killer=ALIGNMENT + "test_of_equal_matches_the_nearest_ahead_is_taken_and_behind_only_without_one",
    ),
    Mutant(
        name="prediction-matches-are-not-compared",
        bug="a short match nearby beats the long one that shows where the answer is",
        file="drafters/alignment.py",
        before="key=lambda end: (self._match(end, answer), ",
        after="key=lambda end: (",
        killer=ALIGNMENT + "test_an_answer_is_found_again_where_the_match_is_longest_and_nearest",
    ),
    Mutant(
        name="prediction-begins-at-the-prompt",
        bug="a prompt that quotes the predicted text moves the place in it",
        file="drafters/predicted.py",
        before="            if path is not None:",
        after="            if True:",
        killer=PREDICTED + "test_the_prompt_is_no_part_of_the_answer",
    ),
    Mutant(
        name="prediction-ignores-its-plan",
        bug="more is drafted than may be emitted, and the drafter is dropped",
        file="drafters/predicted.py",
        before="min(plan.num_nodes, plan.depth)",
        after="plan.num_nodes + 1",
        killer=PREDICTED + "test_it_drafts_no_more_than_the_plan_allows_and_ends_with_the_prediction",
    ),
    Mutant(
        name="inner-drafter-is-told-of-its-own-rounds-alone",
        bug="the other drafter misses what the prediction drafted and drafts for another text",
        file="drafters/predicted.py",
        before="        self._inner.observe(tokens, out, path)",
        after="        self._inner.observe(tokens[: 1 if path else None], out, path)",
        killer=PREDICTED + "test_a_draft_model_beside_a_prediction_drafts_what_it_would_alone",
    ),
    Mutant(
        name="inner-drafter-stays-open",
        bug="the draft model's cache outlives the request",
        file="drafters/predicted.py",
        before="        self._inner.close()",
        after="        pass",
        killer=PREDICTED + "test_what_the_other_drafter_wants_to_see_is_shown_to_it",
    ),
    Mutant(
        name="prediction-keeps-its-place-after-a-cut",
        bug="a regenerated turn is drafted from where the last one ended",
        file="drafters/predicted.py",
        before="        del self._trail[kept + 1 :]",
        after="        pass",
        killer=AFTER_A_CUT,
    ),
    Mutant(
        name="prediction-keeps-the-answer-after-a-cut",
        bug="the place is looked for by tokens that were taken back",
        file="drafters/predicted.py",
        before="        del self._answer[self._trail[-1][1] :]",
        after="        pass",
        killer=AFTER_A_CUT,
    ),
)

STORES = (
    Mutant(
        name="answers-are-not-stored",
        bug="a request that comes again is drafted as if it were the first",
        file="drafters/lookup.py",
        before="            for answer in self._answers:",
        after="            for answer in self._answers[1:]:",
        killer=STORE + "test_a_request_that_comes_again_is_accepted_nearly_whole",
    ),
    Mutant(
        name="prompts-are-stored",
        bug="one user's prompt is kept among the answers",
        file="drafters/lookup.py",
        before="        if path is not None:",
        after="        if True:",
        killer=STORE + "test_answers_are_stored_without_their_prompts_when_the_drafter_is_closed_once",
    ),
    Mutant(
        name="failed-answers-are-stored",
        bug="a request that failed is a model for others",
        file="drafters/lookup.py",
        before="if self._store is not None and not self._round_is_open:",
        after="if self._store is not None:",
        killer=STORE + "test_a_cancelled_answer_is_stored_and_a_failed_one_is_not",
    ),
    Mutant(
        name="inner-drafter-knows-nothing-of-the-round",
        bug="lookup beside a prediction cannot tell a failed round from a cancelled one",
        file="drafters/predicted.py",
        before="        self._inner.propose(root, _NOTHING, sampler)  # so that it knows of the round",
        after="        pass",
        killer=STORE + "test_a_cancelled_answer_is_stored_and_a_failed_one_is_not",
    ),
    Mutant(
        name="answers-taken-back-are-stored",
        bug="a regenerated answer stays among the past ones",
        file="drafters/lookup.py",
        before="range(a.start, min(a.stop, length))",
        after="range(a.start, a.stop)",
        killer=STORE + "test_what_was_taken_back_is_not_stored",
    ),
    Mutant(
        name="store-outgrows-its-memory",
        bug="a shared pool without a bound fills the memory of a long-lived process",
        file="drafters/store.py",
        before=" or self._sum_bytes() > self._max_bytes:",
        after=":",
        killer=STORE + "test_past_the_memory_allowed_the_oldest_answers_are_dropped",
    ),
    Mutant(
        name="store-drops-the-newest",
        bug="a full pool never learns again",
        file="drafters/store.py",
        before="            del self._segments[0]",
        after="            del self._segments[-1]",
        killer=STORE + "test_past_the_memory_allowed_the_oldest_answers_are_dropped",
    ),
    Mutant(
        name="store-forgets-integers",
        bug="the memory cap counts tables and not what is in them",
        file="drafters/suffix.py",
        before="sum(map(sys.getsizeof, tables)) + _INT_BYTES * num_ints",
        after="sum(map(sys.getsizeof, tables))",
        killer=SUFFIX + "test_the_memory_is_estimated_within_a_quarter",
    ),
    Mutant(
        name="segments-are-written-to-while-read",
        bug="another request's answer changes the automaton a request is reading",
        file="drafters/suffix.py",
        before="        copy = SuffixAutomaton()",
        after="        copy = self",
        killer=STORE + "test_what_a_request_reads_does_not_change_while_others_add",
    ),
    Mutant(
        name="store-keeps-answers-twice",
        bug="a repeated request pushes all others out",
        file="drafters/store.py",
        before="if not any(segment.text.holds(piece) for segment in self._segments):",
        after="if piece:",
        killer=STORE + "test_an_answer_that_is_kept_already_is_not_kept_twice",
    ),
    Mutant(
        name="drafts-run-into-the-next-answer",
        bug="the end of one past answer is drafted on with the beginning of another",
        file="drafters/store.py",
        before="            del longest[longest.index(_BOUNDARY) :]",
        after="            longest = [token for token in longest if token != _BOUNDARY]",
        killer=STORE + "test_no_draft_runs_from_one_answer_into_another",
    ),
    Mutant(
        name="past-answers-hide-the-text",
        bug="a short match in an old answer beats the long one in the text itself",
        file="drafters/lookup.py",
        before="longer_than = max(length, self._min_match - 1)",
        after="longer_than = self._min_match - 1",
        killer=STORE + "test_the_longest_match_wins_and_the_texts_own_among_equals",
    ),
    Mutant(
        name="past-answers-are-read-too-late",
        bug="after a long prompt a short match counts as much as a long one",
        file="drafters/store.py",
        before="text[max(len(text) - _LONGEST_MATCH, self._num_read) :]",
        after="text[max(len(text) - 8, self._num_read) :]",
        killer=STORE + "test_a_long_match_is_seen_however_late_it_is_asked_for",
    ),
    Mutant(
        name="past-answers-keep-their-place-after-a-cut",
        bug="drafts continue the turn that was taken back",
        file="drafters/lookup.py",
        before="            self._past.forget()",
        after="            pass",
        killer=AFTER_A_CUT,
    ),
    Mutant(
        name="matches-grow-past-their-limit",
        bug="what is drafted depends on when the drafter was asked",
        file="drafters/suffix.py",
        before="                length = min(length + 1, most)",
        after="                length = length + 1",
        killer=SUFFIX + "test_following_a_text_keeps_its_longest_suffix_that_occurs",
    ),
)

COPYING = (*PREDICTIONS, *STORES)
