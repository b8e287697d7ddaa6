"""Computes random numbers of the CPU kernels' Philox generator and Gumbel noise in functions of numba."""

import numba
import numpy as np
from arbora.kernels.sampling import math_cpu as sampling_math_cpu


@numba.njit
def _philox(c0, c1, c2, c3, seed):  # type: ignore[no-untyped-def]
    return sampling_math_cpu.philox(c0, c1, c2, c3, seed)


@numba.njit
def _gumbel(words):  # type: ignore[no-untyped-def]
    noise = np.empty(len(words), np.float32)
    for i in range(len(words)):
        noise[i] = sampling_math_cpu.gumbel(np.uint64(words[i]))
    return noise


def philox_with_numba(counter: list[int], seed: int) -> list[int]:
    return [int(word) for word in _philox(*(np.uint64(word) for word in counter), np.uint64(seed))]


def gumbel_with_numba(words: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> list[float]:
    return [float(value) for value in _gumbel(words)]
