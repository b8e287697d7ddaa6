"""Finds tokens that an earlier prompt has too, at other positions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...runtime.messages import Tokens

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def repeated_tokens(tokens: Tokens, earlier: Tokens, run: int) -> int:
    """How many of the tokens are part of `run` consecutive tokens that `earlier` has too."""
    hashes, others = _run_hashes(tokens, run), _run_hashes(earlier, run)
    if not len(hashes) or not len(others):
        return 0
    covered = np.zeros(len(hashes) + run, np.int64)
    starts = np.flatnonzero(np.isin(hashes, others))
    covered[starts] += 1
    np.subtract.at(covered, starts + run, 1)
    return int(np.count_nonzero(np.cumsum(covered)))


def _run_hashes(tokens: Tokens, run: int) -> npt.NDArray[np.uint64]:
    """A hash of each `run` consecutive tokens."""
    ids = np.frombuffer(tokens, "<i4").astype(np.uint64)
    count = max(0, len(ids) - run + 1)
    hashes = np.zeros(count, np.uint64)
    for offset in range(run):
        hashes = hashes * _FACTOR + ids[offset : offset + count]
        hashes ^= hashes >> np.uint64(29)
    return hashes
