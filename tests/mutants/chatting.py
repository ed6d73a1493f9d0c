"""Defects of the chat and of the round-by-round replay."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHAT = "tests/cli/test_chat.py::"
LAW = CHAT + "test_each_answer_is_the_one_a_fresh_request_gives[tiny-False-draft-0.8]"
COMMANDS = "tests/cli/test_chat_commands.py::"
EXPLAIN = "tests/cli/test_explain.py::"

CHATTING = (
    Mutant(
        name="answering-again-keeps-the-seed",
        bug="regenerate gives the same answer at any temperature",
        file="cli/chat/session.py",
        before="return self._answer(self.transcript.unanswered(), self._attempt + 1)",
        after="return self._answer(self.transcript.unanswered(), 0)",
        killer=LAW,
    ),
    Mutant(
        name="an-edit-keeps-what-followed",
        bug="the answers to the old words stay in the prompt",
        file="cli/chat/transcript.py",
        before='return self.undone(number).say("user", content)',
        after='return self.say("user", content)',
        killer=LAW,
    ),
    Mutant(
        name="the-system-message-is-not-shown",
        bug="a system message is kept and never reaches the model (mlx-lm 1297)",
        file="cli/chat/transcript.py",
        before='return [{"role": message.role, "content": message.content} for message in transcript.messages]',
        after='return [{"role": m.role, "content": m.content} for m in transcript.messages if m.role != "system"]',
        killer=LAW,
    ),
    Mutant(
        name="ctrl-c-is-not-passed-on",
        bug="an answer cannot be stopped",
        file="cli/chat/loop.py",
        before="        cancel()",
        after="        pass",
        killer=CHAT + "test_ctrl_c_stops_the_answer_and_keeps_what_was_said",
    ),
    Mutant(
        name="a-failed-answer-is-kept",
        bug="what could not be answered stays in the transcript and every later turn fails",
        file="cli/chat/session.py",
        before="self._pending, self._prompt, self._attempt = transcript, tokens, attempt",
        after="self.transcript = self._pending = transcript; self._prompt, self._attempt = tokens, attempt",
        killer=CHAT + "test_an_answer_that_fails_is_told_below_what_was_said_of_it",
    ),
    Mutant(
        name="cached-tokens-are-not-totalled",
        bug="the account of a session leaves out what the cache saved",
        file="cli/chat/session.py",
        before="self.cached_tokens += result.usage.cached_tokens",
        after="self.cached_tokens += 0",
        killer=COMMANDS + "test_json_is_an_object_per_answer_with_cache_and_context",
    ),
    Mutant(
        name="speculation-cannot-be-switched-off",
        bug="a per-request switch is parsed and changes nothing",
        file="cli/chat/session.py",
        before="if self.speculating and self.has_drafter",
        after="if self.has_drafter",
        killer=COMMANDS + "test_speculation_is_switched_and_changes_no_token",
    ),
    Mutant(
        name="a-cut-draft-counts-as-rejected",
        bug="the draft an answer ends on is shown as rejected",
        file="explain.py",
        before='if verdict.next_origin == "draft":',
        after='if verdict.next_origin == "plain":',
        killer=EXPLAIN + "test_a_cut_inside_the_accepted_run_marks_the_draft_it_ended_on",
    ),
    Mutant(
        name="a-tree-is-shown-as-its-first-nodes",
        bug="the nodes that stood are counted from the front, which holds for chains alone",
        file="explain.py",
        before="nodes = set(verdict.path[1:])",
        after="nodes = set(range(1, len(verdict.path)))",
        killer=EXPLAIN + "test_the_rounds_are_those_of_the_generation",
    ),
    Mutant(
        name="speed-of-a-round-alone",
        bug="tokens of all rounds over the seconds of one",
        file="explain.py",
        before="elapsed += record.seconds.rounds",
        after="elapsed = record.seconds.rounds",
        killer=EXPLAIN + "test_the_rounds_are_those_of_the_generation",
    ),
)
