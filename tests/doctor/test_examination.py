"""The examination: each check's verdict on pairs that are right or wrong in one way, and what follows of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.doctor.conftest import Make, change_config

import surefoot
from surefoot.doctor import Check, Examination, Report, examine
from surefoot.doctor.memory import Room
from surefoot.errors import DrafterError, LoadError
from surefoot.models.decoder import DecoderModel
from surefoot.options import LoadOptions, SpeculativeOptions
from surefoot.types import TargetOutput

ORDER = [
    *["target files", "draft model files", "settings", "device"],
    *["tokenizers", "vocabulary", "context length", "memory"],
    *["weights", "kernels", "equality", "speedup"],
]


def of(report: Report, name: str) -> Check:
    (check,) = [check for check in report.checks if check.name == name]
    return check


def files(model: str, drafter: str = "lookup", **changes: object) -> Report:
    """The examination without running anything."""
    return examine(Examination(model=model, drafter=drafter, running=False, **changes))


def levels(report: Report) -> dict[str, str]:
    return {check.name: check.level for check in report.checks}


def test_a_sound_pair_passes_every_check_in_order(make_model: Make) -> None:
    target, draft = make_model("target"), make_model("draft", seed=0)
    shown: list[Check] = []
    given = Examination(
        model=target, drafter=draft, load=LoadOptions(exact="require"), speculative=SpeculativeOptions(num_draft=2)
    )
    report = examine(given, shown.append)
    assert [check.name for check in report.checks] == ORDER
    assert tuple(shown) == report.checks, "each is shown as it is made"
    assert {check.name: check.level for check in report.checks if check.level not in ("PASS", "WARN")} == {}
    assert of(report, "equality").level == "PASS"
    assert "row-exact" in of(report, "kernels").found
    assert report.prediction is not None
    assert report.prediction.forecast.speedup > 0
    assert of(report, "speedup").level == ("PASS" if report.prediction.forecast.speedup >= 1 else "WARN")
    assert report.prediction.acceptance.tokens_per_round > 2, "a model as its own draft model is right"


@pytest.mark.parametrize("drafter", ["nowhere", "./nowhere", "pickled"])
def test_a_draft_model_that_is_not_there_fails_and_the_target_is_still_looked_at(
    make_model: Make, tmp_path: Path, drafter: str
) -> None:
    if drafter == "pickled":
        (tmp_path / drafter).mkdir()
        (tmp_path / drafter / "pytorch_model.bin").write_bytes(b"")
        drafter = str(tmp_path / drafter)
    report = examine(Examination(model=make_model("target"), drafter=drafter))
    found = levels(report)
    assert found["target files"] == "PASS"
    assert found["draft model files"] == "FAIL"
    assert of(report, "draft model files").mend
    assert found["weights"] == "PASS"
    assert [name for name, level in found.items() if level == "SKIP"] == [
        *["tokenizers", "vocabulary", "context length"],
        *["equality", "speedup"],
    ]
    assert "without the draft model" in of(report, "memory").found
    assert report.conclusion == "FAIL"
    assert report.prediction is None


def test_a_target_that_is_not_there_fails_and_the_rest_is_skipped_not_passed() -> None:
    report = examine(Examination(model="nowhere", drafter="lookup"))
    assert {name for name, level in levels(report).items() if level == "PASS"} == {"settings", "device"}
    assert of(report, "target files").level == "FAIL"
    assert all(check.found.startswith("skipped: ") for check in report.checks if check.level == "SKIP")


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "no safetensors"),
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\x10"), "1 bytes"),
        (lambda path: change_config(str(path), extra_field=1), "unknown field extra_field"),
        (lambda path: change_config(str(path), model_type="gpt9"), "model_type is 'gpt9'"),
        (lambda path: change_config(str(path), num_hidden_layers=2), "do not fit config.json"),
        (lambda path: change_config(str(path), eos_token_id=9999), "eos_token_id is 9999"),
        (lambda path: (path / "tokenizer.json").write_text("{"), "not a readable tokenizer"),
    ],
)
def test_damaged_files_fail_with_what_was_found_and_what_to_do(make_model: Make, damage: object, found: str) -> None:
    path = make_model("target")
    damage(Path(path))
    check = of(files(path), "target files")
    assert check.level == "FAIL"
    assert found in check.found
    assert check.mend
    assert check.mend[0].isupper()


def test_an_unknown_tensor_fails_by_name(make_model: Make) -> None:
    path = Path(make_model("target"))
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "model.layers.0.extra.weight": torch.ones(2)}, path / "model.safetensors")
    check = of(files(str(path)), "target files")
    assert check.level == "FAIL"
    assert any("unexpected: model.layers.0.extra.weight [2]" in line for line in check.details)


def test_weights_of_nan_fail_only_where_weights_are_read(make_model: Make) -> None:
    path = Path(make_model("target"))
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, path / "model.safetensors")
    assert of(files(str(path)), "target files").level == "PASS"
    report = examine(Examination(model=str(path), drafter="lookup"))
    assert of(report, "weights").level == "FAIL"
    assert [of(report, name).level for name in ("kernels", "equality", "speedup")] == ["SKIP"] * 3


def test_another_tokenizer_fails_with_the_first_tokens_that_differ(make_model: Make) -> None:
    report = examine(Examination(model=make_model("target"), drafter=make_model("draft", ids=290)))
    check = of(report, "tokenizers")
    assert check.level == "FAIL"
    assert check.found == "10 of 300 ids mean something else to the two"
    assert check.details[0] == "id: target | draft model"
    assert check.details[1].startswith("290: ")
    assert check.details[1].endswith(" | no token")
    assert len(check.details) == 1 + 5 + 1
    assert of(report, "equality").found == "skipped: the pair cannot speculate"


PAIRS = {
    "the same": {},
    "fewer tokens": {"ids": 290},
    "more rows": {"vocab_size": 320},
    "fewer rows than ids": {"vocab_size": 290},
    "shorter context": {"max_position_embeddings": 64},
    "no tokenizer": {"tokenizer": False},
    "no tokenizer and more rows": {"tokenizer": False, "vocab_size": 320},
}


@pytest.mark.parametrize("changes", PAIRS.values(), ids=PAIRS)
def test_files_fail_exactly_where_loading_the_pair_does(make_model: Make, changes: dict[str, object]) -> None:
    target, draft = make_model("target"), make_model("draft", **changes)
    assert (files(target, draft).conclusion == "FAIL") is not loads(target, draft)


def loads(target: str, draft: str) -> bool:
    try:
        surefoot.load(target, draft, device="cpu")
    except LoadError:
        return False
    return True


def test_padding_rows_pass_and_are_counted(make_model: Make) -> None:
    check = of(files(make_model("target"), make_model("draft", vocab_size=320)), "vocabulary")
    assert check.level == "PASS"
    assert "draft model: 320 rows for 300 ids, 20 of them padding" in check.found


@pytest.mark.parametrize(
    ("wanted", "level"), [(None, "WARN"), (64, "PASS"), (65, "WARN"), (512, "WARN"), (513, "WARN")]
)
def test_a_draft_model_with_a_shorter_context_warns_where_it_would_be_outgrown(
    make_model: Make, wanted: int | None, level: str
) -> None:
    target, draft = make_model("target"), make_model("draft", max_position_embeddings=64)
    check = of(files(target, draft, context=wanted), "context length")
    assert check.level == level
    if wanted == 513:
        assert "Plan with 512 tokens" in check.mend
    elif level == "WARN":
        assert "beyond 64 tokens nothing is drafted" in check.found


@pytest.mark.parametrize(("drafter", "num_draft"), [("none", 4), ("lookup", 0)])
def test_a_setting_that_switches_speculation_off_warns(make_model: Make, drafter: str, num_draft: int) -> None:
    speculative = SpeculativeOptions(num_draft=num_draft)
    report = examine(Examination(model=make_model("target"), drafter=drafter, speculative=speculative))
    assert of(report, "settings").level == "WARN"
    assert of(report, "kernels").level in ("PASS", "WARN")
    assert [of(report, name).level for name in ("equality", "speedup")] == ["SKIP", "SKIP"]
    assert report.conclusion == "WARN"


def test_a_device_that_is_not_there_fails(make_model: Make) -> None:
    report = files(make_model("target"), load=LoadOptions(device="nonsense"))
    assert of(report, "device").level == "FAIL"
    assert of(report, "memory").level == "SKIP"


def test_weights_that_do_not_fit_are_not_loaded(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.doctor.examination.free_memory", lambda device: Room(available=10, what="memory"))
    report = examine(Examination(model=make_model("target"), drafter="lookup"))
    assert of(report, "memory").level == "FAIL"
    assert of(report, "weights").found == "skipped: memory failed"


def test_a_divergence_fails_and_no_speed_is_promised(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DecoderModel.score

    def shifted(self: DecoderModel, rounds: object, capture: object) -> list[TargetOutput]:
        outs = honest(self, rounds, capture)
        return [out if len(out.logits) == 1 else TargetOutput(logits=out.logits.roll(1, -1)) for out in outs]

    monkeypatch.setattr(DecoderModel, "score", shifted)
    target = make_model("target")
    report = examine(Examination(model=target, drafter=target))
    assert of(report, "equality").level == "FAIL"
    assert "surefoot prove" in of(report, "equality").mend
    assert of(report, "speedup").level == "SKIP"
    assert report.prediction is None


def test_a_drafter_that_fails_while_drafting_fails_the_pair(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: object, root: int, plan: object, sampler: object) -> None:
        raise DrafterError("out of ideas")

    monkeypatch.setattr("surefoot.drafters.lookup.LookupDrafter.propose", failing)
    report = examine(Examination(model=make_model("target"), drafter="lookup"))
    check = of(report, "equality")
    assert check.level == "FAIL"
    assert any("out of ideas" in line for line in check.details)


def test_without_a_tokenizer_nothing_is_run_but_the_rest_is_looked_at(make_model: Make) -> None:
    report = examine(Examination(model=make_model("target", tokenizer=False), drafter="lookup"))
    assert of(report, "tokenizers").level == "WARN"
    assert of(report, "weights").level == "PASS"
    assert "no tokenizer" in of(report, "equality").found


def test_the_report_is_plain_json(make_model: Make) -> None:
    report = files(make_model("target"))
    got = json.loads(json.dumps(report.as_json()))
    assert got["conclusion"] == "PASS"
    assert [check["name"] for check in got["checks"]] == [name for name in ORDER if name != "draft model files"]
    assert got["speedup"] is None


def test_a_target_with_a_short_context_is_examined_with_what_fits(make_model: Make) -> None:
    report = examine(Examination(model=make_model("target", max_position_embeddings=32), drafter="lookup"))
    assert of(report, "equality").level in ("PASS", "WARN")
    assert of(report, "speedup").level in ("PASS", "WARN", "SKIP")


def test_a_target_that_cannot_read_its_tokenizers_ids_fails_and_the_report_goes_on(make_model: Make) -> None:
    report = examine(Examination(model=make_model("target", vocab_size=260), drafter="lookup"))
    check = of(report, "equality")
    assert check.level == "FAIL"
    assert "the vocabulary has ids 0 to 259" in check.found
    assert "tokenizer" in check.mend
    assert of(report, "speedup").level == "SKIP"


@pytest.mark.parametrize("name", ["model.gguf", "model.onnx", "model.npz", "model.h5"])
def test_another_format_is_mended_by_its_own_advice(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    for place in (tmp_path, tmp_path / name):
        check = of(files(str(place)), "target files")
        assert check.level == "FAIL"
        assert check.expected == "safetensors"
        assert check.mend.endswith("not read"), check.mend
