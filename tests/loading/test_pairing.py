"""A draft model serves a target when every id and every text mean the same to both, whatever the sizes around them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.factories import make_checkpoint
from tests.loading.checkpoints import byte_tokenizer

from surefoot.errors import PairError
from surefoot.loading import LoadedTarget, load_draft, load_target
from surefoot.options import LoadOptions

Json = dict[str, object]
OPTIONS = LoadOptions()


def model(path: Path, tokenizer: Json | None, vocab_size: int = 300, **config: object) -> Path:
    make_checkpoint(path, vocab_size=vocab_size, num_hidden_layers=1, **config)
    if tokenizer is not None:
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def target(path: Path, tokenizer: Json | None, vocab_size: int = 300) -> LoadedTarget:
    return load_target(model(path / "target", tokenizer, vocab_size), OPTIONS)


@pytest.mark.parametrize(("rows", "draft_rows"), [(300, 300), (300, 261), (261, 300), (512, 264)])
def test_the_same_tokenizer_pairs_whatever_the_padding(tmp_path: Path, rows: int, draft_rows: int) -> None:
    ours = target(tmp_path, byte_tokenizer(), rows)
    draft = load_draft(model(tmp_path / "draft", byte_tokenizer(), draft_rows), OPTIONS, ours)
    assert draft.config.vocab_size == draft_rows
    assert draft.notes == ()


def test_a_draft_model_without_a_row_for_every_token_is_refused(tmp_path: Path) -> None:
    ours = target(tmp_path, byte_tokenizer())
    with pytest.raises(PairError, match="260 embedding rows for a tokenizer of 261"):
        load_draft(model(tmp_path / "draft", byte_tokenizer(), 260), OPTIONS, ours)


def test_what_does_not_change_any_id_does_not_matter(tmp_path: Path) -> None:
    changed = byte_tokenizer(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
    )
    assert load_draft(model(tmp_path / "draft", changed), OPTIONS, target(tmp_path, byte_tokenizer())).notes == ()


def other_merges(_: Json) -> Json:
    return byte_tokenizer((("a", "c"), ("b", "c")))


def other_order(tokenizer: Json) -> Json:
    tokenizer["model"]["merges"].reverse()  # type: ignore[index]
    return tokenizer


def swapped_tokens(tokenizer: Json) -> Json:
    vocab = tokenizer["model"]["vocab"]  # type: ignore[index]
    vocab["x"], vocab["y"] = vocab["y"], vocab["x"]
    return tokenizer


def another_special_id(tokenizer: Json) -> Json:
    first, second, _ = tokenizer["added_tokens"]  # type: ignore[misc]
    vocab = tokenizer["model"]["vocab"]  # type: ignore[index]
    vocab["<eos>"], vocab["<bos>"] = 1, 0
    first["content"], second["content"] = "<bos>", "<eos>"
    return tokenizer


def no_longer_special(tokenizer: Json) -> Json:
    tokenizer["added_tokens"][2]["special"] = False  # type: ignore[index]
    return tokenizer


def one_more_token(tokenizer: Json) -> Json:
    added = tokenizer["added_tokens"]
    added.append({**added[0], "id": 261, "content": "<think>"})  # type: ignore[attr-defined,index]
    return tokenizer


def a_normalizer(tokenizer: Json) -> Json:
    return {**tokenizer, "normalizer": {"type": "NFC"}}


def a_prefix_space(tokenizer: Json) -> Json:
    return {**tokenizer, "pre_tokenizer": {**tokenizer["pre_tokenizer"], "add_prefix_space": True}}  # type: ignore[dict-item]


def stripping_specials(tokenizer: Json) -> Json:
    tokenizer["added_tokens"][0]["lstrip"] = True  # type: ignore[index]
    return tokenizer


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (other_merges, r"259: b'ab' \| b'ac'"),
        (other_order, "merges"),
        (swapped_tokens, r": b'x' \| b'y'"),
        (another_special_id, "0: special '<eos>' . special '<bos>'"),
        (no_longer_special, "2: special '<pad>'"),
        (one_more_token, "261: no token . special '<think>'"),
        (a_normalizer, "normalizer.*NFC"),
        (a_prefix_space, "add_prefix_space"),
        (stripping_specials, "added_tokens.*lstrip"),
    ],
)
def test_a_different_tokenizer_is_refused_showing_where(
    tmp_path: Path, change: Callable[[Json], Json], shown: str
) -> None:
    ours = target(tmp_path, byte_tokenizer())
    theirs = change(copy.deepcopy(byte_tokenizer()))
    with pytest.raises(PairError, match=f"(?s)draft.*another tokenizer.*{shown}"):
        load_draft(model(tmp_path / "draft", theirs), OPTIONS, ours)


def test_no_more_than_a_few_differences_are_shown(tmp_path: Path) -> None:
    ours = target(tmp_path, byte_tokenizer())
    many = tuple((left, right) for left in "abcd" for right in "efgh")
    with pytest.raises(PairError) as caught:
        load_draft(model(tmp_path / "draft", byte_tokenizer(many)), OPTIONS, ours)
    assert str(caught.value).count("\n") == 6
    assert str(caught.value).endswith("...")


@pytest.mark.parametrize("missing", ["target", "draft", "both"])
def test_without_a_tokenizer_only_vocabularies_of_one_size_pair(tmp_path: Path, missing: str) -> None:
    ours = target(tmp_path, byte_tokenizer() if missing == "draft" else None)
    theirs = byte_tokenizer() if missing == "target" else None
    notes = load_draft(model(tmp_path / "draft", theirs), OPTIONS, ours).notes
    assert "could not be compared" in notes[-1]
    with pytest.raises(PairError, match=r"301.*300.*tokenizer\.json"):
        load_draft(model(tmp_path / "other", theirs, 301), OPTIONS, ours)


def test_a_shorter_context_is_allowed_and_reported(tmp_path: Path) -> None:
    ours = target(tmp_path, byte_tokenizer())
    shorter = model(tmp_path / "shorter", byte_tokenizer(), max_position_embeddings=64)
    longer = model(tmp_path / "longer", byte_tokenizer(), max_position_embeddings=1024)
    assert "64" in load_draft(shorter, OPTIONS, ours).notes[0]
    assert load_draft(longer, OPTIONS, ours).notes == ()
