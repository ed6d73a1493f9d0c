"""Small tokenizers of every kind the stream must handle, each with pieces that are hard to stream."""

from __future__ import annotations

from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers

from surefoot.text import BYTE_OF, Tokenizer

BYTES = range(256)
CHARACTER = {byte: character for character, byte in BYTE_OF.items()}
SPECIAL = ["<s>", "</s>"]


def byte_level() -> Tokenizer:
    """Ids 0 to 255 are the bytes; then parts of characters, special and added tokens."""
    pieces = [bytes([byte]) for byte in BYTES]
    pieces += [b"\xe2\x82", b"\x82\xac", b"\xf0\x9f\x98", b"\x80\xf0\x9f", "é".encode(), b" hello", b"a\xcc"]
    vocab = {"".join(CHARACTER[byte] for byte in piece): token for token, piece in enumerate(pieces)}
    core = Core(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([*SPECIAL, "<é>"])
    core.add_tokens(["漢字 x", "é!"])
    return Tokenizer(core)


def sentencepiece(decoder: decoders.Decoder) -> Tokenizer:
    """Ids 3 to 258 are byte pieces, like Llama 2."""
    pieces = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in BYTES)]
    pieces += ["▁", "▁▁", "a", "▁a", "b", "漢", "é", "\u0301", "🙂", "\ufffd", "▁hello", ".", ""]
    core = Core(models.BPE(vocab={piece: token for token, piece in enumerate(pieces)}, merges=[], byte_fallback=True))
    core.decoder = decoder
    core.add_special_tokens(SPECIAL)
    core.add_tokens(["<think>", " spaced "])
    return Tokenizer(core)


def words(decoder: decoders.Decoder | None) -> Tokenizer:
    """Whole words and their parts, like BERT."""
    pieces = [
        "[UNK]",
        "▁",
        "▁a",
        "a",
        "##b",
        "##",
        ".",
        "!",
        "'s",
        "n't",
        " do not",
        "▁▁",
        "b</w>",
        "Ã",
        "©",
        "Ġ",
        "\ufffd",
    ]
    core = Core(models.WordLevel(vocab={piece: token for token, piece in enumerate(pieces)}, unk_token="[UNK]"))
    if decoder is not None:
        core.decoder = decoder
    core.add_special_tokens(SPECIAL)
    return Tokenizer(core)


LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]

KINDS = {
    "byte level": byte_level(),
    "byte level, stripped": words(decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])),
    "llama 2": sentencepiece(decoders.Sequence(LLAMA)),
    "gemma": sentencepiece(decoders.Sequence(LLAMA[:3])),
    "metaspace": words(decoders.Metaspace()),
    "metaspace, never first": words(decoders.Metaspace(prepend_scheme="never")),
    "word pieces": words(decoders.WordPiece()),
    "word pieces, spaced": words(decoders.WordPiece(cleanup=False)),
    "words with suffix": words(decoders.BPEDecoder(suffix="</w>")),
    "no decoder": words(None),
}
