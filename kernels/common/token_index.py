"""Texts in which the latest places with the same last 4 or 8 tokens are found: prompts, outputs, replies.

A text's arrays are read by their addresses, so that one compiled call serves the texts of all rows of a step.
A place is the number of tokens before a token in everything that was ever appended; a full text overwrites
its oldest tokens. `last` has the latest place of each hash of tokens, `before` of each place the one with the
same hash before it.
"""

import numpy as np
from numpy.typing import NDArray

from .jit import compiled, inlined
from .numba_tools import pointer

SHORT, LONG = 4, 8
"""tokens of which the places are found"""
CANDIDATES = 8
"""most places that are compared"""
MAX_MATCH = 32
"""most tokens that are compared"""
NO_PLACE = NO_TEXT = -1
FROM_TEXT, FROM_REPLIES, FROM_PREDICTION = range(3)
"""sources of drafts"""
END = -1
"""a token between two replies, which no draft contains"""

TOKENS, BEFORE_SHORT, BEFORE_LONG, LAST_SHORT, LAST_LONG, CAPACITY, LENGTH, COLUMNS = range(8)
"""Columns of a text: addresses, the number of places, a power of two, and the tokens that were appended."""

_INT, _LONG = np.int32(0), np.int64(0)


class TokenIndex:
    """Texts by number. One without tokens takes no memory."""

    def __init__(self, texts: int) -> None:
        self.table = np.zeros((texts, COLUMNS), np.int64)
        """[texts, COLUMNS]"""
        self._arrays: list[tuple[NDArray[np.int32], NDArray[np.int64]] | None] = [None] * texts

    def start(self, text: int, tokens: NDArray[np.int32], capacity: int) -> None:
        """Replaces a text. Afterwards it has place for at least `capacity` tokens."""
        size = max(int(self.table[text, CAPACITY]), 1 << max(capacity - 1, 1).bit_length())
        if size > self.table[text, CAPACITY]:
            self._arrays[text] = arrays = np.zeros(size, np.int32), np.empty((4, size), np.int64)
            addresses = [arrays[0].ctypes.data, *(each.ctypes.data for each in arrays[1])]
            self.table[text, : CAPACITY + 1] = [*addresses, size]
        self.table[text, LENGTH] = 0
        places = self._arrays[text]
        assert places is not None
        places[1][2:] = NO_PLACE
        self.append(text, tokens)

    def append(self, text: int, tokens: NDArray[np.int32]) -> None:
        """Appends tokens, in place of the oldest ones if the text is full."""
        append(self.table, np.full(len(tokens), text, np.int32), tokens)

    def append_each(self, texts: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """Appends each of the tokens [n] to its text [n]."""
        append(self.table, texts, tokens)

    def cut(self, text: int, length: int) -> None:
        """Removes the tokens after the first `length`."""
        self.table[text, LENGTH] = min(self.table[text, LENGTH], length)

    def drop(self, text: int) -> None:
        """Frees the text's memory."""
        self.table[text], self._arrays[text] = 0, None

    def length(self, text: int) -> int:
        return int(self.table[text, LENGTH])

    def capacity(self, text: int) -> int:
        return int(self.table[text, CAPACITY])

    def read(self, text: int, start: int) -> NDArray[np.int32]:
        """The tokens from place `start` on."""
        arrays = self._arrays[text]
        assert arrays is not None, "the text has no tokens"
        places = np.arange(start, self.length(text)) & (self.capacity(text) - 1)
        tokens: NDArray[np.int32] = arrays[0][places]
        return tokens


@inlined
def _hash(tokens, mask, end, count):
    """The hash of the `count` tokens up to place `end`."""
    mixed = np.uint64(count)
    for at in range(end - count + 1, end + 1):
        mixed = (mixed ^ np.uint64(np.uint32(tokens[at & mask]))) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed >> np.uint64(1))


