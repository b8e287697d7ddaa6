"""Converts text to ids and back with a model's tokenizer, without transformers or torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from ....runtime.errors import ConfigError
from ....runtime.messages import Tokens
from ....runtime.vocabulary import Vocabulary, build_vocabulary
from .token_bytes import DecoderRules, read_decoder_rules

# A noncharacter of Unicode. It is put into text that looks like a special token but must not become one,
# and removed after special tokens have been found.
CONTROL_MARK = "\ufdd1"
SPECIAL_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_CONVERT = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
tokenizer.backend_tokenizer.save(sys.argv[2])
"""
MARGIN_TOKENS = 64
"""tokens at the end of a text that may depend on the text behind them"""
MIN_CHARACTERS = 1 << 14
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class EncodedInput(NamedTuple):
    tokens: Tokens
    second: int
    """position of the first token of a pair's second text, if the model tells the texts apart; otherwise 0"""


class Tokenizer:
    """A model's tokenizer. Bytes define text: a sequence's text is its tokens' bytes joined and decoded as
    UTF-8, with U+FFFD for what isn't UTF-8. `tokenizers`' own decoders agree wherever the bytes are UTF-8.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, config: dict[str, Any], eos_tokens: tuple[int, ...]
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._normalizer = backend.normalizer
        self._remove_marks()
        self.config = config
        self.eos_tokens = eos_tokens
        self.rules: DecoderRules = read_decoder_rules(_describe_part(backend.decoder))
        self.added_tokens: dict[int, tokenizers.AddedToken] = backend.get_added_tokens_decoder()
        flagged = {index for index, token in self.added_tokens.items() if token.special}
        declared = map(backend.token_to_id, list_special_tokens(config))
        self.special_tokens = frozenset(flagged.union(index for index in declared if index is not None))
        # An added token that matches normalized text is found after the normalizer has removed each
        # `CONTROL_MARK`, so a mark does not hide it.
        self._finds_special_late = any(
            token.special and token.normalized for token in self.added_tokens.values()
        )
        self._bytes = _list_token_bytes(backend.get_vocab(), self.added_tokens, self.rules)

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Reads tokenizer.json, or converts older formats with transformers."""
        path = directory / "tokenizer.json"
        text = path.read_text("utf-8") if path.is_file() else convert_tokenizer(directory)
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing more specific
            raise ConfigError(f"{path} can't be read: {error}") from error
        config = read_json(directory / "tokenizer_config.json")
        config = {**read_json(directory / "special_tokens_map.json"), **config}
        _add_missing_tokens(backend, config)
        return cls(backend, config, _find_eos_tokens(directory, config, backend))

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return len(self._bytes)

    @property
    def normalizer_spec(self) -> dict[str, Any] | None:
        """The field `normalizer` of tokenizer.json."""
        return _describe_part(self._normalizer)

    @property
    def pre_tokenizer_spec(self) -> dict[str, Any] | None:
        """The field `pre_tokenizer` of tokenizer.json."""
        return _describe_part(self._backend.pre_tokenizer)

    def save(self, path: Path) -> None:
        """Writes tokenizer.json. Readers see the whole file or none."""
        unfinished = path.with_name(f"{path.name}.part")
        self._backend.normalizer = self._normalizer
        self._backend.save(str(unfinished), pretty=False)
        self._remove_marks()
        unfinished.replace(path)

    def _remove_marks(self) -> None:
        remove = tokenizers.normalizers.Replace(CONTROL_MARK, "")
        own = [] if self._normalizer is None else [self._normalizer]
        self._backend.normalizer = tokenizers.normalizers.Sequence([remove, *own])

    def encode(self, text: str, add_special_tokens: bool = True) -> Tokens:
        """Tokenizes a text. Text with a `CONTROL_MARK` in it never becomes a special token."""
        backend = self._backend
        if self._finds_special_late and CONTROL_MARK in text:
            parts = backend.encode_batch_fast(text.split(CONTROL_MARK), add_special_tokens=False)
            joined = tokenizers.Encoding.merge(parts, growing_offsets=False)
            encoding = backend.post_process(joined, add_special_tokens=add_special_tokens)
        else:
            encoding = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        return np.array(encoding.ids, "<i4").tobytes()

    def encode_inputs(
        self,
        texts: Sequence[str | tuple[str, str]],
        max_tokens: int,
        truncate: int | None,
        add_special_tokens: bool = True,
    ) -> list[EncodedInput]:
        """Tokenizes texts and pairs of texts, cut to `truncate` tokens if that is given, the longer text of a
        pair first. Of a text with many more than `max_tokens` only the beginning is tokenized."""
        parts = [text for item in texts for text in ((item,) if isinstance(item, str) else item)]
        encodings = iter(self._encode_beginnings(parts, max_tokens))
        found = []
        for item in texts:
            first, second = next(encodings), None if isinstance(item, str) else next(encodings)
            if truncate is not None:
                added = self._backend.num_special_tokens_to_add(second is not None)
                _truncate(first, second, max(0, truncate - added * add_special_tokens))
            whole = self._backend.post_process(first, second, add_special_tokens=add_special_tokens)
            start = whole.type_ids.index(1) if second is not None and 1 in whole.type_ids else 0
            found.append(EncodedInput(np.array(whole.ids, "<i4").tobytes(), start))
        return found

    def _encode_beginnings(self, texts: Sequence[str], max_tokens: int) -> list[tokenizers.Encoding]:
        """The encodings of texts without special tokens. That of a long text may end early, after more
        than `max_tokens`: the cut does not change the first ones."""
        enough = max_tokens + MARGIN_TOKENS
        size = max(MIN_CHARACTERS, 8 * enough)
        found = self._backend.encode_batch_fast([text[:size] for text in texts], add_special_tokens=False)
        for at, text in enumerate(texts):
            end = size
            while end < len(text) and len(found[at].ids) < enough:
                end *= 4
                (found[at],) = self._backend.encode_batch_fast([text[:end]], add_special_tokens=False)
        return list(found)

    def decode(
        self, tokens: Tokens, skip_special_tokens: bool = True, *, continues_text: bool = False
    ) -> str:
        """The tokens' text. `continues_text` keeps a SentencePiece space at the start, before a word."""
        data = b"".join(
            self._bytes[token]
            for token in np.frombuffer(tokens, "<i4").tolist()
            if not (skip_special_tokens and token in self.special_tokens)
        )
        text = data.decode("utf-8", "replace")
        spaces = 0 if continues_text else self.rules.leading_spaces
        while spaces and text.startswith(" "):
            text, spaces = text[1:], spaces - 1
        return text

    def token_bytes(self, token: int) -> bytes:
        """The token's bytes; empty for unknown ids."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def token_text(self, token: int) -> str:
        r"""The text in log-probabilities. A part of a character is shown as OpenAI does: `bytes:\xe2\x82`."""
        data = self.token_bytes(token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def token_id(self, content: str) -> int | None:
        return self._backend.token_to_id(content)

    def vocabulary(self, model_vocab_size: int) -> Vocabulary:
        """The vocabulary for the model's embedding, which may be padded beyond the tokenizer or have gaps."""
        known = set(self._backend.get_vocab().values())
        ids = range(model_vocab_size)
        special = [token in self.special_tokens or token not in known for token in ids]
        eos = tuple(token for token in self.eos_tokens if token in ids)
        return build_vocabulary([self.token_bytes(token) for token in ids], special, eos)


