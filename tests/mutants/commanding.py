"""Defects of the command line: settings, precedence, foreign configurations, exit codes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CONFIG = "tests/cli/test_config.py::"
CONFIGURED = "tests/cli/test_configured.py::"
GENERATE = "tests/cli/test_generate.py::"
PROGRAM = "tests/cli/test_program.py::"
SETTINGS = "tests/cli/test_settings.py::"

COMMANDING = (
    Mutant(
        name="file-wins-over-flags",
        bug="what was typed is overruled by a file nobody thinks of",
        file="cli/configured.py",
        before='layers = [*_file_layers(settings, label, values["profile"]), typed]',
        after='layers = [typed, *_file_layers(settings, label, values["profile"])]',
        killer=CONFIGURED + "test_each_layer_wins_over_the_ones_below_it",
    ),
    Mutant(
        name="entry-wins-over-profile",
        bug="a profile that was asked for changes nothing",
        file="cli/configured.py",
        before="return layers if profile is None else [*layers, settings.profile(profile).layer]",
        after="return layers if profile is None else [settings.profile(profile).layer, *layers]",
        killer=CONFIGURED + "test_each_layer_wins_over_the_ones_below_it",
    ),
    Mutant(
        name="unknown-settings-are-ignored",
        bug="a misspelt key changes nothing and nobody hears of it",
        file="settings.py",
        before="if key not in known:",
        after="if key is None:",
        killer=SETTINGS + "test_what_a_file_cannot_mean_is_refused_with_its_line",
    ),
    Mutant(
        name="draft-model-outlives-its-method",
        bug="a setting that switches the draft model off leaves it on (lmstudio 661)",
        file="settings.py",
        before='dropped = "method" if level["draft_model"] > level["method"] else "draft_model"',
        after='dropped = "method" if level["draft_model"] >= 0 else "draft_model"',
        killer=SETTINGS + "test_method_and_draft_model_say_one_thing_together",
    ),
    Mutant(
        name="init-overwrites",
        bug="a file somebody wrote by hand is replaced by the template",
        file="cli/init.py",
        before="if path.exists() and not place.force:",
        after="if path.exists() and place.force:",
        killer=CONFIG + "test_init_does_not_overwrite_unless_forced",
    ),
    Mutant(
        name="set-loses-comments",
        bug="changing one value writes the whole file anew",
        file="cli/settings_text.py",
        before="result = tomlkit.dumps(document)",
        after="result = tomlkit.dumps(document.unwrap())",
        killer=CONFIG + "test_set_changes_one_value_and_nothing_else",
    ),
    Mutant(
        name="foreign-keys-are-swallowed",
        bug="a speculative configuration is accepted and a key of it does nothing (vllm 25402)",
        file="cli/speculative_config.py",
        before="settings = dict(_setting(key, value) for key, value in given.items())",
        after="settings = dict(_setting(key, value) for key, value in given.items() if key in KNOWN)",
        killer=CONFIGURED + "test_a_key_that_cannot_be_honoured_is_refused_with_the_reason",
    ),
    Mutant(
        name="model-sampling-overrules-flags",
        bug="--temperature 0 samples because the model's files say so",
        file="cli/generate.py",
        before="names = [item.name for item in fields(SamplingParams) if item.name not in said]",
        after="names = [item.name for item in fields(SamplingParams)]",
        killer=GENERATE + "test_the_models_own_sampling_is_taken_where_nobody_said_otherwise",
    ),
    Mutant(
        name="no-color-is-ignored",
        bug="NO_COLOR is documented and not read",
        file="cli/show.py",
        before="return not environment.no_color and (stream.isatty() or environment.force_color)",
        after="return stream.isatty() or environment.force_color",
        killer="tests/cli/test_every_command.py::test_who_wants_colours",
    ),
    Mutant(
        name="left-reader-is-a-failed-check",
        bug="piping into head looks like a divergence",
        file="cli/__init__.py",
        before="if isinstance(stop.__context__, BrokenPipeError):",
        after="if isinstance(stop.__context__, BlockingIOError):",
        killer=PROGRAM + "test_a_reader_that_leaves_early_causes_no_traceback",
    ),
    Mutant(
        name="any-directory-is-a-model",
        bug="a mistyped path is described as a model, with exit code 0",
        file="describe/place.py",
        before='if "config.json" not in contents.names and not contents.with_ending(',
        after="if contents.raw and not contents.with_ending(",
        killer="tests/describe/test_place.py::test_a_directory_without_a_model_is_not_described",
    ),
    Mutant(
        name="unreadable-prompt-ends-the-examination",
        bug="the doctor dies of what it should diagnose",
        file="doctor/running.py",
        before="half = max(1, engine.target.context_length // 2)",
        after="half = max(1, engine.target.context_length * 2)",
        killer="tests/doctor/test_examination.py::test_a_target_with_a_short_context_is_examined_with_what_fits",
    ),
    Mutant(
        name="negative-number-is-a-flag",
        bug="a negative penalty cannot be set",
        file="cli/config.py",
        before='return super().parse_args(ctx, [*others, "--", *numbers] if numbers else others)',
        after="return super().parse_args(ctx, args)",
        killer=CONFIG + "test_a_negative_number_is_a_value",
    ),
    Mutant(
        name="import-is-interrupted-halfway",
        bug="Ctrl-C while numpy is imported is an ImportError with a traceback",
        file="cli/__init__.py",
        before="signal.signal(signal.SIGINT, _leave)",
        after="signal.signal(signal.SIGINT, signal.default_int_handler)",
        killer=PROGRAM + "test_ctrl_c_during_an_import_ends_the_process",
    ),
)
