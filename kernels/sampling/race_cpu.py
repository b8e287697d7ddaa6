"""The Gumbel-max race among tokens, for numba: the highest score wins, the lower id among equal scores."""

import numpy as np

from ..common.jit import compiled
from .math_cpu import (
    F32,
    KEY_OF_MINUS_INFINITY,
    MAX_GUMBEL,
    gumbel,
    order_key,
    philox_word,
    value_of_key,
)
from .select_cpu import BLOCK, take_block

_WORD_UNIT = F32(2.0**-32)
_MINUS_INFINITY = F32(-np.inf)
_MARGIN = F32(1.001)
"""factor that allows for the rounding of exp"""


@compiled
def race(x, maxima, largest, inverse, seed, position, leader, cut, last):
    """The winner among the tokens that the cut keeps; leader is the one with the largest logit.

    A token's noise is at most -log(u), so a block is skipped unless its smallest u is below
    exp(its largest distance - the best score so far).
    """
    words, scores = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32)
    best, winner = gumbel(philox_word(seed, position, np.uint64(leader))), leader
    for block in range(len(maxima)):
        lead = (value_of_key(maxima[block]) - largest) * inverse - best
        if maxima[block] < cut or lead + MAX_GUMBEL < 0:
            continue
        values, start = take_block(x, block), block * BLOCK
        if F32(draw(seed, position, start, words)) * _WORD_UNIT > F32(np.exp(lead)) * _MARGIN:
            continue
        score_kept(words, values, largest, inverse, cut, last - start, scores)
        score, at = find_best(scores[: len(values)])
        if score > best or (score == best and start + at < winner):
            best, winner = score, start + at
    return winner


@compiled
def draw(seed, position, start, words):
    """Fill words with the random words of BLOCK tokens; return the smallest."""
    least = np.uint32(0xFFFFFFFF)
    for i in range(BLOCK):
        words[i] = philox_word(seed, position, np.uint64(start + i))
    for i in range(BLOCK):
        least = min(least, words[i])
    return least


@compiled
def score_kept(words, values, largest, inverse, cut, last, scores):
    """Fills `scores` for values above the cut, and at it up to index `last`. Others get minus infinity."""
    for i in range(len(values)):
        score = (values[i] - largest) * inverse + gumbel(np.uint64(words[i]))
        key = order_key(values[i])
        scores[i] = score if (key > cut) | ((key == cut) & (i <= last)) else _MINUS_INFINITY


@compiled
def find_best(scores):
    """The highest score and its first index."""
    high = np.int32(KEY_OF_MINUS_INFINITY)
    for i in range(len(scores)):
        high = max(high, order_key(scores[i]))
    for i in range(len(scores)):
        if order_key(scores[i]) == high:
            return scores[i], i
    return _MINUS_INFINITY, 0
