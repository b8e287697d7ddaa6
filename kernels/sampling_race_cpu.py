# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The Gumbel-max race among tokens, for numba: the highest score wins, the lower id among equal scores."""

import numpy as np

from .sampling_jit import compiled
from .sampling_math_cpu import (
    F32,
    KEY_OF_MINUS_INFINITY,
    LARGEST_GUMBEL,
    gumbel,
    order_key,
    philox_word,
    value_of_key,
)
from .sampling_select_cpu import BLOCK

_WORD_UNIT = F32(2.0**-32)
_MARGIN = F32(1.001)
"""covers the rounding of exp"""


@compiled
def race(ids, values, largest, inverse, seed, position):
    """The winner among candidates in order of rising id."""
    words, scores = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32)
    best, winner = F32(-np.inf), ids[0]
    for start in range(0, len(ids), BLOCK):
        n = min(BLOCK, len(ids) - start)
        for i in range(n):
            words[i] = philox_word(seed, position, np.uint64(ids[start + i]))
        score, at = best_score(words[:n], values[start : start + n], largest, inverse, scores)
        if score > best:
            best, winner = score, ids[start + at]
    return winner


@compiled
def race_of_all(x, maxima, largest, inverse, seed, position, leader):
    """The winner among all tokens, of which leader has the largest logit.

    A token's noise is at most -log(u), so a block is looked into only if its least u is below
    exp(its largest distance - the best score so far).
    """
    words, scores = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32)
    best, winner = gumbel(philox_word(seed, position, np.uint64(leader))), leader
    for block in range(len(maxima)):
        lead = (value_of_key(maxima[block]) - largest) * inverse - best
        if lead + LARGEST_GUMBEL < 0:
            continue
        start, n = block * BLOCK, min(BLOCK, len(x) - block * BLOCK)
        for i in range(n):
            words[i] = philox_word(seed, position, np.uint64(start + i))
        if F32(least(words[:n])) * _WORD_UNIT > F32(np.exp(lead)) * _MARGIN:
            continue
        score, at = best_score(words[:n], x[start : start + n], largest, inverse, scores)
        if score > best or (score == best and start + at < winner):
            best, winner = score, start + at
    return winner


@compiled
def least(words):
    smallest = np.uint32(0xFFFFFFFF)
    for word in words:
        smallest = min(smallest, word)
    return smallest


@compiled
def best_score(words, values, largest, inverse, scores):
    """The highest score and the first index that has it; scores is scratch."""
    high = np.int32(KEY_OF_MINUS_INFINITY)
    for i in range(len(words)):
        scores[i] = (values[i] - largest) * inverse + gumbel(np.uint64(words[i]))
    for i in range(len(words)):
        high = max(high, order_key(scores[i]))
    for i in range(len(words)):
        if order_key(scores[i]) == high:
            return scores[i], i
    return F32(-np.inf), 0
