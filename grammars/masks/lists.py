"""Lists of tokens, each kept once, and those of each state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

_FIRST_TOKENS = 1 << 14
_FIRST_LISTS = 1 << 9


class Lists(NamedTuple):
    """List i is `tokens[offsets[i]:offsets[i + 1]]`, of which the last `openers[i]` are openers. List 0 is
    empty. Where there is no room for more a new one of these is made, which may share memory with the old."""

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    openers: NDArray[np.int32]
    slots: NDArray[np.int32]  # lists by their hash, -1 for none
    used: NDArray[np.int64]  # [1], how many lists there are


class Kinds(NamedTuple):
    """What states in strings do with plain tokens. `ends[i]` are the ends of the spans of `tokens` that
    differ from the kind's mask, are undecided, and are openers; each begins where the one before ends."""

    masks: NDArray[np.int32]  # [kinds]
    tokens: NDArray[np.int32]
    ends: NDArray[np.int64]  # [kinds, 3]


@njit(cache=True, nogil=True)
def no_lists():  # type: ignore[no-untyped-def]
    lists = Lists(
        np.empty(_FIRST_TOKENS, np.int32),
        np.zeros(_FIRST_LISTS + 1, np.int64),
        np.zeros(_FIRST_LISTS, np.int32),
        np.full(4 * _FIRST_LISTS, -1, np.int32),
        np.ones(1, np.int64),
    )
    nothing = np.empty(0, np.int32)
    lists.slots[_slot(lists, nothing, nothing)] = 0
    return lists


@njit(cache=True, nogil=True)
def put_listed(lists, walked, states, of_state, room):  # type: ignore[no-untyped-def]
    """Notes in `of_state`, int32 [all states, 3], the lists of what was walked from states [n]. Of dear ones
    only what is allowed: `put_dear` sees to the rest. Stops where there are more than `room` tokens."""
    lists = _with_room(lists, len(walked.tokens), 2 * len(states))
    for i in range(len(states)):
        allowed, undecided, openers = _spans(walked.tokens, walked.ends, i)
        of_state[states[i], 0] = _put(lists, allowed, openers[:0])
        if not walked.dear[i]:
            of_state[states[i], 2] = _put(lists, undecided, openers)
        if lists.offsets[lists.used[0]] > room:
            break
    return lists


@njit(cache=True, nogil=True)
def put_dear(lists, walked, states, kinds, kind, of_state, mask_of_state, room):  # type: ignore[no-untyped-def]
    """Adds to what was walked from states [n] what their kinds do; `kind` is that of each dear one."""
    dear = np.flatnonzero(walked.dear)
    for number in range(len(dear)):
        state = states[dear[number]]
        _, undecided, openers = _spans(walked.tokens, walked.ends, dear[number])
        differing, plain_undecided, plain_openers = _spans(kinds.tokens, kinds.ends, kind[number])
        mask_of_state[state] = kinds.masks[kind[number]]
        if len(plain_undecided) or len(plain_openers):
            undecided = np.concatenate((undecided, plain_undecided))
            openers = np.concatenate((openers, plain_openers))
        lists = _with_room(lists, len(differing) + len(undecided) + len(openers), 2)
        of_state[state, 1] = _put(lists, differing, openers[:0])
        of_state[state, 2] = _put(lists, undecided, openers)
        if lists.offsets[lists.used[0]] > room:
            break
    return lists


@njit(cache=True, nogil=True)
def put_like(lists, walked, states, likes, of_state, mask_of_state, marks, room):  # type: ignore[no-untyped-def]
    """Gives states [n] all that those have which they are like, and what differs. `marks`, bool [tokens], are
    false before and after."""
    for i in range(len(states)):
        state, like = states[i], likes[i]
        differing, undecided, openers = _spans(walked.tokens, walked.ends, i)
        mask_of_state[state] = mask_of_state[like]
        of_state[state, 0] = of_state[like, 0]
        own = _list(lists, of_state[like, 1])
        if len(own):
            differing = apart(own, differing, marks)
        decided = of_state[like, 2]
        if len(undecided) or len(openers):
            both = _list(lists, decided)
            below = len(both) - lists.openers[decided]
            undecided = np.concatenate((both[:below], undecided))
            openers = np.concatenate((both[below:], openers))
            lists = _with_room(lists, len(undecided) + len(openers), 1)
            decided = _put(lists, undecided, openers)
        lists = _with_room(lists, len(differing), 1)
        of_state[state, 1] = _put(lists, differing, openers[:0])
        of_state[state, 2] = decided
        if lists.offsets[lists.used[0]] > room:
            break
    return lists


