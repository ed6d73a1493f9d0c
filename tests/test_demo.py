"""The demo runs, and notices when the texts differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.demo import main
from tests.factories import make_checkpoint, make_tokenizer

from surefoot.models.decoder import DecoderModel
from surefoot.types import TargetOutput


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path: Path = make_checkpoint(tmp_path_factory.mktemp("demo"), vocab_size=300)
    make_tokenizer(path)
    return ["--target", str(path), "--draft", str(path), "--num-prompts", "2", "--max-tokens", "12"]


def test_it_shows_the_same_text_and_measures_every_way(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "same text as plain: yes" in out
    for way in ("plain", "lookup", "draft model"):
        assert any(line.startswith(f"  {way}") and "tok/s" in line for line in out.splitlines())


def test_it_says_no_and_fails_when_the_texts_differ(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = DecoderModel.score

    def shifted(self: DecoderModel, rounds: object, capture: object) -> list[TargetOutput]:
        outs = honest(self, rounds, capture)
        return [out if len(out.logits) == 1 else TargetOutput(logits=out.logits.roll(1, -1)) for out in outs]

    monkeypatch.setattr(DecoderModel, "score", shifted)
    assert main(arguments) == 1
    assert "same text as plain: NO" in capsys.readouterr().out


def test_a_missing_model_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "no-such-model"]) == 2
    assert "no-such-model" in capsys.readouterr().err
