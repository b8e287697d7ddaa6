"""Masks, banned tokens, bias and penalties on one row's logits, for numba."""

import numpy as np

from ..common.jit import compiled
from .math_cpu import F32

_MINUS_INFINITY = F32(-np.inf)


@compiled
def apply_mask(x, words):
    """Set the logits whose bit is 0 to minus infinity."""
    for word in range(len(words)):
        bits = np.uint32(words[word])
        start = 32 * word
        if start + 32 <= len(x):
            for i in range(32):
                x[start + i] = x[start + i] if (bits >> np.uint32(i)) & np.uint32(1) else _MINUS_INFINITY
        else:
            for i in range(len(x) - start):
                x[start + i] = x[start + i] if (bits >> np.uint32(i)) & np.uint32(1) else _MINUS_INFINITY


@compiled
def ban(x, ids):
    for token in ids:
        x[token] = _MINUS_INFINITY


@compiled
def add_bias(x, ids, values):
    for i in range(len(ids)):
        x[ids[i]] += values[i]


@compiled
def penalise(x, prompt_seen, counts, repetition, presence, frequency):
    for i in range(len(x)):
        value, count = x[i], counts[i]
        seen = count > 0 or (np.uint32(prompt_seen[i >> 5]) >> np.uint32(i & 31)) & np.uint32(1)
        if seen:
            value = value / repetition if value > 0 else value * repetition
            value = value - frequency * F32(count)
            x[i] = value - presence if count > 0 else value
