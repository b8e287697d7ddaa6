"""The token lists of each state, put together from its edges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from .lists import add_list, code_of_sums, with_capacity
from .unowned import unowned


class StateTables(NamedTuple):
    """The lists and the mask of each state, as `AutomatonTables` describes them."""

    lists: NDArray[np.int32]  # [all states, 3]: the lists SHARED, OWN and DECIDED
    mask: NDArray[np.int32]  # [all states]: the mask


class Kinds(NamedTuple):
    """Kinds of costly states: those of one kind treat quote-free tokens alike. `ends[i]` are the ends of
    three spans of `tokens`: tokens that differ from the kind's mask, undecided tokens and openers. Each
    span starts where the previous one ends."""

    masks: NDArray[np.int32]  # [kinds]: the mask of each kind
    tokens: NDArray[np.int32]
    ends: NDArray[np.int64]  # [kinds, 3]: ends of each kind's spans


@njit(cache=True, nogil=True)
def put_listed(lists, edges, walked, tables, max_tokens):
    """Sets the lists of walked states; of costly states only the allowed tokens, as `put_costly` sets the
    rest. Stops once there are more than `max_tokens`. Returns the lists."""
    done = 0
    while done < len(walked.states) and lists.offsets[lists.used[0]] <= max_tokens:
        lists = with_capacity(lists, edges.used[1], 2)
        done = _put_from(*unowned((lists, edges, walked, tables)), done, max_tokens)
    return lists


@njit(cache=True, nogil=True)
def _put_from(lists, edges, walked, tables, done, max_tokens):
    """Sets the lists from state number `done` on until the capacity or `max_tokens` is reached. Returns how
    many states are done. Does the work of `add_list` in place: compares and copies from the edges."""
    states, met, met_ends, costly = walked
    ends, codes, found = edges.ends, edges.codes, edges.tokens
    spans = np.empty((2 * edges.of_entry.shape[1] + 2, 2), np.int32)
    tokens, offsets, openers, slots, used = lists
    for i in range(done, len(states)):
        first = met_ends[i - 1] if i else 0
        for place in range(0, 2 if costly[i] else 4, 2):
            count = size = opening = 0
            total = opener_total = np.uint64(0)
            for part in range(1, 3) if place else range(1):
                for number in range(first, met_ends[i]):
                    edge = met[number]
                    length = ends[edge, part + 1] - ends[edge, part]
                    if length:
                        spans[count, 0], spans[count, 1] = ends[edge, part], length
                        count += 1
                        size += length
                        opening += length if part == 2 else 0
                        total += np.uint64(0) if part == 2 else codes[edge, part]
                        opener_total += codes[edge, part] if part == 2 else np.uint64(0)
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
            tables.lists[states[i], place] = slots[slot]
        if offsets[used[0]] > max_tokens:
            break
    return len(states)


@njit(cache=True, nogil=True)
def put_costly(lists, edges, walked, kinds, kind_of, tables, max_tokens):
    """Sets the masks and the remaining lists of costly states; `kind_of` is the kind of each. Stops once
    there are more than `max_tokens`. Returns the lists."""
    costly = np.flatnonzero(walked.costly)
    own = np.full(len(kinds.masks), -1, np.int32)
    for number in range(len(costly)):
        state, kind = walked.states[costly[number]], kind_of[number]
        undecided = _others(edges, walked, costly[number], 1)
        openers = _others(edges, walked, costly[number], 2)
        differing, more_undecided, more_openers = _spans(kinds.tokens, kinds.ends, kind)
        tables.mask[state] = kinds.masks[kind]
        if len(more_undecided) or len(more_openers):
            undecided = np.concatenate((undecided, more_undecided))
            openers = np.concatenate((openers, more_openers))
        lists = with_capacity(lists, len(differing) + len(undecided) + len(openers), 2)
        if own[kind] < 0:
            own[kind] = add_list(lists, differing, openers[:0])
        tables.lists[state, 1] = own[kind]
        tables.lists[state, 2] = add_list(lists, undecided, openers)
        if lists.offsets[lists.used[0]] > max_tokens:
            break
    return lists


@njit(cache=True, nogil=True)
def _others(edges, walked, number, part):
    """The undecided tokens (part 1) or openers (part 2) of a state that are not quote-free."""
    met = walked.met[walked.met_ends[number - 1] if number else 0 : walked.met_ends[number]]
    ends = edges.ends
    size = 0
    for edge in met:
        size += ends[edge, part + 1] - ends[edge, part]
    tokens = np.empty(size, np.int32)
    size = 0
    for edge in met:
        for place in range(ends[edge, part], ends[edge, part + 1]):
            tokens[size] = edges.tokens[place]
            size += 1
    return tokens


@njit(cache=True, nogil=True)
def _spans(tokens, ends, number):
    start = ends[number - 1, 2] if number else 0
    first, second, third = ends[number]
    return tokens[start:first], tokens[first:second], tokens[second:third]
