"""Defects of the measurement: unfair, miscounted, or shown otherwise than measured."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RUN = "tests/bench/test_run.py::"
RESULTS = "tests/bench/test_results.py::"
REPORT = "tests/bench/test_report.py::"
COMMAND = "tests/cli/test_bench.py::"

BENCHING = (
    Mutant(
        name="arms-keep-their-order",
        bug="the arm that always goes second profits from warm caches, or suffers from a warm processor",
        file="bench/run.py",
        before="order = repeat + index + heat + turn",
        after="order = 0",
        killer=RUN + "test_every_arm_goes_first_equally_often_and_never_always_after_the_same_one",
    ),
    Mutant(
        name="nobody-warms-up",
        bug="the first arm pays for touching the weights, so the others look fast",
        file="bench/run.py",
        before="for question in own[:WARMING_QUESTIONS]:",
        after="for question in own[:0]:",
        killer=RUN + "test_no_arm_pays_for_warming_up",
    ),
    Mutant(
        name="the-prefill-counts-as-decoding",
        bug="long prompts hide the gain, or its absence",
        file="bench/run.py",
        before="decode_seconds=ended - first,",
        after="decode_seconds=ended - started,",
        killer=RUN + "test_rates_are_of_the_rounds_and_the_prefill_stands_apart",
    ),
    Mutant(
        name="later-turns-follow-the-last-arm",
        bug="arms go on from different conversations, and are compared as if from one",
        file="bench/run.py",
        before="answers.append(compared.plain.text)",
        after="answers.append(compared.answers[-1].text)",
        killer=RUN + "test_later_turns_hold_plains_answers_whoever_is_asked",
    ),
    Mutant(
        name="predictions-go-to-every-arm",
        bug="the other drafters are measured with the answer in hand",
        file="bench/run.py",
        before="prediction = question.prediction if arm.predicts else None",
        after="prediction = question.prediction",
        killer=RUN + "test_predictions_go_to_the_questions_that_have_one",
    ),
    Mutant(
        name="a-difference-in-the-end-is-no-difference",
        bug="a text that is cut short counts as the same",
        file="bench/answers.py",
        before="return next((index for index, (one, another) in pairs if one != another), common)",
        after="return next((index for index, (one, another) in pairs if one != another), None)",
        killer=RUN + "test_answers_that_differ_in_anything_differ",
    ),
    Mutant(
        name="the-first-token-counts-as-decoded",
        bug="the token of the prefill makes short answers look fast (Spec-Bench counts tokens - 1 for plain alone)",
        file="bench/answers.py",
        before="return (len(self.tokens) - 1) / self.decode_seconds",
        after="return len(self.tokens) / self.decode_seconds",
        killer=RESULTS + "test_the_ratio_is_the_median_of_paired_ratios",
    ),
    Mutant(
        name="ratios-are-turned-over",
        bug="slower is shown as faster",
        file="bench/answers.py",
        before="return None if ours is None or theirs is None else ours / theirs",
        after="return None if ours is None or theirs is None else theirs / ours",
        killer=RESULTS + "test_the_ratio_is_the_median_of_paired_ratios",
    ),
    Mutant(
        name="nothing-is-slower",
        bug="a loss is printed without being called one",
        file="bench/results.py",
        before="return self.times_plain is not None and self.times_plain.median < 1",
        after="return self.times_plain is not None and self.times_plain.median < 0",
        killer=COMMAND + "test_slower_is_called_slower",
    ),
    Mutant(
        name="differences-are-forgiven",
        bug="a text that speculation changed passes as a success",
        file="bench/measurement.py",
        before="cell for cell in self.cells() if cell.first_difference is not None and self.promised(cell.temperature)",
        after="cell for cell in self.cells() if cell.first_difference is None and cell.arm == str(self)",
        killer=COMMAND + "test_a_text_that_differs_although_strict_exits_with_1",
    ),
    Mutant(
        name="the-break-even-is-turned-over",
        bug="a drafter that costs more than it gains is drawn as a gain",
        file="bench/report/charts.py",
        before="marks.append((cell, rows, own / base if base and own else None))",
        after="marks.append((cell, rows, base / own if base and own else None))",
        killer=REPORT + "test_the_break_even_is_drawn_from_the_measured_curve",
    ),
    Mutant(
        name="text-goes-in-as-markup",
        bug="a prompt with a script in it runs when the report is opened",
        file="bench/report/markup.py",
        before="return Markup(escape(str(value)))",
        after="return Markup(str(value))",
        killer=REPORT + "test_whatever_a_user_supplied_stays_text",
    ),
    Mutant(
        name="the-data-may-end-its-script",
        bug="a text inside the embedded JSON closes the script element",
        file="bench/report/page.py",
        before=r'return written.replace("<", "\\u003c")',
        after=r'return written.replace("<", "<")',
        killer=REPORT + "test_whatever_a_user_supplied_stays_text",
    ),
)