@njit(cache=True, nogil=True)
def apart(tokens, others, marks):  # type: ignore[no-untyped-def]
    """The tokens that only one of two lists has."""
    for token in tokens:
        marks[token] = True
    found = np.empty(len(tokens) + len(others), np.int32)
    count = 0
    for token in others:
        if not marks[token]:
            found[count] = token
            count += 1
        marks[token] = False
    for token in tokens:
        if marks[token]:
            found[count] = token
            count += 1
            marks[token] = False
    return found[:count]


@njit(cache=True, nogil=True)
def _spans(tokens, ends, number):  # type: ignore[no-untyped-def]
    start = ends[number - 1, 2] if number else 0
    first, second, third = ends[number]
    return tokens[start:first], tokens[first:second], tokens[second:third]


@njit(cache=True, nogil=True)
def _list(lists, number):  # type: ignore[no-untyped-def]
    return lists.tokens[lists.offsets[number] : lists.offsets[number + 1]]


@njit(cache=True, nogil=True)
def _put(lists, tokens, openers):  # type: ignore[no-untyped-def]
    """The number of this list, for which there must be room."""
    if len(tokens) + len(openers) == 0:
        return np.int32(0)
    slot = _slot(lists, tokens, openers)
    if lists.slots[slot] >= 0:
        return lists.slots[slot]
    number = lists.used[0]
    start = lists.offsets[number]
    middle = start + len(tokens)
    end = middle + len(openers)
    for i in range(len(tokens)):
        lists.tokens[start + i] = tokens[i]
    for i in range(len(openers)):
        lists.tokens[middle + i] = openers[i]
    lists.used[0] = number + 1
    lists.offsets[number + 1] = end
    lists.openers[number] = len(openers)
    lists.slots[slot] = number
    return np.int32(number)


@njit(cache=True, nogil=True)
def _with_room(lists, tokens, count):  # type: ignore[no-untyped-def]
    """The lists with room for so many tokens in so many lists more."""
    kept, most = lists.tokens, lists.used[0] + count
    end = lists.offsets[lists.used[0]] + tokens
    if end > len(kept):
        kept = _longer(kept, 2 * end)
    lists = Lists(kept, lists.offsets, lists.openers, lists.slots, lists.used)
    return lists if most < len(lists.openers) else _rehashed(lists, 2 * most)


@njit(cache=True, nogil=True)
def _rehashed(lists, size):  # type: ignore[no-untyped-def]
    slots = 1
    while slots < 4 * size:
        slots *= 2
    offsets, openers = _longer(lists.offsets, size + 1), _longer(lists.openers, size)
    lists = Lists(lists.tokens, offsets, openers, np.full(slots, -1, np.int32), lists.used)
    for number in range(lists.used[0]):
        tokens = _list(lists, number)
        middle = len(tokens) - openers[number]
        lists.slots[_slot(lists, tokens[:middle], tokens[middle:])] = number
    return lists


@njit(cache=True, nogil=True)
def _longer(array, size):  # type: ignore[no-untyped-def]
    longer = np.empty(size, array.dtype)
    longer[: len(array)] = array
    return longer


@njit(cache=True, nogil=True)
def _slot(lists, tokens, openers):  # type: ignore[no-untyped-def]
    """Where the list is among those by hash, or would be."""
    code = _code(_code(np.uint64(len(openers)), tokens), openers)
    slot = np.int64(code & np.uint64(len(lists.slots) - 1))
    while lists.slots[slot] >= 0 and not _is(lists, lists.slots[slot], tokens, openers):
        slot = (slot + 1) & (len(lists.slots) - 1)
    return slot


@njit(cache=True, nogil=True)
def _code(code, tokens):  # type: ignore[no-untyped-def]
    """A sum, so that no token waits for the one before."""
    total = np.uint64(0)
    for i in range(len(tokens)):
        spread = np.uint64(tokens[i] + 1) * np.uint64(0x9E3779B97F4A7C15)
        total += spread ^ (spread >> np.uint64(29))
    code = (code ^ total) * np.uint64(0x9E3779B97F4A7C15)
    return code ^ (code >> np.uint64(29))


@njit(cache=True, nogil=True)
def _is(lists, number, tokens, openers):  # type: ignore[no-untyped-def]
    start, end = lists.offsets[number], lists.offsets[number + 1]
    if lists.openers[number] != len(openers) or end - start != len(tokens) + len(openers):
        return False
    middle = start + len(tokens)
    return _are_equal(lists.tokens[start:middle], tokens) and _are_equal(lists.tokens[middle:end], openers)


@njit(cache=True, nogil=True)
def _are_equal(some, others):  # type: ignore[no-untyped-def]
    same = 0
    while same < len(some) and some[same] == others[same]:
        same += 1
    return same == len(some)
