"""Tokenizes long texts in pieces that have the tokens of the whole, and stops when there are too many."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

from ....runtime.messages import Tokens
from ..work.thread_pool import Steps
from .tokenizer import Tokenizer

LONG_TEXT = 16_384  # characters that take about 5 ms to tokenize
PIECE_CHARACTERS = 1 << 16  # characters that take about 20 ms to tokenize
CHARACTERS_PER_TOKEN = 4  # a piece with more characters per allowed token is counted first
_WINDOW = 1 << 16  # characters that one search covers
_SEAM = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")
_SEAM_BYTES = re.compile(rb"[A-Za-z] ")
# Pre-tokenizers and normalizers whose result does not depend on the text across a seam.
_NORMALIZERS = {"Sequence", "NFC", "Prepend", "Replace"}
_SPLITTERS = {"Sequence", "ByteLevel", "Split", "Digits", "Metaspace"}
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
_SAMPLE = "a"


class TooLongError(ValueError):
    """The text has at least `tokens`, which is more than the limit."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


def is_long(text: str) -> bool:
    """Whether tokenizing the text takes so long that it is done in steps, off the event loop."""
    return len(text) > LONG_TEXT


class LongTexts:
    """Tokenizes long texts in steps. The ids equal those of the whole text tokenized at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces = TextPieces(tokenizer)
        self._around = _find_special_tokens_around(tokenizer)

    def encode_in_steps(
        self, text: str, special: bool = False, max_tokens: int | None = None
    ) -> Steps[Tokens]:
        """Raises `TooLongError` for a long text with more than `max_tokens`. `special`: the tokenizer's own
        special tokens are around the text."""
        if not is_long(text) or (special and self._around is None):
            return self._tokenizer.encode(text, special)
        parts: list[Tokens] = []
        count = 0
        for piece in self._pieces.cut(text):
            if max_tokens is not None and len(piece) > CHARACTERS_PER_TOKEN * max_tokens:
                yield from self._check_count(piece, max_tokens)
            part = self._tokenizer.encode(piece, add_special_tokens=False)
            parts.append(part)
            count += len(part) // 4
            if max_tokens is not None and count > max_tokens:
                raise TooLongError(count)
            yield
        before, after = self._around if special and self._around is not None else (b"", b"")
        return b"".join((before, *parts, after))

    def _check_count(self, text: str, max_tokens: int) -> Steps[None]:
        """Raises `TooLongError` if the parts of a text without seams have more than twice `max_tokens`.

        Cuts anywhere add a few tokens. To tokenize the whole text at once may take gigabytes.
        """
        count = 0
        for start in range(0, len(text), PIECE_CHARACTERS):
            part = self._tokenizer.encode(text[start : start + PIECE_CHARACTERS], add_special_tokens=False)
            count += len(part) // 4
            if count > 2 * max_tokens:
                raise TooLongError(max(count // 2, max_tokens + 1))
            yield


class TextPieces:
    """Cuts a text at seams: a seam is a single space between two ASCII letters.

    The pieces have the tokens of the whole if no token has a letter before a space, because then no merge
    crosses a seam. Normalizing and splitting must not depend on the text across the seam either: the known
    kinds don't, and a few awkward texts are tried. If the tokenizer puts a space before each text, the later
    piece loses its own. With any other tokenizer a text is one piece.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._skipped: int | None = (
            None  # characters that a later piece leaves out at a seam; None: texts can't be cut
        )
        if _may_cut(tokenizer):
            able = (skipped for skipped in (0, 1) if _parts_add_up(tokenizer, skipped))
            self._skipped = next(able, None)

    def cut(self, text: str) -> Iterator[str]:
        """Yields the pieces. Each ends at the first seam after `PIECE_CHARACTERS`."""
        start = 0
        while self._skipped is not None and (seam := _find_seam(text, start + PIECE_CHARACTERS)) is not None:
            yield text[start:seam]
            start = seam + self._skipped
        yield text[start:]


def _find_seam(text: str, start: int) -> int | None:
    """The first seam at or after `start`. Each search is short, because no other thread can run during it."""
    for window in range(start, len(text), _WINDOW):
        found = _SEAM.search(text, window, min(window + _WINDOW + 1, len(text)))
        if found is not None:
            return found.start()
    return None


def _may_cut(tokenizer: Tokenizer) -> bool:
    added = tokenizer.added_tokens
    learned = (tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size) if token not in added)
    return (
        _list_step_types(tokenizer.normalizer_spec) <= _NORMALIZERS
        and _list_step_types(tokenizer.pre_tokenizer_spec) <= _SPLITTERS
        and not any(map(_SEAM_BYTES.search, learned))
        and not any(
            token.single_word
            or _SEAM_BYTES.search(token.content.encode())
            or (token.lstrip and token.content[:1].isalpha())
            or (token.rstrip and token.content[-1:].isalpha())
            for token in added.values()
        )
    )


def _list_step_types(spec: dict[str, Any] | None) -> set[str]:
    """The types of a normalizer or pre-tokenizer and of all steps inside it."""
    found = [] if spec is None else [spec]
    for step in found:
        found += step.get("normalizers", ()) or step.get("pretokenizers", ())
    return {step["type"] for step in found}


def _parts_add_up(tokenizer: Tokenizer, skipped: int) -> bool:
    for left, right in product(_LEFTS, _RIGHTS):
        parts = [tokenizer.encode(part, add_special_tokens=False) for part in (left, f" {right}"[skipped:])]
        if tokenizer.encode(f"{left} {right}", add_special_tokens=False) != b"".join(parts):
            return False
    return True


def _find_special_tokens_around(tokenizer: Tokenizer) -> tuple[Tokens, Tokens] | None:
    """The tokens that the tokenizer puts before and after a text; None if that is unknown."""
    plain = tokenizer.encode(_SAMPLE, add_special_tokens=False)
    before, found, after = tokenizer.encode(_SAMPLE, True).partition(plain)
    return (before, after) if found and len(before) % 4 == 0 else None
