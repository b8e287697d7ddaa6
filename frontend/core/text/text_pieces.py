"""Cuts an ordinary text into pieces that have the tokens of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from .token_floor import NORMALIZERS, SPLITTERS, normalizer_types, splitter_types
from .tokenizer import Tokenizer

PIECE_CHARACTERS = 1 << 16  # about 20 ms of tokenizing
_WINDOW = 1 << 16  # characters that one search covers
_SEAM = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")
_SEAM_BYTES = re.compile(rb"[A-Za-z] ")
_LEFTS = (
    "a",
    "The",
    "x  y",
    "é. Hello",
    "12 ab",
    "\n\nword",
    "<s>word",
    "你好a",
    "I'll",
    " \t z",
    "ab  \n c",
)
_RIGHTS = (
    "a",
    "The",
    "fox  jumps ",
    "s' x",
    "b\n\n",
    "I'll 42",
    "z<s>",
    "q  ",
    "It's 12,345",
    "WORD",
    "x\ty",
)


class TextPieces:
    """Cuts at a single space between two ASCII letters.

    That is exact if no token has a letter before a space, because then no merge crosses the cut. Normalizing
    and splitting must not depend on the text across the cut either: the known kinds don't, and a few awkward
    texts are tried. If the tokenizer puts a space before each text, the later piece loses its own.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._skipped: int | None = (
            None  # characters that a piece leaves out at a cut; None: there are no cuts
        )
        if _may_cut(tokenizer):
            able = (skipped for skipped in (0, 1) if _parts_add_up(tokenizer, skipped))
            self._skipped = next(able, None)

    @property
    def enabled(self) -> bool:
        return self._skipped is not None

    def of(self, text: str) -> Iterator[str]:
        start = 0
        while self._skipped is not None and (seam := _seam(text, start + PIECE_CHARACTERS)) is not None:
            yield text[start:seam]
            start = seam + self._skipped
        yield text[start:]


def _seam(text: str, start: int) -> int | None:
    """The first place at or after `start` where the text can be cut."""
    for window in range(start, len(text), _WINDOW):
        found = _SEAM.search(text, window, min(window + _WINDOW + 1, len(text)))
        if found is not None:
            return found.start()
    return None


def _may_cut(tokenizer: Tokenizer) -> bool:
    added = tokenizer.added_tokens
    learned = (tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size) if token not in added)
    return (
        normalizer_types(tokenizer) <= NORMALIZERS
        and splitter_types(tokenizer) <= SPLITTERS
        and not any(map(_SEAM_BYTES.search, learned))
        and not any(
            token.single_word
            or _SEAM_BYTES.search(token.content.encode())
            or (token.lstrip and token.content[:1].isalpha())
            or (token.rstrip and token.content[-1:].isalpha())
            for token in added.values()
        )
    )


def _parts_add_up(tokenizer: Tokenizer, skipped: int) -> bool:
    for left, right in product(_LEFTS, _RIGHTS):
        parts = [tokenizer.encode(part, add_special_tokens=False) for part in (left, f" {right}"[skipped:])]
        if tokenizer.encode(f"{left} {right}", add_special_tokens=False) != b"".join(parts):
            return False
    return True
