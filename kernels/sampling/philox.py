"""Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011)."""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW_WORD = 0xFFFFFFFF


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Random words [..., 4] for counter [..., 4] under key [..., 2]; leading dimensions broadcast."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (key[..., i].astype(np.uint64) for i in range(2))
    low, half = np.uint64(LOW_WORD), np.uint64(32)
    for _ in range(ROUNDS):
        a, b = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (b >> half) ^ c1 ^ k0, b & low, (a >> half) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + np.uint64(KEY_STEPS[0])) & low, (k1 + np.uint64(KEY_STEPS[1])) & low
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


def first_words(seed: int, position: int, tokens: NDArray[np.integer]) -> NDArray[np.uint32]:
    """First random word [n] for tokens [n]: key = the seed's 64 bits, counter = (position, token, 0, 0)."""
    counter = np.zeros((len(tokens), 4), np.uint32)
    counter[:, 0] = position
    counter[:, 1] = tokens
    key = np.array([seed & LOW_WORD, seed >> 32 & LOW_WORD], np.uint32)
    words: NDArray[np.uint32] = philox4x32(counter, key)[:, 0]
    return words
