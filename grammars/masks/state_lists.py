"""The lists of each state, put together of its branches, or of what differs from another state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .lists import code_of_sums, list_of, put, with_room
from .unowned import unowned


class Kinds(NamedTuple):
    """What states in strings do with plain tokens. `ends[i]` are the ends of the spans of `tokens` that
    differ from the kind's mask, are undecided, and are openers; each begins where the one before ends."""

    masks: NDArray[np.int32]  # [kinds]
    tokens: NDArray[np.int32]
    ends: NDArray[np.int64]  # [kinds, 3]


@njit(cache=True, nogil=True)
def put_listed(lists, branches, walked, states, of_state, room):  # type: ignore[no-untyped-def]
    """Notes in `of_state`, int32 [all states, 3], the lists of what was walked from states [n]. Of dear ones
    only what is allowed: `put_dear` sees to the rest. Stops where there are more than `room` tokens."""
    done = 0
    while done < len(states) and lists.offsets[lists.used[0]] <= room:
        lists = with_room(lists, branches.used[1], 2)
        done = _put_on(*unowned((lists, branches, walked, states, of_state)), done, room)  # type: ignore[call-arg]
    return lists


@njit(cache=True, nogil=True)
def _put_on(lists, branches, walked, states, of_state, done, room):  # type: ignore[no-untyped-def]
    """As `put` for what the branches of each state hold, which is compared and copied from there. Returns how
    many states are done when there is no room, or too much."""
    met, met_ends, dear = walked
    ends, codes, found = branches.ends, branches.codes, branches.tokens
    spans = np.empty((2 * branches.of_entry.shape[1] + 2, 2), np.int32)
    tokens, offsets, openers, slots, used = lists
    for i in range(done, len(states)):
        first = met_ends[i - 1] if i else 0
        for place in range(0, 2 if dear[i] else 4, 2):
            count = size = opening = 0
            total = opener_total = np.uint64(0)
            for part in range(1, 3) if place else range(1):
                for number in range(first, met_ends[i]):
                    branch = met[number]
                    length = ends[branch, part + 1] - ends[branch, part]
                    if length:
                        spans[count, 0], spans[count, 1] = ends[branch, part], length
                        count += 1
                        size += length
                        opening += length if part == 2 else 0
                        total += np.uint64(0) if part == 2 else codes[branch, part]
                        opener_total += codes[branch, part] if part == 2 else np.uint64(0)
            if size == 0:
                continue
            if offsets[used[0]] + size > len(tokens) or used[0] + 1 >= len(openers):
                return i
            code = code_of_sums(opening, total, opener_total)
            slot = np.int64(code & np.uint64(len(slots) - 1))
            while slots[slot] >= 0:
                number = slots[slot]
                start, differing = offsets[number], np.int32(0)
                if openers[number] == opening and offsets[number + 1] - start == size:
                    for span in range(count):
                        for k in range(spans[span, 1]):
                            differing |= tokens[start + k] ^ found[spans[span, 0] + k]
                        start += spans[span, 1]
                    if differing == 0:
                        break
                slot = (slot + 1) & (len(slots) - 1)
            if slots[slot] < 0:
                number = used[0]
                start = offsets[number]
                for span in range(count):
                    for k in range(spans[span, 1]):
                        tokens[start + k] = found[spans[span, 0] + k]
                    start += spans[span, 1]
                used[0] = number + 1
                offsets[number + 1] = start
                openers[number] = opening
                slots[slot] = number
            of_state[states[i], place] = slots[slot]
        if offsets[used[0]] > room:
            break
    return len(states)


@njit(cache=True, nogil=True)
def put_dear(lists, branches, walked, states, kinds, kind, of_state, mask_of_state, room):  # type: ignore[no-untyped-def]
    """Adds to what was walked from states [n] what their kinds do; `kind` is that of each dear one."""
    dear = np.flatnonzero(walked.dear)
    own = np.full(len(kinds.masks), -1, np.int32)
    for number in range(len(dear)):
        state, its_kind = states[dear[number]], kind[number]
        undecided = _others(branches, walked, dear[number], 1)
        openers = _others(branches, walked, dear[number], 2)
        differing, plain_undecided, plain_openers = _spans(kinds.tokens, kinds.ends, its_kind)
        mask_of_state[state] = kinds.masks[its_kind]
        if len(plain_undecided) or len(plain_openers):
            undecided = np.concatenate((undecided, plain_undecided))
            openers = np.concatenate((openers, plain_openers))
        lists = with_room(lists, len(differing) + len(undecided) + len(openers), 2)
        if own[its_kind] < 0:
            own[its_kind] = put(lists, differing, openers[:0])
        of_state[state, 1] = own[its_kind]
        of_state[state, 2] = put(lists, undecided, openers)
        if lists.offsets[lists.used[0]] > room:
            break
    return lists


@njit(cache=True, nogil=True)
def _others(branches, walked, number, part):  # type: ignore[no-untyped-def]
    """What is undecided, part 1, or openers, part 2, among the tokens that are not plain."""
    met = walked.met[walked.met_ends[number - 1] if number else 0 : walked.met_ends[number]]
    ends = branches.ends
    size = 0
    for branch in met:
        size += ends[branch, part + 1] - ends[branch, part]
    tokens = np.empty(size, np.int32)
    size = 0
    for branch in met:
        for place in range(ends[branch, part], ends[branch, part + 1]):
            tokens[size] = branches.tokens[place]
            size += 1
    return tokens


@njit(cache=True, nogil=True)
def put_like(lists, walked, states, likes, of_state, mask_of_state, marks, room):  # type: ignore[no-untyped-def]
    """Gives states [n] all that those have which they are like, and what differs. `marks`, bool [tokens], are
    false before and after."""
    for i in range(len(states)):
        state, like = states[i], likes[i]
        differing, undecided, openers = _spans(walked.tokens, walked.ends, i)
        mask_of_state[state] = mask_of_state[like]
        of_state[state, 0] = of_state[like, 0]
        own = list_of(lists, of_state[like, 1])
        if len(own):
            differing = apart(own, differing, marks)
        decided = of_state[like, 2]
        if len(undecided) or len(openers):
            both = list_of(lists, decided)
            below = len(both) - lists.openers[decided]
            undecided = np.concatenate((both[:below], undecided))
            openers = np.concatenate((both[below:], openers))
            lists = with_room(lists, len(undecided) + len(openers), 1)
            decided = put(lists, undecided, openers)
        lists = with_room(lists, len(differing), 1)
        of_state[state, 1] = put(lists, differing, openers[:0])
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
