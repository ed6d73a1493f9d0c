"""``surefoot.load`` to text and back: a real directory with a tokenizer, a drafter by name, by path, by object."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from tests.factories import make_checkpoint, make_tokenizer

import surefoot
from surefoot import Engine, OptionError, PairError, SamplingParams, SpeculativeOptions, TokenizerError
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDrafts

TEXT = "def greet(name):\n    return f'hello, {name}!'\n\ndef greet("
TEMPLATE = (
    "{% for m in messages %}<bos>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    make_checkpoint(path, "qwen3", vocab_size=320, eos_token_id=None, bos_token_id=None)
    make_tokenizer(path)
    config = {"chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "do_sample": True}))
    return path


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)


@pytest.fixture(scope="module")
def engine(directory: Path) -> Engine:
    return surefoot.load(directory, "lookup")


def test_text_in_text_out(engine: Engine) -> None:
    result = engine.generate(TEXT, SamplingParams(max_tokens=40))
    assert engine.tokenizer is not None
    assert result.text == engine.tokenizer.decode(result.tokens)
    assert result.usage.prompt_tokens == len(engine.tokenizer.encode(TEXT))
    assert result.usage.completion_tokens == len(result.tokens) == 40


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_deltas_concatenate_to_the_text(engine: Engine, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=60, seed=3)
    stream = engine.stream(TEXT, params)
    deltas = [event.text for event in stream]
    assert "".join(deltas) == stream.result.text
    assert engine.tokenizer is not None
    assert stream.result.text == engine.tokenizer.decode(stream.result.tokens)


def test_the_terminating_id_is_among_the_ids_and_not_in_the_text(engine: Engine) -> None:
    whole = engine.generate(TEXT, SamplingParams(max_tokens=20))
    stop = whole.tokens[7]
    cut = engine.generate(TEXT, SamplingParams(max_tokens=20, stop_token_ids=(stop,)))
    index = whole.tokens.index(stop)
    assert cut.tokens == whole.tokens[: index + 1]
    assert cut.finish_reason == "stop"
    assert engine.tokenizer is not None
    assert cut.text == engine.tokenizer.decode(whole.tokens[:index])


def test_chat_goes_through_the_template_without_further_special_tokens(engine: Engine) -> None:
    assert engine.tokenizer is not None
    messages = [{"role": "user", "content": "hi"}]
    expected = engine.tokenizer.encode("<bos>user: hi\na:", add_special_tokens=False)
    assert engine.encode(messages) == expected
    assert expected[0] == 1


def test_the_models_own_sampling_defaults_are_used_only_when_asked_for(engine: Engine) -> None:
    assert engine.sampling_defaults.temperature == 0.6
    assert engine.sampling_defaults.top_p == 0.9
    assert engine.generate(TEXT).tokens == engine.generate(TEXT, SamplingParams(temperature=0.0)).tokens


def test_a_drafter_comes_by_name_path_or_object(directory: Path) -> None:
    assert isinstance(surefoot.load(directory).drafter, NoDrafts)
    assert isinstance(surefoot.load(directory, "none").drafter, NoDrafts)
    assert isinstance(surefoot.load(directory, "lookup").drafter, Lookup)
    assert isinstance(surefoot.load(directory, directory).drafter, DraftModel)
    own = Lookup(min_match=5)
    assert surefoot.load(directory, own).drafter is own


def test_a_draft_model_from_disk_speculates(directory: Path, tmp_path: Path) -> None:
    draft = make_checkpoint(tmp_path, "qwen3", vocab_size=384, eos_token_id=None, bos_token_id=None)
    make_tokenizer(draft)
    params = SamplingParams(temperature=0.8, max_tokens=30, seed=2)
    plain = surefoot.load(directory, exact="require").generate(TEXT, params)
    result = surefoot.load(directory, directory, exact="require").generate(TEXT, params)
    padded = surefoot.load(directory, draft, exact="require").generate(TEXT, params)
    assert result.tokens == plain.tokens == padded.tokens
    assert result.stats.accepted > 0
    assert result.stats.strict
    assert result.stats.fallbacks == padded.stats.fallbacks == 0


def test_a_draft_model_with_another_tokenizer_is_refused(directory: Path, tmp_path: Path) -> None:
    draft = make_checkpoint(tmp_path, "llama", vocab_size=320)
    make_tokenizer(draft, vocab_size=310)
    with pytest.raises(PairError, match="tokenizer"):
        surefoot.load(directory, draft)


def test_without_a_tokenizer_ids_work_and_text_is_refused(tmp_path: Path) -> None:
    engine = surefoot.load(make_checkpoint(tmp_path, "llama"))
    assert engine.tokenizer is None
    result = engine.generate((5, 6, 7), SamplingParams(max_tokens=5))
    assert len(result.tokens) == 5
    assert result.text == ""
    with pytest.raises(TokenizerError, match="token ids"):
        engine.generate("text")


def test_dtype_and_exactness_are_what_was_asked_for(directory: Path) -> None:
    half = surefoot.load(directory, dtype="bfloat16", exact="require")
    assert half.target.embed(torch.tensor([1])).dtype == torch.bfloat16
    assert half.generate((5,), SamplingParams(max_tokens=2)).stats.strict
    with pytest.raises(OptionError, match="dtype"):
        surefoot.load(directory, dtype="int8")  # type: ignore[arg-type]


def test_no_drafts_and_a_drafter_give_the_same_text(engine: Engine) -> None:
    params = SamplingParams(max_tokens=40)
    plain = engine.generate(TEXT, params, speculative=SpeculativeOptions(num_draft=0))
    drafted = engine.generate(TEXT, params)
    assert plain.text == drafted.text
    assert plain.stats.drafted == 0 < drafted.stats.accepted


def test_what_was_noted_while_loading_reaches_the_engine(directory: Path, tmp_path: Path) -> None:
    assert surefoot.load(directory).notes == ()
    draft = make_checkpoint(tmp_path, "qwen3", vocab_size=320, max_position_embeddings=64, eos_token_id=None)
    make_tokenizer(draft)
    notes = surefoot.load(directory, draft).notes
    assert any(note.startswith("draft model: ") and "64" in note for note in notes)
