"""Defects of the drafters: they cost acceptance before they cost anything else, so floors must notice them."""

from __future__ import annotations

from tests.mutants.copying import COPYING
from tests.mutants.mutant import Mutant

LOOKUP = "tests/drafters/test_lookup.py::"
SUFFIX = "tests/drafters/test_suffix.py::"
TRUNCATE = "tests/drafters/test_truncate.py::"
DRAFT_MODEL = "tests/drafters/test_draft_model.py::"
AFTER_A_CUT = TRUNCATE + "test_proposals_after_a_cut_are_those_of_a_fresh_drafter"
FROM_SCRATCH = DRAFT_MODEL + "test_drafts_and_state_are_those_of_the_text_from_scratch"

LOOKUPS = (
    Mutant(
        name="lookup-matches-itself",
        bug="the end of the text is found at the end of the text, and the root drafted for ever",
        file="drafters/lookup.py",
        before="length, end = self._text.longest_match(root)",
        after="length, end = len(self._text.tokens), len(self._text.tokens) - 1",
        killer=LOOKUP + "test_never_matches_the_root_with_itself",
    ),
    Mutant(
        name="lookup-misses-the-last-accepted",
        bug="the last committed token of a round is never observed",
        file="drafters/lookup.py",
        before="self._text.extend(tokens)",
        after="self._text.extend(tokens[: max(1, len(tokens) - 1)])",
        killer=LOOKUP + "test_sees_tokens_of_a_finished_round",
    ),
    Mutant(
        name="lookup-ignores-its-plan",
        bug="more is drafted than may be emitted (transformers 46993)",
        file="drafters/lookup.py",
        before="min(plan.num_nodes, plan.depth)",
        after="plan.num_nodes + 8",
        killer=LOOKUP + "test_every_proposal_continues_an_earlier_occurrence",
    ),
    Mutant(
        name="lookup-does-not-go-round",
        bug="a copy that meets its own end repeats the wrong token",
        file="drafters/lookup.py",
        before="copied = (copied * (count // len(copied) + 1))[:count]",
        after="copied = (copied + [root] * count)[:count]",
        killer=LOOKUP + "test_continues_cyclically_where_the_copy_meets_its_own_end",
    ),
    Mutant(
        name="suffix-ends-are-stale",
        bug="the first occurrence is continued instead of the most recent one",
        file="drafters/suffix.py",
        before="            ends[state] = index",
        after="            pass",
        killer=SUFFIX + "test_match_is_the_longest_and_most_recent",
    ),
    Mutant(
        name="suffix-match-is-overstated",
        bug="the length of a class stands for the length of the match, so that short matches are drafted on",
        file="drafters/suffix.py",
        before="return self._length[state] + 1, self._end[after]",
        after="return self._length[after], self._end[after]",
        killer=SUFFIX + "test_match_is_the_longest_and_most_recent",
    ),
)

