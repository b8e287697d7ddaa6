"""Finds tokens that an earlier prompt has too, at other positions."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ....runtime.messages import Tokens

Hashes: TypeAlias = npt.NDArray[np.uint64]
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(31)
_NOT_ZERO = np.uint64(1 << 63)


def count_repeated_tokens(tokens: Tokens, earlier: Tokens, run: int) -> int:
    """How many of the tokens are part of `run` consecutive tokens that `earlier` has too."""
    hashes, others = _run_hashes(tokens, run), _run_hashes(earlier, run)
    if not len(hashes) or not len(others):
        return 0
    starts = np.flatnonzero(_among(hashes, others))
    covered = np.zeros(len(hashes) + run, np.int32)
    covered[starts] += 1
    covered[starts + run] -= 1
    return int(np.count_nonzero(np.cumsum(covered)))


def _run_hashes(tokens: Tokens, run: int) -> Hashes:
    """A hash of each `run` consecutive tokens, made of the hashes of two shorter runs that cover them."""
    hashes = np.frombuffer(tokens, "<i4").astype(np.uint64)
    size = 1
    while size < run and len(hashes):
        step = min(size, run - size)
        hashes = hashes[: max(0, len(hashes) - step)] * _FIRST + hashes[step:] * _SECOND
        hashes ^= hashes >> _SHIFT
        size += step
    return hashes | _NOT_ZERO


def _among(values: Hashes, others: Hashes) -> npt.NDArray[np.bool_]:
    """Marks the values that are among the others: by a hash table, or a search where several share a slot."""
    mask = np.uint64((1 << (len(others).bit_length() + 2)) - 1)
    table = np.zeros(int(mask) + 1, np.uint64)
    table[others & mask] = others
    slots = table[values & mask]
    found: npt.NDArray[np.bool_] = slots == values
    unsure = np.flatnonzero(~found & (slots != 0))
    ordered = np.sort(others)
    at = np.minimum(np.searchsorted(ordered, values[unsure]), len(ordered) - 1)
    found[unsure] = ordered[at] == values[unsure]
    return found
