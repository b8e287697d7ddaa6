"""Computes a lower bound for the number of a text's tokens without tokenizing it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..work.steps import Steps
from .tokenizer import CONTROL_MARK, Tokenizer

CHUNK_CHARACTERS = 1 << 20
_ASCII = 128
# These keep every character in its place, or compose it with the next.
NORMALIZERS = {"Sequence", "NFC", "Prepend", "Replace"}
SPLITTERS = {"Sequence", "ByteLevel", "Split", "Digits", "Metaspace"}
_NFC_SHRINKS = 3  # times at most, as three Hangul letters of three bytes become a syllable of three bytes


class TokenFloor:
    """Finds a number of tokens that a text has at least: the bound.

    Divides the text's size by the longest token's, and its count of each ASCII character by the highest count
    in one token, and takes the largest quotient. The bound is 0 for a tokenizer that may drop text or put any
    number of characters into one unknown token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self._is_sound = _keeps_all_text(tokenizer, tokens)
        self._counts_bytes = tokenizer.rules.byte_level
        self._composes = "NFC" in normalizer_types(tokenizer)
        eats_spaces = any(token.lstrip or token.rstrip for token in tokenizer.added_tokens.values())
        lengths = [len(token) if self._counts_bytes else _characters(token) for token in tokens]
        self._longest = 0 if eats_spaces else max(lengths)
        self._most = _most_of_each(tokens)
        if eats_spaces or not self._counts_bytes:  # a `▁` in the text becomes a space
            self._most[[ord(space) for space in " \t\n\r\f\v\x1c\x1d\x1e\x1f"]] = 0

    def of(self, text: str) -> Steps[int]:
        """At most the number of the text's tokens."""
        if not self._is_sound:
            return 0
        counts = np.zeros(256, np.int64)
        for start in range(0, len(text), CHUNK_CHARACTERS):
            data = np.frombuffer(text[start : start + CHUNK_CHARACTERS].encode(), np.uint8)
            counts += np.bincount(data, minlength=256)
            yield
        marks = text.count(CONTROL_MARK)
        ascii_counts = counts[:_ASCII]
        others = len(text) - int(ascii_counts.sum()) - marks
        size = (
            int(counts.sum()) - marks * len(CONTROL_MARK.encode())
            if self._counts_bytes
            else len(text) - marks
        )
        if self._composes and others:
            size //= _NFC_SHRINKS
            ascii_counts = np.maximum(ascii_counts - others, 0)
        known = self._most > 0
        floors = -(-ascii_counts[known] // self._most[known])
        by_size = -(-size // self._longest) if self._longest else 0
        return max(by_size, int(floors.max(initial=0)))


def _keeps_all_text(tokenizer: Tokenizer, tokens: list[bytes]) -> bool:
    learned = {token for index, token in enumerate(tokens) if index not in tokenizer.added_tokens}
    knows_every_byte = all(bytes([byte]) in learned for byte in range(256))
    return (
        knows_every_byte
        and (tokenizer.rules.byte_level or tokenizer.rules.byte_fallback)
        and normalizer_types(tokenizer) <= NORMALIZERS
        and splitter_types(tokenizer) <= SPLITTERS
        and all(map(_keeps_characters, _steps(tokenizer.normalizer_spec)))
        and all(step.get("behavior") != "Removed" for step in _steps(tokenizer.pre_tokenizer_spec))
    )


def normalizer_types(tokenizer: Tokenizer) -> set[str]:
    return {step["type"] for step in _steps(tokenizer.normalizer_spec)}


def splitter_types(tokenizer: Tokenizer) -> set[str]:
    return {step["type"] for step in _steps(tokenizer.pre_tokenizer_spec)}


def _keeps_characters(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] != "Replace":
        return True
    return bool(normalizer["pattern"] == {"String": " "} and normalizer["content"] == "▁")


def _steps(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer and all inside it."""
    found = [] if spec is None else [spec]
    for step in found:
        found += step.get("normalizers", ()) or step.get("pretokenizers", ())
    return found


def _characters(token: bytes) -> int:
    """A byte of a character without a token counts as one."""
    return max(len(token.decode("utf-8", "replace")), 1)


def _most_of_each(tokens: list[bytes]) -> NDArray[np.int64]:
    """For each ASCII character, its highest count in one token."""
    data = np.frombuffer(b"".join(tokens), np.uint8).astype(np.int64)
    owners = np.repeat(np.arange(len(tokens)), [len(token) for token in tokens])
    is_ascii = data < _ASCII
    pairs, counts = np.unique(owners[is_ascii] * _ASCII + data[is_ascii], return_counts=True)
    most = np.zeros(_ASCII, np.int64)
    np.maximum.at(most, pairs % _ASCII, counts)
    return most
