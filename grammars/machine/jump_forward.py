"""Forced text: the only text that a grammar allows next, and the tokens that the tokenizer makes of it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ...runtime.automaton_format import DEAD
from .stack_automaton import BY_GAP, CHOICE, END, StackAutomaton

MAX_TEXT = 256  # maximal bytes of a forced text; a longer text comes in parts
KNOWN_TEXTS = 4096

_INNER_BYTES = bytes(range(0x80, 0xC0))  # continuation bytes of UTF-8

Encode = Callable[[str], Sequence[int]]
"""function that returns a text's tokens, without special tokens around them"""


class ForcedText(NamedTuple):
    """`text` must come next, then one of the bytes `following` (in rising order), or the end if `ends`."""

    text: bytes
    following: bytes
    ends: bool


def forced_text(
    machine: StackAutomaton, forced: NDArray[np.int16], state: int, stack: Sequence[int]
) -> ForcedText:
    """The text that must follow in a state; `forced` is `machine.forced()`."""
    text, stack = bytearray(), list(stack)
    byte = _forced_byte(machine, forced, state, stack)
    while byte not in (CHOICE, END) and len(text) < MAX_TEXT:
        after = machine.step(state, stack, byte)
        if after == DEAD:
            break
        text.append(byte)
        state, byte = after, _forced_byte(machine, forced, after, stack)
    return ForcedText(bytes(text), machine.following(state), byte == END)


def _forced_byte(machine: StackAutomaton, forced: NDArray[np.int16], state: int, stack: Sequence[int]) -> int:
    """The only byte that may come next, or `CHOICE`, or `END`."""
    byte = int(forced[state])
    if byte != BY_GAP:
        return byte
    live = [each for each in machine.following(state) if machine.step(state, list(stack), each) != DEAD]
    return live[0] if len(live) == 1 else CHOICE


