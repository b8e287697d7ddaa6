"""Tokenizes long texts in steps, and stops as soon as there are too many tokens."""

from __future__ import annotations

from ....runtime.messages import Tokens
from ..work.steps import Steps
from .text_pieces import TextPieces
from .token_floor import TokenFloor
from .tokenizer import Tokenizer

LONG_TEXT = 16_384  # characters: about 5 ms of tokenizing
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
    """Returns the ids that the tokenizer gives for the whole text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._floor = TokenFloor(tokenizer)
        self._pieces = TextPieces(tokenizer)
        self._around = _special_tokens_around(tokenizer)

    def check(self, text: str, most: int | None) -> Steps[None]:
        """Raises `TooLongError` if a long text certainly has more than `most` tokens, without tokenizing
        it."""
        if most is not None and is_long(text) and len(text) > most:
            least = yield from self._floor.of(text)
            if least > most:
                raise TooLongError(least)

    def steps(self, text: str, special: bool = False, most: int | None = None) -> Steps[Tokens]:
        """Raises `TooLongError` for a long text with more tokens than `most`. `special`: the tokenizer's own
        special tokens are around the text."""
        if not is_long(text) or (special and self._around is None):
            return self._tokenizer.encode(text, special)
        yield from self.check(text, most)
        parts: list[Tokens] = []
        count = 0
        for piece in self._pieces.of(text):
            part = self._tokenizer.encode(piece, add_special_tokens=False)
            parts.append(part)
            count += len(part) // 4
            if most is not None and count > most:
                raise TooLongError(count)
            yield
        before, after = self._around if special and self._around is not None else (b"", b"")
        return b"".join((before, *parts, after))


def _special_tokens_around(tokenizer: Tokenizer) -> tuple[Tokens, Tokens] | None:
    """The tokens that the tokenizer puts before and after a text; None if that is unknown."""
    plain = tokenizer.encode(_SAMPLE, add_special_tokens=False)
    before, found, after = tokenizer.encode(_SAMPLE, True).partition(plain)
    return (before, after) if found and len(before) % 4 == 0 else None
