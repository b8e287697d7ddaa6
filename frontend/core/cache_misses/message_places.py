"""Finds the tokens of each message in a rendered prompt."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from ....runtime.messages import Tokens

SHOWN = 60
"""Characters of a message's beginning by which it is found if the template changes what follows them."""
MAX_MISSING = 16
"""Messages that may be missing in the prompt, as each is searched for in all of the rest."""


class TokenTexts(Protocol):
    """The part of a `Tokenizer` that is used here."""

    special_tokens: frozenset[int]
    eos_tokens: tuple[int, ...]

    def token_bytes(self, token: int) -> bytes: ...


def find_message_places(
    tokens: Tokens, messages: Sequence[Mapping[str, Any]], tokenizer: TokenTexts
) -> list[int]:
    """Where each message begins, and where the last one ends, as numbers of tokens. They never decrease.

    Messages are found by their texts and the names of their calls, in order. A message begins after the end
    token before it, or where its special tokens begin. One that is not found has no tokens: they count to the
    message before it. Tokens before the first message and after the last one are the template's own.
    """
    prompt = _Prompt(tokens, tokenizer)
    found: list[int | None] = []
    reached, missing = 0, 0  # the end of the last message that was found, in bytes
    for message in messages:
        place = prompt.find(_list_texts(message), reached) if missing < MAX_MISSING else None
        if place is None:
            missing += 1
            found.append(None)
        else:
            found.append(prompt.find_border(reached, place[0], is_first=reached == 0))
            reached = place[1]
    following = prompt.find_end(reached)
    places = [following]
    for start in reversed(found):
        following = following if start is None else min(start, following)
        places.append(following)
    return places[::-1]


def _list_texts(message: Mapping[str, Any]) -> list[bytes]:
    names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return [text.encode() for text in (message["content"].strip(), *names) if text]


class _Prompt:
    """The bytes of a prompt, with zeros in place of special tokens, which no message's text has."""

    def __init__(self, tokens: Tokens, tokenizer: TokenTexts) -> None:
        ids = np.frombuffer(tokens, "<i4")
        is_special = np.isin(ids, list(tokenizer.special_tokens | set(tokenizer.eos_tokens)))
        pieces = [tokenizer.token_bytes(each) for each in ids.tolist()]
        self._special = np.flatnonzero(is_special).tolist()
        for place in self._special:
            pieces[place] = bytes(len(pieces[place]))
        self._ends = set(np.flatnonzero(np.isin(ids, list(tokenizer.eos_tokens))).tolist())
        self._pieces = pieces
        self._bytes = b"".join(pieces)
        self._starts = [0, *accumulate(map(len, pieces))]
        """the places in `_bytes` where the tokens begin, then the length of `_bytes`"""

    def find(self, texts: Sequence[bytes], start: int) -> tuple[int, int] | None:
        """The beginning and the end of the texts in order, in bytes: behind the next special token, or, like
        results that share a turn, before it."""
        if not texts:
            return None
        behind = self._special_between(self._first_token(start), len(self._pieces))[:1] if start else []
        places = [*(self._starts[each + 1] for each in behind), start]
        return next((found for each in places if (found := self._find_all(texts, each))), None)

    def _find_all(self, texts: Sequence[bytes], at: int) -> tuple[int, int] | None:
        begin = None
        for text in texts:
            for part in (text, text[:SHOWN]):
                place = self._bytes.find(part, at)
                if place >= 0:
                    begin, at = place if begin is None else begin, place + len(part)
                    break
        return None if begin is None else (begin, at)

    def find_border(self, end: int, begin: int, *, is_first: bool) -> int:
        """The token between the text that ends at `end` and the one that begins at `begin`, both in bytes,
        where the second one's message begins."""
        first, last = self._first_token(end), self._token_with(begin)
        special = self._special_between(first, last)
        closing = [each for each in special if each in self._ends]
        if closing:
            return self._skip_spaces(closing[-1] + 1, last)
        if is_first:
            return 0
        return special[:2][-1] if special else min(first, last)

    def find_end(self, end: int) -> int:
        """The token after the message whose text ends at `end`, in bytes."""
        special = self._special_between(self._first_token(end), len(self._pieces))
        closing = next((each for each in special if each in self._ends), None)
        if closing is not None:
            return self._skip_spaces(closing + 1, len(self._pieces))
        return special[0] if special else len(self._pieces)

    def _special_between(self, first: int, last: int) -> list[int]:
        return self._special[bisect_left(self._special, first) : bisect_left(self._special, last)]

    def _first_token(self, position: int) -> int:
        """The first token that begins at or after `position`, in bytes."""
        return bisect_left(self._starts, position, hi=len(self._pieces))

    def _token_with(self, position: int) -> int:
        return bisect_right(self._starts, position, hi=len(self._pieces)) - 1

    def _skip_spaces(self, token: int, last: int) -> int:
        while token < last and self._pieces[token].isspace():
            token += 1
        return token