class ForcedTextTokenizer:
    """Cuts forced text into tokens as the tokenizer would cut the whole reply.

    The last tokens of a text may change when text is appended, because a token may span the end or the
    tokenizer looks ahead. With byte pair encoding and unigrams, the tokens before any token boundary are
    those of the text up to that boundary. So the sure tokens are the longest common beginning of the tokens
    of the text and of each of its prefixes after which a token may span the end.
    """

    def __init__(
        self, encode: Encode, spelled: Sequence[bytes], special: Iterable[int], ends: Sequence[int]
    ) -> None:
        """
        spelled: the bytes of each token id, as automata read them
        ends: the end-of-sequence tokens, beginning with the usual one
        """
        self._encode = encode
        self._spelled = spelled
        self._special = frozenset(special)
        self._end = tuple(ends[:1])
        self._sorted = sorted({text for token, text in enumerate(spelled) if token not in self._special})
        self._longest = max(map(len, self._sorted), default=0)
        single = ((text, token) for token, text in enumerate(spelled) if len(text) == 1)
        self._token_of_byte = {text[0]: token for text, token in single if token not in self._special}
        self._special_tokens = {spelled[token]: token for token in self._special if spelled[token]}
        names = sorted(self._special_tokens, key=len, reverse=True)
        self._special_text = re.compile(b"(" + b"|".join(map(re.escape, names)) + b")" if names else b"(?!)")
        self._anchor = ""
        if not self._tokens("a"):  # this tokenizer adds a space before a text, but not after a newline
            self._anchor = "\n"
        self.sure_tokens = lru_cache(KNOWN_TEXTS)(self._sure_tokens)
        self.ending_tokens = lru_cache(KNOWN_TEXTS)(self._ending_tokens)

    def _ending_tokens(self, text: bytes) -> tuple[int, ...] | None:
        """The tokens of a text that ends a reply, without the end token; None if no tokens spell it."""
        tokens: list[int] = []
        for part in self._special_text.split(text):
            special = self._special_tokens.get(part)
            own = self._plain_tokens(part) if special is None else (special,)
            if own is None:
                return None
            tokens += own
        return tuple(tokens)

    def _plain_tokens(self, text: bytes) -> tuple[int, ...] | None:
        """The tokens of a text without special tokens. Bytes of an incomplete character, and a text that the
        tokenizer would change, become one-byte tokens; None if one is missing."""
        rest = text.lstrip(_INNER_BYTES)
        tokens = self._tokens(rest.decode()) if _whole_characters(rest) == rest else []
        bytewise = text[: len(text) - len(rest)] if tokens else text
        if not self._token_of_byte.keys() >= set(bytewise):
            return None
        return (*(self._token_of_byte[byte] for byte in bytewise), *tokens)

    def _sure_tokens(self, forced: ForcedText) -> tuple[int, ...]:
        """The first tokens of the text, which no later text can change; at a reply's end all tokens and the
        end token."""
        text = _whole_characters(forced.text)
        if forced.ends and text == forced.text:
            sure = self._tokens(text.decode())
            return (*sure, *self._end) if sure or not text else ()
        text = text.decode().rstrip().encode()  # a tokenizer joins spaces to the word after them
        following = forced.following if text == forced.text else forced.text[len(text) : len(text) + 1]
        sure = self._tokens(text.decode())
        for beginning in self._beginnings(text, following):
            sure = _common(sure, self._tokens(beginning))
        for byte in _one_of_each_kind(following):
            sure = _common(sure, self._tokens(text.decode() + chr(byte)))
        return tuple(sure)

    def _beginnings(self, text: bytes, following: bytes) -> Iterator[str]:
        """The text before each place where a token may begin that spans the text's end."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if self._reaches_past(text[start:], following):
                beginning = text[:start]
                yield beginning.decode() if _whole_characters(beginning) == beginning else ""

    def _reaches_past(self, text: bytes, following: bytes) -> bool:
        """Whether a token begins with `text` and one of the bytes `following`."""
        if not self._first_from(text + b"\0").startswith(text):
            return False
        longer = (text + bytes([byte]) for byte in following)
        return any(self._first_from(beginning).startswith(beginning) for beginning in longer)

    def _first_from(self, text: bytes) -> bytes:
        """The first token, in sorted order, that is not less than `text`; empty if there is none."""
        place = bisect_left(self._sorted, text)
        return self._sorted[place] if place < len(self._sorted) else b""

    def _tokens(self, text: str) -> Sequence[int]:
        """The text's tokens; empty if the tokenizer changes the text or finds special tokens in it."""
        anchor, tokens = list(self._encode(self._anchor)), list(self._encode(self._anchor + text))
        own = tokens[len(anchor) :]
        spelled = b"".join(self._spelled[token] for token in own)
        is_plain = spelled == text.encode() and self._special.isdisjoint(own)
        return own if is_plain and tokens[: len(anchor)] == anchor else []


def load_forced_text_tokenizer(
    path: Path, spelled: Sequence[bytes], special: Iterable[int], ends: Sequence[int]
) -> ForcedTextTokenizer:
    """The `ForcedTextTokenizer` for the tokenizer.json at `path`, with the other arguments of that class."""
    encode = Tokenizer.from_file(str(path)).encode
    return ForcedTextTokenizer(
        lambda text: encode(text, add_special_tokens=False).ids, spelled, special, ends
    )


def _whole_characters(text: bytes) -> bytes:
    """The text up to the first byte that is not part of a complete character."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start]
    return text


def _one_of_each_kind(following: bytes) -> Iterable[int]:
    """One byte of each kind, because tokenizers split words by letters, digits, spaces and marks."""
    ascii_only = [chr(byte) for byte in following if byte < 128]
    return {(c.isalpha(), c.isdigit(), c.isspace()): ord(c) for c in ascii_only}.values()


def _common(left: Sequence[int], right: Sequence[int]) -> list[int]:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    return [token for token, _ in pairs]
