"""Defects of the doctor, of the costs and forecasts it predicts with, and of descriptions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COST = "tests/control/test_cost.py::"
FORECAST = "tests/control/test_forecast.py::"
EXAMINATION = "tests/doctor/test_examination.py::"
MEMORY = "tests/doctor/test_memory.py::"
SPEED = "tests/doctor/test_speed.py::"
HEADS = "tests/describe/test_heads.py::"
PLACE = "tests/describe/test_place.py::"

EXAMINING = (
    Mutant(
        name="cold-forwards-are-timed",
        bug="a first forward, which allocates and compiles, counts as what forwards cost",
        file="control/cost.py",
        before="            if turn:",
        after="            if turn >= 0:",
        killer=COST + "test_the_first_forward_of_each_number_of_rows_warms_up",
    ),
    Mutant(
        name="rows-are-timed-one-after-the-other",
        bug="a machine that slows down makes the later row counts look dear",
        file="control/cost.py",
        before="            count = counts[(turn + i) % len(counts)]",
        after="            count = counts[turn * len(counts) // (repeats + 1)]",
        killer=COST + "test_every_number_of_rows_meets_the_drift_of_the_machine_alike",
    ),
    Mutant(
        name="drafting-is-timed-as-scoring",
        bug="what comes before a forward is charged to the target",
        file="control/cost.py",
        before="                before(count)",
        after="                started = clock(); before(count); measured[count].append(clock() - started)",
        killer=COST + "test_what_comes_before_a_forward_is_not_timed",
    ),
    Mutant(
        name="every-round-is-a-full-one",
        bug="a lookup that often finds nothing is charged, and credited, for drafts it never made",
        file="control/forecast.py",
        before="        score=sum(share * costs.target.at(count + 1) for count, share in lengths),",
        after="        score=costs.target.at(len(lengths)),",
        killer=SPEED + "test_a_drafter_that_is_often_silent_pays_for_plain_forwards",
    ),
    Mutant(
        name="the-bonus-token-is-forgotten",
        bug="mean acceptance length without the target's own token (mlx-lm's and others' counts differ by one)",
        file="control/forecast.py",
        before="return 1 + sum(self.accepted_by_position) / self.rounds if self.rounds else 1.0",
        after="return sum(self.accepted_by_position) / self.rounds if self.rounds else 1.0",
        killer=FORECAST + "test_the_forecast_is_the_sum_of_the_rounds",
    ),
    Mutant(
        name="reading-the-prompt-is-free",
        bug="the drafter's own prefill is left out of the prediction",
        file="control/forecast.py",
        before="        return self.reading + rounds * (self.draft + self.score + self.overhead)",
        after="        return rounds * (self.draft + self.score + self.overhead)",
        killer=FORECAST + "test_the_forecast_is_the_sum_of_the_rounds",
    ),
    Mutant(
        name="the-rest-of-a-round-is-free",
        bug="a roofline of forwards alone promises what sampling and rollback eat up",
        file="doctor/speed.py",
        before="        overhead=median(speculative.overhead for _, speculative in pairs),",
        after="        overhead=0.0,",
        killer=SPEED + "test_what_rounds_cost_beside_forwards_and_drafts_counts",
    ),
    Mutant(
        name="the-drafter-is-not-in-the-budget",
        bug="the drafter's memory is left out (vLLM 9995)",
        file="doctor/memory.py",
        before="    caches = sum(need.cache(context) for need in needs)",
        after="    caches = needs[0].cache(context)",
        killer=MEMORY + "test_weights_that_do_not_fit_fail_and_a_cache_that_does_not_warns",
    ),
    Mutant(
        name="a-shorter-draft-context-goes-unnoticed",
        bug="a drafter whose context is shorter than the target's (vLLM 57941, 5342; SGLang 3574)",
        file="doctor/pair.py",
        before="    if draft is not None and draft.config.context_length < reach:",
        after="    if draft is not None and draft.config.context_length < 1:",
        killer=EXAMINATION + "test_a_draft_model_with_a_shorter_context_warns_where_it_would_be_outgrown",
    ),
    Mutant(
        name="other-tokenizers-pass-the-doctor",
        bug="a pair hidden or accepted by vocabulary width alone (pocketpal 876, LM Studio 481)",
        file="doctor/pair.py",
        before="    if differing:",
        after="    if len(differing) > 100:",
        killer=EXAMINATION + "test_another_tokenizer_fails_with_the_first_tokens_that_differ",
    ),
    Mutant(
        name="what-was-skipped-passes",
        bug="a check that was never made is shown as a success",
        file="doctor/check.py",
        before='self.add(Check(name=name, level="SKIP", found=f"skipped: {because}"))',
        after='self.add(Check(name=name, level="PASS", found=f"skipped: {because}"))',
        killer=EXAMINATION + "test_a_target_that_is_not_there_fails_and_the_rest_is_skipped_not_passed",
    ),
    Mutant(
        name="a-divergence-is-a-warning",
        bug="a pair whose text changes is waved through",
        file="doctor/running.py",
        before='level="FAIL", found=found, expected=expected, mend=mend, details=details)',
        after='level="WARN", found=found, expected=expected, mend=mend, details=details)',
        killer=EXAMINATION + "test_a_divergence_fails_and_no_speed_is_promised",
    ),
    Mutant(
        name="a-dflash-drafter-takes-no-memory",
        bug="a pair that does not fit passes, as only the target is counted",
        file="doctor/examination.py",
        before="        needs.append(draft.need(target, given.load.dtype, device))",
        after="        pass",
        killer="tests/doctor/test_dflash.py::test_its_weights_and_its_context_are_in_the_budget",
    ),
    Mutant(
        name="every-target-is-the-recorded-one",
        bug="a drafter of another target of the same counts drafts badly and nothing says why",
        file="loading/dflash.py",
        before="    if recorded == config_digest(target):",
        after="    if recorded:",
        killer="tests/doctor/test_dflash.py::test_a_drafter_whose_record_names_another_target_is_a_warning",
    ),
    Mutant(
        name="prediction-modules-are-an-eagle-head",
        bug="a whole model is taken for a head because it brings an fc.weight of its own",
        file="describe/heads.py",
        before='    tensor = contents.tensors.get("fc.weight") or contents.tensors.get("model.fc.weight")',
        after='    tensor = next((t for name, t in contents.tensors.items() if name.endswith("fc.weight")), None)',
        killer=HEADS + "test_a_whole_model_with_modules_that_predict_further_tokens_is_no_head",
    ),
    Mutant(
        name="a-truncated-gguf-file-crashes",
        bug="a download that broke off ends in a traceback, not in words",
        file="describe/gguf.py",
        before="    except (struct.error, UnicodeDecodeError, _LiesError) as fault:",
        after="    except (UnicodeDecodeError, _LiesError) as fault:",
        killer=PLACE + "test_a_truncated_header_is_an_error_of_ours",
    ),
)
