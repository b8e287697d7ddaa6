"""Derives each token's bytes from a tokenizer's decoder.

A decoder is a list of steps over a sequence of tokens. For the kinds that language models use (byte-level
BPE; SentencePiece with or without byte fallback) a token stands for the same bytes everywhere, except that
spaces are dropped at the start of a text. So the text of a sequence is its tokens' bytes joined and decoded
as UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ....runtime.errors import ConfigError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SUPPORTED = "ByteLevel, Metaspace, WordPiece, or Replace, ByteFallback, Fuse and Strip in that order"


class DecoderRules(NamedTuple):
    """How a decoder turns tokens into bytes. It drops the first `leading_spaces` spaces of a text."""

    byte_level: bool
    byte_fallback: bool
    replacements: tuple[tuple[str, str], ...]
    leading_spaces: int
    continues_word: str = ""
    """the beginning of tokens that continue a word; each other one begins with a space. Empty: none does"""

    def token_bytes(self, token: str) -> bytes:
        if self.byte_level:
            return _from_byte_level(token)
        byte = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return self.added_token_bytes(token)

    def added_token_bytes(self, token: str) -> bytes:
        """The bytes of an added token, which is plain text and not in the byte-level alphabet."""
        if self.continues_word:
            rest = token.removeprefix(self.continues_word)
            token = rest if rest != token else f" {token}"
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        return token.encode("utf-8", "surrogatepass")


def read_decoder_rules(decoder: dict[str, Any] | None) -> DecoderRules:
    """Reads tokenizer.json's field `decoder`."""
    byte_level = byte_fallback = fused = False
    continues_word = ""
    replacements: list[tuple[str, str]] = []
    leading_spaces = 0
    for step in _steps(decoder):
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
                replacements.append((pattern, content))
            case {"type": "Metaspace", "replacement": str(pattern)}:
                replacements.append((pattern, " "))
                leading_spaces = 0 if step.get("prepend_scheme", "always") == "never" else 1
            case {"type": "WordPiece", "prefix": str(continues_word)}:
                leading_spaces = 1
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if fused:
                leading_spaces = start
            case _:
                raise ConfigError(
                    f"tokenizer.json: the decoder step {step.get('type')} is not supported. "
                    f"Supported decoders are {_SUPPORTED}."
                )
    return DecoderRules(byte_level, byte_fallback, tuple(replacements), leading_spaces, continues_word)


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        raise ConfigError(f"tokenizer.json has no decoder. Supported decoders are {_SUPPORTED}.")
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _steps(step)


class _ByteLevelAlphabet(dict[int, int]):
    """Maps GPT-2's printable characters back to their bytes, and all others to a character that is not a
    byte."""

    def __init__(self) -> None:
        printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
        printable += range(ord("®"), ord("ÿ") + 1)
        others = sorted(set(range(256)) - set(printable))
        super().__init__({byte: byte for byte in printable})
        self.update({256 + index: byte for index, byte in enumerate(others)})

    def __missing__(self, character: int) -> int:
        return 0xFFFF


_BYTE_LEVEL_ALPHABET = _ByteLevelAlphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return token.translate(_BYTE_LEVEL_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "surrogatepass")
