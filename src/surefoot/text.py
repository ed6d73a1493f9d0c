"""Text to token ids and back: a model's tokenizer, and the decoder that streams."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence

import tokenizers

from surefoot.chat import ChatTemplate, Message
from surefoot.errors import PromptError, TokenizerError
from surefoot.types import Tokens

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How SentencePiece vocabularies spell a single byte."""


def _byte_alphabet() -> dict[str, int]:
    """The characters byte-level BPE (GPT-2) writes for bytes: printing ones for themselves, the rest from 256 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()


class Tokenizer:
    """A model's own tokenizer.

    Args:
        core: the tokenizer as its ``tokenizer.json`` describes it.
        chat_template: how messages become text, if the model says.
    """

    def __init__(self, core: tokenizers.Tokenizer, *, chat_template: ChatTemplate | None = None) -> None:
        core.no_truncation()
        core.no_padding()
        self.core = core
        self.chat_template = chat_template
        self.decoder_steps = _decoder_steps(core)
        self._token_bytes: dict[int, bytes] = {}
        self.whole_texts: dict[int, str] = {}
        """Of a byte-level vocabulary, the texts of tokens read so far that neither end nor begin inside a character."""
        added = core.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, details in added.items() if details.special)
        self.vocab_size = 1 + max(core.get_vocab(with_added_tokens=True).values(), default=-1)
        """One more than the highest id; a model's padded embedding may have more rows."""

    def encode(self, text: str, add_special_tokens: bool = True) -> Tokens:
        """The ids of ``text``; the tokenizer's own special tokens go around it where the text lacks them."""
        try:
            encoding = self.core.encode(text, add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeError) as fault:
            raise PromptError(f"found {text!r:.80} as text; expected a string of valid Unicode: {fault}") from fault
        before, ids, after = _split(tuple(encoding.ids), encoding.special_tokens_mask)
        if ids[: len(before)] == before:
            before = ()
        if after and ids[-len(after) :] == after:
            after = ()
        return (*before, *ids, *after)

    def chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: object) -> Tokens:
        """The ids of a conversation; the template writes the special tokens, so none are added."""
        text = self.render(messages, add_generation_prompt=add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: object) -> str:
        """The text of a conversation as the model's chat template writes it."""
        if self.chat_template is None:
            raise TokenizerError(
                "found chat messages and no chat template (in tokenizer_config.json or chat_template.jinja); "
                "expected one. Pass text or token ids"
            )
        return self.chat_template.render(messages, add_generation_prompt=add_generation_prompt, **variables)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; bytes that are not UTF-8 show as U+FFFD, ids outside the vocabulary as nothing."""
        try:
            return self.core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as fault:
            raise PromptError(f"found {ids!r:.80} as token ids; expected integers of at least 0") from fault

    def piece(self, token: int) -> str | None:
        """How the vocabulary spells ``token``; None for an id it does not have."""
        return self.core.id_to_token(token)

    def token_bytes(self, token: int) -> bytes:
        """The bytes ``token`` stands for in the middle of a text; empty for an id the vocabulary does not have."""
        known = self._token_bytes.get(token)
        if known is None:
            known = self._token_bytes[token] = self._spelled_bytes(token)
        return known

    def _spelled_bytes(self, token: int) -> bytes:
        piece = self.piece(token)
        if piece is None:
            return b""
        for step in self.decoder_steps:
            kind, pattern = step.get("type"), step.get("pattern")
            byte = BYTE_PIECE.fullmatch(piece)
            if kind == "ByteFallback" and byte:
                return bytes.fromhex(byte[1])
            if kind == "ByteLevel" and all(char in BYTE_OF for char in piece):
                return bytes(BYTE_OF[char] for char in piece)
            if kind == "Metaspace":
                piece = piece.replace(str(step["replacement"]), " ")
            if kind == "Replace" and isinstance(pattern, Mapping) and "String" in pattern:
                piece = piece.replace(str(pattern["String"]), str(step["content"]))
        return piece.encode()

    def encoding_rules(self) -> dict[str, object]:
        """All that decides which ids a text gets, as JSON values: equal rules are the same tokenizer."""
        added = {token: details.__getstate__() for token, details in self.core.get_added_tokens_decoder().items()}
        return {
            "normalizer": _state(self.core.normalizer),
            "pre_tokenizer": _state(self.core.pre_tokenizer),
            "model": _state(self.core.model),
            "added_tokens": {str(token): added[token] for token in sorted(added)},
        }


def _state(component: tokenizers.models.Model | None) -> object:
    """A component as JSON, without the flags that matter to offsets alone."""
    return None if component is None else _without_offsets(json.loads(component.__getstate__()))


def _without_offsets(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_offsets(item) for key, item in value.items() if key != "trim_offsets"}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_without_offsets(item) for item in value]
    return value


def _split(ids: Tokens, added: Sequence[int]) -> tuple[Tokens, Tokens, Tokens]:
    """Ids that a post-processor put before a text (mask 1), those of the text, and those put after it."""
    first = next((i for i, mark in enumerate(added) if not mark), len(ids))
    last = next((i for i in range(len(ids), first, -1) if not added[i - 1]), first)
    return ids[:first], ids[first:last], ids[last:]


def _decoder_steps(core: tokenizers.Tokenizer) -> list[Mapping[str, object]]:
    """The decoders of a tokenizer in order, nested sequences flattened."""
    if core.decoder is None:
        return []
    flat: list[Mapping[str, object]] = []
    pending = [json.loads(core.decoder.__getstate__())]
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending = [*step["decoders"], *pending]
        else:
            flat.append(step)
    return flat


class StreamDecoder:
    """Ids in, text out as soon as it is final: the pieces concatenate to ``tokenizer.decode`` of all ids.

    Text is held back while later ids could still change it, that is inside a UTF-8 sequence, and for vocabularies with
    byte pieces inside a run of them, because their decoder judges a run as a whole. The cost per id does not grow with
    the text.

    Args:
        tokenizer: what the ids belong to.
        skip_special_tokens: special tokens have no text.
        after: ids whose text is known already, which this one goes on from: the text of ``after``, then the pieces, are
            ``tokenizer.decode`` of all ids together. So the first word keeps the space it would lose at the beginning
            of a text of its own. A character that ``after`` leaves open stays so: what comes of it later is U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, *, after: Sequence[int] = ()) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        kinds = [step["type"] for step in tokenizer.decoder_steps]
        if kinds == ["ByteLevel"]:
            self._pieces: _ByteStream | _WindowStream = _ByteStream(tokenizer)
        else:
            self._pieces = _WindowStream(tokenizer, kinds, [token for token in after if token not in self._skipped])

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that became final with ``tokens``."""
        text = ""
        for token in tokens:
            if token not in self._skipped:
                text += self._pieces.feed(token)
        return text

    def flush(self) -> str:
        """The text held back; the decoder then starts afresh."""
        return self._pieces.flush()


class _ByteStream:
    """Byte-level vocabularies: a text is the concatenation of its tokens' bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._whole_texts = tokenizer, tokenizer.whole_texts
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_open = False

    def feed(self, token: int) -> str:
        whole = None if self._is_open else self._whole_texts.get(token)
        return self._decoded(token) if whole is None else whole

    def flush(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._is_open = False
        return rest

    def _decoded(self, token: int) -> str:
        """What a token's bytes complete. Between whole characters that is the token's alone, and kept."""
        was_open = self._is_open
        text = self._utf8.decode(self._tokenizer.token_bytes(token))
        self._is_open = self._utf8.getstate()[0] != b""
        if not was_open and not self._is_open:
            self._whole_texts[token] = text
        return text


class _WindowStream:
    """Other vocabularies: what a token adds to the text of the few tokens before it.

    Those few carry what decoders make depend on context: the space that only the first token of a text loses. They
    suffice once their own text is not empty.
    """

    def __init__(self, tokenizer: Tokenizer, kinds: Sequence[object], after: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._byte_pieces = "ByteFallback" in kinds
        self._raw_bytes = "ByteLevel" in kinds
        self._restart(self._context(after))

    def _restart(self, window: list[int]) -> None:
        self._window = window
        self._num_read = len(window)
        self._text_read = self._tokenizer.decode(window, skip_special_tokens=False)

    def _context(self, after: Sequence[int]) -> list[int]:
        """The last whole tokens of ``after``, back to one with text; where there is text but no such token, one of the
        vocabulary stands in for it."""
        context: list[int] = []
        for token in reversed(after):
            text = self._whole_text(token)
            if text is not None:
                context.insert(0, token)
            if text:
                return context
        if self._tokenizer.decode(after, skip_special_tokens=False):
            return [next(token for token in range(self._tokenizer.vocab_size) if self._whole_text(token))]
        return context

    def _whole_text(self, token: int) -> str | None:
        """The text of a token alone; None for one that is, or may be, a part of a character."""
        if self._is_byte_piece(token):
            return None
        text = self._tokenizer.decode((token,), skip_special_tokens=False)
        return None if self._raw_bytes and text.endswith("\ufffd") else text

    def _is_byte_piece(self, token: int) -> bool:
        return self._byte_pieces and bool(BYTE_PIECE.fullmatch(self._tokenizer.piece(token) or ""))

    def feed(self, token: int) -> str:
        if self._tokenizer.piece(token) is None:
            return ""
        self._window.append(token)
        if self._is_byte_piece(token):
            return ""
        text = self._tokenizer.decode(self._window, skip_special_tokens=False)
        if self._raw_bytes and text.endswith("\ufffd"):
            return ""
        delta = self._new_text(text)
        recent = self._window[self._num_read :]
        recent_text = self._tokenizer.decode(recent, skip_special_tokens=False)
        if recent_text:
            self._window, text = recent, recent_text
        self._num_read, self._text_read = len(self._window), text
        return delta

    def flush(self) -> str:
        rest = self._new_text(self._tokenizer.decode(self._window, skip_special_tokens=False))
        self._restart([])
        return rest

    def _new_text(self, text: str) -> str:
        if not text.startswith(self._text_read):
            raise TokenizerError(
                f"the tokenizer's decoder turned {self._text_read!r} into {text!r} when more ids came; expected one "
                "that only appends, as text already given cannot be taken back. Use token ids with this model"
            )
        return text[len(self._text_read) :]