@compiled
def append(table, texts, added):
    """Appends each of the tokens `added` [n] to its text [n]."""
    for at in range(len(texts)):
        text = table[texts[at]]
        mask, place = text[CAPACITY] - 1, text[LENGTH]
        tokens = pointer(text[TOKENS], _INT)
        tokens[place & mask] = added[at]
        text[LENGTH] = place + 1
        if place + 1 >= SHORT:
            _enter(text[BEFORE_SHORT], text[LAST_SHORT], _hash(tokens, mask, place, SHORT), place, mask)
        if place + 1 >= LONG:
            _enter(text[BEFORE_LONG], text[LAST_LONG], _hash(tokens, mask, place, LONG), place, mask)


@inlined
def _enter(before, last, found, place, mask):
    heads = pointer(last, _LONG)
    pointer(before, _LONG)[place & mask] = heads[found & mask]
    heads[found & mask] = place


@compiled
def find(text, own, count):
    """Finds the place in `text` before which the most tokens, at least `count`, equal the last tokens of the
    text `own`. Returns the place and how many tokens are equal. If several places have as many, it is the
    latest."""
    mask, length = text[CAPACITY] - 1, text[LENGTH]
    own_mask, own_length = own[CAPACITY] - 1, own[LENGTH]
    best, most = NO_PLACE, 0
    if length < count or own_length < count:
        return best, most
    tokens, own_tokens = pointer(text[TOKENS], _INT), pointer(own[TOKENS], _INT)
    before = pointer(text[BEFORE_SHORT if count == SHORT else BEFORE_LONG], _LONG)
    last = pointer(text[LAST_SHORT if count == SHORT else LAST_LONG], _LONG)
    oldest = max(length - mask - 1, 0)
    place = last[_hash(own_tokens, own_mask, own_length - 1, count) & mask]
    for _ in range(CANDIDATES):
        while place > length - 2:  # the last token, which none follows, or a removed one
            following = before[place & mask]
            place = following if following < place else NO_PLACE
        if place - count + 1 < oldest:
            break
        equal, limit = 0, min(MAX_MATCH, own_length, place - oldest + 1)
        while (
            equal < limit
            and tokens[(place - equal) & mask] == own_tokens[(own_length - 1 - equal) & own_mask]
        ):
            equal += 1
        if equal >= count and equal > most:
            best, most = place + 1, equal
        following = before[place & mask]
        place = following if following < place else NO_PLACE
    return best, most


@compiled
def copy_following(text, start, most, draft):
    """Copies up to `most` tokens from place `start` on to `draft`; returns their number. Where the text ends,
    it goes on as after `start`, because its last tokens repeat those before `start`."""
    mask, length = text[CAPACITY] - 1, text[LENGTH]
    tokens = pointer(text[TOKENS], _INT)
    for at in range(most):
        token = tokens[(start + at) & mask] if start + at < length else draft[at - (length - start)]
        if token == END:
            return at
        draft[at] = token
    return most


@compiled
def find_drafts(texts, replies, slots, replies_of, predictions, most, counts, tokens, sources, matched):
    """Writes to `counts` and `tokens` what followed the last tokens of texts where they stood before, in the
    same text or in another, to `sources` which of them, and to `matched` how many last tokens were the same.
    Returns the number of all drafts.

    slots, most: [rows], each row's text, and its most drafts. replies_of: [texts], the number of the other
    text in `replies`, or `NO_TEXT`. predictions: [texts], how many tokens at each text's start are the
    client's prediction
    """
    total = 0
    for row in range(len(slots)):
        if most[row] == 0:
            continue
        own, number = texts[slots[row]], replies_of[slots[row]]
        for count in (LONG, SHORT):
            start, equal = find(own, own, count)
            text = own
            sources[row] = FROM_PREDICTION if start < predictions[slots[row]] else FROM_TEXT
            if number != NO_TEXT:
                place, also = find(replies[number], own, count)
                if also > equal:
                    start, equal, text = place, also, replies[number]
                    sources[row] = FROM_REPLIES
            if equal > 0:
                counts[row] = copy_following(text, start, most[row], tokens[total:])
                total += counts[row]
                matched[row] = equal
                break
    return total
