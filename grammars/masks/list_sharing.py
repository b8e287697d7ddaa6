"""Replaces lists of undecided tokens by longer lists that contain them: the stack may decide on more
tokens."""

from __future__ import annotations

import numpy as np

from ...runtime.automaton_format import LIST_COLUMNS, OPENERS, START, TOKENS
from ..jit import njit
from .lists import list_of

_MIN_TOKENS = 64  # tokens of the shortest list for which a search is worthwhile
_DECIDED, _OPENER = 1, 2
_MAX_GROWTH = 4  # maximal factor of a list's length: the stack's decision takes time for each token


@njit(cache=True, nogil=True)
def share_decided(lists, lists_of_state, marks):
    """Replaces lists in `lists_of_state[:, 2]`, of int32 [states, 3], by longer lists that contain them.
    `marks`, int8 [tokens], are 0 before and after.

    An opener may become a token that the stack always decides, but no other token may become an opener,
    because the masks are wrong about them.
    """
    is_decided = np.zeros(lists.used[0], np.bool_)
    for state in range(len(lists_of_state)):
        is_decided[lists_of_state[state, 2]] = True
    sizes = np.diff(lists.offsets[: lists.used[0] + 1])
    chosen = np.flatnonzero(is_decided & (sizes >= _MIN_TOKENS))
    longest_first = chosen[np.argsort(-sizes[chosen], kind="mergesort")]
    replacement = np.arange(lists.used[0])
    for i in range(len(longest_first)):
        whole = longest_first[i]
        if replacement[whole] != whole:
            continue
        tokens = lists.tokens[lists.offsets[whole] : lists.offsets[whole + 1]]
        for place in range(len(tokens)):
            marks[tokens[place]] = _OPENER if place >= len(tokens) - lists.openers[whole] else _DECIDED
        for part in longest_first[i + 1 :]:
            if sizes[part] * _MAX_GROWTH < sizes[whole]:
                break
            if replacement[part] == part and _are_marked(lists, part, marks):
                replacement[part] = whole
        for token in tokens:
            marks[token] = 0
    for state in range(len(lists_of_state)):
        lists_of_state[state, 2] = replacement[lists_of_state[state, 2]]


@njit(cache=True, nogil=True)
def _are_marked(lists, number, marks):
    end = lists.offsets[number + 1]
    for place in range(lists.offsets[number], end):
        mark = marks[lists.tokens[place]]
        if mark != _DECIDED and (mark != _OPENER or place < end - lists.openers[number]):
            return False
    return True


@njit(cache=True, nogil=True)
def renumber(lists, lists_of_state):
    """Keeps list 0 and the lists that states use, and renumbers `lists_of_state` to match. Returns the lists,
    int32 [lists, LIST_COLUMNS] without `SAFE_DEPTH`, and their tokens."""
    number = np.full(lists.used[0], -1, np.int32)
    number[0] = 0
    for state in range(len(lists_of_state)):
        for place in range(3):
            number[lists_of_state[state, place]] = 0
    kept = np.flatnonzero(number == 0)
    number[kept] = np.arange(len(kept))
    sizes = lists.offsets[kept + 1] - lists.offsets[kept]
    columns = np.zeros((len(kept), LIST_COLUMNS), np.int32)
    tokens = np.empty(sizes.sum(), np.int32)
    start = 0
    for i in range(len(kept)):
        tokens[start : start + sizes[i]] = list_of(lists, kept[i])
        columns[i, START] = start
        columns[i, TOKENS] = sizes[i] - lists.openers[kept[i]]
        columns[i, OPENERS] = lists.openers[kept[i]]
        start += sizes[i]
    for state in range(len(lists_of_state)):
        for place in range(3):
            lists_of_state[state, place] = number[lists_of_state[state, place]]
    return columns, tokens
