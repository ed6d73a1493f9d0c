"""What lies beside the weights: EOS ids, sampling defaults, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import make_checkpoint, make_tokenizer
from tests.loading.checkpoints import change_json
from transformers import AutoTokenizer

from surefoot.errors import CheckpointError, TokenizerError
from surefoot.loading import LoadedTarget, load_target
from surefoot.loading.tokenizer import load_tokenizer
from surefoot.options import LoadOptions, SamplingParams

TEXTS = ["", "a", "def f(x):\n    return x", "<bos>hello", "a<eos>b", "naïve 漢字 🙂"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = make_checkpoint(tmp_path / "model", vocab_size=300)
    make_tokenizer(path)
    return path


def load(directory: Path) -> LoadedTarget:
    return load_target(directory, LoadOptions())


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (None, None, ()),
        (2, None, (2,)),
        (None, 7, (7,)),
        (2, 2, (2,)),
        (2, [7, 2, 9], (2, 7, 9)),
        ([5, 2], [7], (5, 2, 7)),
        ([], [], ()),
        (0, None, (0,)),
    ],
)
def test_eos_ids_of_both_files_are_merged(
    directory: Path, config: object, generation: object, expected: tuple[int, ...]
) -> None:
    change_json(directory, "config.json", eos_token_id=config)
    change_json(directory, "generation_config.json", eos_token_id=generation)
    assert load(directory).eos_token_ids == expected


@pytest.mark.parametrize("value", [300, -1, "2", [2, 300], True, 2.0, {"id": 2}])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_an_eos_id_that_is_none_is_refused(directory: Path, file: str, value: object) -> None:
    change_json(directory, file, eos_token_id=value)
    with pytest.raises(CheckpointError, match=f"{file}: eos_token_id"):
        load(directory)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, SamplingParams()),
        ({"temperature": 0.7, "top_k": 20}, SamplingParams(top_k=20)),
        ({"do_sample": True}, SamplingParams(temperature=1.0)),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "max_new_tokens": 5},
            SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.1),
        ),
        ({"repetition_penalty": 1.1}, SamplingParams(repetition_penalty=1.1)),
        ({"suppress_tokens": [3, 4]}, SamplingParams(forbidden_tokens=(3, 4))),
        ({"top_k": None, "top_p": None, "num_beams": 1, "typical_p": 1.0}, SamplingParams()),
    ],
)
def test_sampling_defaults_are_the_models(
    directory: Path, generation: dict[str, object], expected: SamplingParams
) -> None:
    (directory / "generation_config.json").write_text(json.dumps(generation))
    loaded = load(directory)
    assert loaded.sampling_defaults == expected
    assert loaded.notes == ()


def test_what_the_defaults_cannot_say_is_noted(directory: Path) -> None:
    change_json(directory, "generation_config.json", no_repeat_ngram_size=3, num_beams=4)
    (note,) = load(directory).notes
    assert "num_beams=4" in note
    assert "no_repeat_ngram_size=3" in note


@pytest.mark.parametrize(
    "generation", [{"top_p": 2.0}, {"top_k": "many"}, {"top_k": -1}, {"min_p": True}, {"repetition_penalty": 0}]
)
def test_impossible_sampling_defaults_are_refused(directory: Path, generation: dict[str, object]) -> None:
    change_json(directory, "generation_config.json", **generation)
    with pytest.raises(CheckpointError, match=f"generation_config.json.*{next(iter(generation))}"):
        load(directory)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"model": {"type": "Nonsense"}}'])
def test_a_damaged_tokenizer_is_refused(directory: Path, content: bytes) -> None:
    (directory / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load(directory)


def test_an_added_token_that_gets_another_id_is_refused(directory: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 310, "content": "<think>"})
    (directory / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.*<think>.*310"):
        load(directory)
    content["added_tokens"][-1]["id"] = 300
    (directory / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load(directory).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("<think>") == (300,)


def test_without_a_tokenizer_there_is_none(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    assert (load(directory).tokenizer, load(directory).notes) == (None, ())


def test_a_tokenizer_of_another_format_is_noted(directory: Path) -> None:
    (directory / "tokenizer.json").rename(directory / "tokenizer.model")
    loaded = load(directory)
    assert loaded.tokenizer is None
    assert "tokenizer.model" in loaded.notes[0]


def test_a_tokenizer_with_more_ids_than_the_model_is_noted(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "model", vocab_size=260)
    make_tokenizer(directory, vocab_size=300)
    assert "260 rows" in load(directory).notes[0]


def test_truncation_and_padding_saved_by_a_trainer_are_off(directory: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    plain = load_tokenizer(directory)[0]
    (directory / "tokenizer.json").write_text(json.dumps(content))
    changed = load_tokenizer(directory)[0]
    assert plain is not None
    assert changed is not None
    assert changed.encode("a longer text") == plain.encode("a longer text")


POST_PROCESSORS: dict[str, object] = {
    "none": None,
    "bos": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}},
    },
    "both": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<eos>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]},
            "<eos>": {"id": "<eos>", "ids": [2], "tokens": ["<eos>"]},
        },
    },
    "byte level": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
}


@pytest.mark.parametrize("post_processor", POST_PROCESSORS)
@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}])
def test_text_gets_the_special_tokens_transformers_gives_but_never_twice(
    directory: Path, post_processor: str, flags: dict[str, object]
) -> None:
    change_json(directory, "tokenizer.json", post_processor=POST_PROCESSORS[post_processor])
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    change_json(directory, "tokenizer_config.json", **names, **flags)
    ours, theirs = load_tokenizer(directory)[0], AutoTokenizer.from_pretrained(directory)
    assert ours is not None
    for text in TEXTS:
        expected = list(theirs(text)["input_ids"])
        twice = expected[:2] == [1, 1]
        assert twice is (text.startswith("<bos>") and post_processor in ("bos", "both"))
        assert list(ours.encode(text)) == expected[twice:], text
        assert list(ours.encode(text, add_special_tokens=False)) == theirs.encode(text, add_special_tokens=False)


def rendered(directory: Path, **variables: object) -> str:
    tokenizer = load_tokenizer(directory)[0]
    assert tokenizer is not None
    return tokenizer.render([{"role": "user", "content": "hi"}], **variables)


def test_a_chat_template_comes_from_the_config_or_its_own_file(directory: Path) -> None:
    with pytest.raises(TokenizerError, match="no chat template"):
        rendered(directory)
    change_json(directory, "tokenizer_config.json", chat_template="config", eos_token={"content": "<eos>"})
    assert rendered(directory) == "config"
    (directory / "chat_template.jinja").write_text("{{ eos_token }} {{ bos_token }} file")
    assert rendered(directory) == "<eos>  file"
    change_json(directory, "special_tokens_map.json", bos_token="<bos>", eos_token="<other>")
    assert rendered(directory) == "<eos> <bos> file"


def test_named_templates_are_chosen_by_what_is_asked(directory: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    change_json(directory, "tokenizer_config.json", chat_template=named)
    assert rendered(directory) == "plain"
    assert rendered(directory, tools=[{"name": "f"}]) == "with tools"
    change_json(directory, "tokenizer_config.json", chat_template=named[1:])
    with pytest.raises(TokenizerError, match=r"tool_use.*default"):
        rendered(directory)


@pytest.mark.parametrize("entry", [3, [], ["plain"], [{"name": "default"}], {"default": "plain"}])
def test_a_malformed_chat_template_entry_is_refused(directory: Path, entry: object) -> None:
    change_json(directory, "tokenizer_config.json", chat_template=entry)
    with pytest.raises(CheckpointError, match="chat_template"):
        load(directory)


def test_a_template_that_is_not_utf8_is_refused(directory: Path) -> None:
    (directory / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="chat_template"):
        load(directory)