def _truncate(first: tokenizers.Encoding, second: tokenizers.Encoding | None, limit: int) -> None:
    """Cuts the encodings so that together they have at most `limit` tokens: the longer one first, as
    `tokenizers` does by default."""
    if second is None:
        first.truncate(limit)
        return
    shorter, longer = sorted((first, second), key=lambda each: len(each.ids))
    kept = len(shorter.ids)
    if kept + min(len(longer.ids), max(kept, limit - kept)) > limit:
        kept = limit // 2
        shorter.truncate(kept)
    longer.truncate(limit - kept)


def convert_tokenizer(directory: Path) -> str:
    """Converts a tokenizer in older formats with transformers, in a child process. Returns the text of
    tokenizer.json."""
    with tempfile.TemporaryDirectory(prefix="arbora-convert-") as scratch:
        path = Path(scratch) / "tokenizer.json"
        child = subprocess.run(
            [sys.executable, "-c", _CONVERT, str(directory), str(path)],
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode != 0 or not path.is_file():
            reason = (child.stderr.strip().splitlines() or ["no message"])[-1]
            raise ConfigError(
                f"{directory} has no tokenizer.json, and transformers can't convert its tokenizer: {reason}"
            )
        return path.read_text("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} should hold a JSON object, found {type(value).__name__}.")
    return value


def list_special_tokens(config: dict[str, Any]) -> list[str]:
    """The special tokens of tokenizer_config.json, whether or not tokenizer.json flags them."""
    single = [config.get(f"{role}_token") for role in SPECIAL_ROLES]
    several = [config.get(name) for name in ("additional_special_tokens", "extra_special_tokens")]
    listed = [token for tokens in several if isinstance(tokens, list) for token in tokens]
    return [content for value in single + listed if (content := token_content(value))]


def token_content(value: object) -> str | None:
    """A token as Hugging Face's config files write it: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _describe_part(part: Any) -> dict[str, Any] | None:
    """The description of a part of the tokenizer in tokenizer.json."""
    spec: dict[str, Any] | None = part and json.loads(part.__getstate__())
    return spec


def _list_token_bytes(
    vocab: dict[str, int], added: dict[int, tokenizers.AddedToken], rules: DecoderRules
) -> list[bytes]:
    by_id = [b""] * (max(vocab.values()) + 1)
    for token, index in vocab.items():
        by_id[index] = rules.added_token_bytes(token) if index in added else rules.token_bytes(token)
    return by_id


def _add_missing_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Adds the tokens that some models list, or mark as special, only in tokenizer_config.json."""
    listed = config.get("added_tokens_decoder") or {}
    for index, fields in sorted((int(index), fields) for index, fields in listed.items()):
        if backend.id_to_token(index) is None and index == backend.get_vocab_size():
            flags = {flag: bool(fields[flag]) for flag in _TOKEN_FLAGS if flag in fields}
            backend.add_tokens([tokenizers.AddedToken(fields["content"], **flags)])
    declared = list_special_tokens(config)
    backend.add_special_tokens([token for token in declared if backend.token_to_id(token) is not None])


def _find_eos_tokens(
    directory: Path, tokenizer_config: dict[str, Any], backend: tokenizers.Tokenizer
) -> tuple[int, ...]:
    """The end tokens: the tokenizer's own first, then those in generation_config.json and config.json."""
    found: list[int | None] = []
    own = token_content(tokenizer_config.get("eos_token"))
    if own is not None:
        found.append(backend.token_to_id(own))
    model_config = read_json(directory / "config.json")
    text_config = model_config.get("text_config") or {}
    for config in (read_json(directory / "generation_config.json"), model_config, text_config):
        value = config.get("eos_token_id")
        found.extend(value if isinstance(value, list) else [value])
    return tuple(dict.fromkeys(token for token in found if token is not None and token >= 0))
