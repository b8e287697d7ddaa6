"""Lists of tokens; equal lists are stored once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from ..jit.arrays import longer

_FIRST_TOKENS = 1 << 14
_FIRST_LISTS = 1 << 9


class Lists(NamedTuple):
    """List i has the tokens `tokens[offsets[i]:offsets[i + 1]]`; list 0 is empty.

    Its last `openers[i]` tokens are openers, which need free places on the stack. Growing makes new `Lists`,
    which may share memory with the old ones.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    openers: NDArray[np.int32]
    slots: NDArray[np.int32]  # hash table of lists, -1 where empty
    used: NDArray[np.int64]  # [1]: number of lists in use


@njit(cache=True, nogil=True)
def no_lists():
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
def list_of(lists, number):
    return lists.tokens[lists.offsets[number] : lists.offsets[number + 1]]


@njit(cache=True, nogil=True)
def add_list(lists, tokens, openers):
    """Returns the number of this list, and adds the list if it is new. The caller ensures the capacity."""
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
def with_capacity(lists, tokens, count):
    """The lists with capacity for `count` more lists, of `tokens` tokens in total."""
    kept, most = lists.tokens, lists.used[0] + count
    end = lists.offsets[lists.used[0]] + tokens
    if end > len(kept):
        kept = longer(kept, 2 * end)
    lists = Lists(kept, lists.offsets, lists.openers, lists.slots, lists.used)
    return lists if most < len(lists.openers) else _rehash(lists, 2 * most)


@njit(cache=True, nogil=True)
def _rehash(lists, size):
    slots = 1
    while slots < 4 * size:
        slots *= 2
    offsets, openers = longer(lists.offsets, size + 1), longer(lists.openers, size)
    lists = Lists(lists.tokens, offsets, openers, np.full(slots, -1, np.int32), lists.used)
    for number in range(lists.used[0]):
        tokens = list_of(lists, number)
        middle = len(tokens) - openers[number]
        lists.slots[_slot(lists, tokens[:middle], tokens[middle:])] = number
    return lists


@njit(cache=True, nogil=True)
def _slot(lists, tokens, openers):
    """The hash table's slot of this list, or the empty slot for it."""
    code = code_of_sums(len(openers), sum_of(tokens), sum_of(openers))
    slot = np.int64(code & np.uint64(len(lists.slots) - 1))
    while lists.slots[slot] >= 0 and not _is(lists, lists.slots[slot], tokens, openers):
        slot = (slot + 1) & (len(lists.slots) - 1)
    return slot


@njit(nogil=True, forceinline=True)
def code_of(token):
    spread = np.uint64(token + 1) * np.uint64(0x9E3779B97F4A7C15)
    return spread ^ (spread >> np.uint64(29))


@njit(cache=True, nogil=True)
def sum_of(tokens):
    """The sum of the codes of tokens: unlike a chained hash, additions do not wait for each other."""
    total = np.uint64(0)
    for i in range(len(tokens)):
        total += code_of(tokens[i])
    return total


@njit(cache=True, nogil=True)
def code_of_sums(count, total, opener_total):
    """The hash of a list with `count` openers, from the sums of its other tokens and of its openers."""
    code = np.uint64(count)
    for each in (total, opener_total):
        code = (code ^ each) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    return code


@njit(cache=True, nogil=True)
def _is(lists, number, tokens, openers):
    start, end = lists.offsets[number], lists.offsets[number + 1]
    if lists.openers[number] != len(openers) or end - start != len(tokens) + len(openers):
        return False
    middle = start + len(tokens)
    return _are_equal(lists.tokens[start:middle], tokens) and _are_equal(lists.tokens[middle:end], openers)


@njit(cache=True, nogil=True)
def _are_equal(some, others):
    same = 0
    while same < len(some) and some[same] == others[same]:
        same += 1
    return same == len(some)