MODELS = (
    Mutant(
        name="rejected-drafts-stay-in-the-draft-cache",
        bug="the rejected token is left in the draft's cache: TV .262 to .440 under rejection",
        file="drafters/draft_model.py",
        before="count = self._num_confirmed(self._cache.length)",
        after="count = len(self._open)",
        killer=FROM_SCRATCH,
    ),
    Mutant(
        name="last-accepted-draft-is-never-fed",
        bug="after full acceptance the draft's cache has a hole (mlx-examples 149)",
        file="drafters/draft_model.py",
        before="feed = [*self._context[cache.length :], root]",
        after="feed = [root]",
        killer=FROM_SCRATCH,
    ),
    Mutant(
        name="root-is-never-fed",
        bug="drafts continue the text before the last token: acceptance falls, output stays right",
        file="drafters/draft_model.py",
        before="feed = [*self._context[cache.length :], root]",
        after="feed = [*self._context[cache.length :], root][:-1] or [root]",
        killer=FROM_SCRATCH,
    ),
    Mutant(
        name="drafts-are-taken-as-committed-one-short",
        bug="the draft's cache is trimmed one row too far",
        file="drafters/draft_model.py",
        before="            count += 1",
        after="            count = max(count, 1)",
        killer=DRAFT_MODEL + "test_no_confirmed_token_is_computed_again",
    ),
    Mutant(
        name="old-round-stays-open-in-the-draft-cache",
        bug="another drafter's round leaves orphan nodes behind (buun-llama-cpp 74)",
        file="drafters/draft_model.py",
        before="        self._open = []\n        cache.rollback()",
        after="        self._open = []\n        pass",
        killer=DRAFT_MODEL + "test_a_proposal_that_was_never_scored_leaves_nothing",
    ),
    Mutant(
        name="drafts-use-noise-of-their-own",
        bug="acceptance falls to the chance that two draws agree, with correct output",
        file="drafters/draft_model.py",
        before="shared_noise=self._shared_noise)",
        after="shared_noise=False)",
        killer=DRAFT_MODEL + "test_a_model_drafting_for_itself_is_always_right",
    ),
    Mutant(
        name="drafts-are-judged-without-their-path",
        bug="every draft of a round is drawn with the root's noise and history",
        file="drafters/draft_model.py",
        before="sampler.draft(logits, drafted,",
        after="sampler.draft(logits, (),",
        killer=DRAFT_MODEL + "test_a_model_drafting_for_itself_is_always_right",
    ),
    Mutant(
        name="draft-context-is-not-checked",
        bug="a draft model with a shorter context crashes the request (llama.cpp 22554)",
        file="drafters/draft_model.py",
        before="if needed > self._model.context_length:",
        after="if needed > 2 * self._model.context_length:",
        killer=DRAFT_MODEL + "test_beyond_the_draft_models_context_decoding_goes_on_plainly",
    ),
    Mutant(
        name="draft-context-ends-early",
        bug="the last positions of the draft model's context are never used",
        file="drafters/draft_model.py",
        before="needed = len(self._context) + count",
        after="needed = len(self._context) + count + 1",
        killer=DRAFT_MODEL + "test_the_whole_of_the_draft_models_context_is_used",
    ),
    Mutant(
        name="draft-cache-never-grows",
        bug="a draft cache sized once overflows on a longer turn (llama.cpp 28433)",
        file="drafters/draft_model.py",
        before="if cache is None or cache.capacity < needed:",
        after="if cache is None:",
        killer=DRAFT_MODEL + "test_the_cache_grows_past_its_first_capacity",
    ),
    Mutant(
        name="laws-are-not-handed-over",
        bug="sampled drafts are passed off as certain ones: TV .725 (vllm 40269)",
        file="drafters/draft_model.py",
        before="q=torch.stack(laws) if laws else None)",
        after="q=None)",
        killer=DRAFT_MODEL + "test_under_rejection_the_laws_are_those_the_drafts_were_sampled_from",
    ),
)

CUTS = (
    Mutant(
        name="lookup-remembers-what-was-cut",
        bug="a regenerated turn is drafted from the answer that was thrown away",
        file="drafters/lookup.py",
        before="        if length < len(self._text.tokens):",
        after="        if length < len(self._text.tokens) - 4:",
        killer=AFTER_A_CUT,
    ),
    Mutant(
        name="draft-context-keeps-what-was-cut",
        bug="the draft model goes on from the turn that was taken back",
        file="drafters/draft_model.py",
        before="        del self._context[length:]",
        after="        pass",
        killer=AFTER_A_CUT,
    ),
    Mutant(
        name="draft-cache-keeps-what-was-cut",
        bug="the draft model's cache holds rows of another text after a turn was edited",
        file="drafters/draft_model.py",
        before="self._cache.truncate(self._cache.restorable(length))",
        after="self._cache.truncate(self._cache.length)",
        killer=AFTER_A_CUT,
    ),
)

DRAFTING = (*LOOKUPS, *MODELS, *CUTS, *COPYING)
