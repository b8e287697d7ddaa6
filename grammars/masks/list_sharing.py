"""Lists of undecided tokens that serve for other ones: the stack may as well decide on more tokens."""

from __future__ import annotations

import numpy as np
from numba import njit

_FEWEST = 64  # tokens of a list that is worth a search
_MOST_TIMES = 4  # as many tokens as the list that is replaced, as each takes time


@njit(cache=True, nogil=True)
def share_decided(lists, of_state, marks):  # type: ignore[no-untyped-def]
    """Changes `of_state[:, 2]`, of int32 [states, 3], to longer lists where these have all the tokens of a
    list. Lists with openers stay. `marks`, bool [tokens], are false before and after."""
    is_decided = np.zeros(lists.used[0], np.bool_)
    for state in range(len(of_state)):
        is_decided[of_state[state, 2]] = True
    sizes = np.diff(lists.offsets[: lists.used[0] + 1])
    chosen = np.flatnonzero(is_decided & (lists.openers[: lists.used[0]] == 0) & (sizes >= _FEWEST))
    longest_first = chosen[np.argsort(-sizes[chosen], kind="mergesort")]
    instead = np.arange(lists.used[0])
    for i in range(len(longest_first)):
        whole = longest_first[i]
        if instead[whole] != whole:
            continue
        tokens = lists.tokens[lists.offsets[whole] : lists.offsets[whole + 1]]
        for token in tokens:
            marks[token] = True
        for part in longest_first[i + 1 :]:
            if sizes[part] * _MOST_TIMES < sizes[whole]:
                break
            if instead[part] == part and _are_marked(lists, part, marks):
                instead[part] = whole
        for token in tokens:
            marks[token] = False
    for state in range(len(of_state)):
        of_state[state, 2] = instead[of_state[state, 2]]


@njit(cache=True, nogil=True)
def _are_marked(lists, number, marks):  # type: ignore[no-untyped-def]
    for place in range(lists.offsets[number], lists.offsets[number + 1]):
        if not marks[lists.tokens[place]]:
            return False
    return True


@njit(cache=True, nogil=True)
def renumber(lists, of_state):  # type: ignore[no-untyped-def]
    """Offsets, tokens and numbers of openers of those lists that states have, and of list 0."""
    number = np.full(lists.used[0], -1, np.int32)
    number[0] = 0
    for state in range(len(of_state)):
        for place in range(3):
            number[of_state[state, place]] = 0
    kept = np.flatnonzero(number == 0)
    number[kept] = np.arange(len(kept))
    offsets = np.zeros(len(kept) + 1, np.int32)
    for i in range(len(kept)):
        offsets[i + 1] = offsets[i] + lists.offsets[kept[i] + 1] - lists.offsets[kept[i]]
    tokens = np.empty(offsets[-1], np.int32)
    for i in range(len(kept)):
        start = lists.offsets[kept[i]]
        tokens[offsets[i] : offsets[i + 1]] = lists.tokens[start : lists.offsets[kept[i] + 1]]
    for state in range(len(of_state)):
        for place in range(3):
            of_state[state, place] = number[of_state[state, place]]
    return offsets, tokens, lists.openers[kept]
