"""What `bench/kernels.py` measures: a kernel's run, and the bytes and arithmetic that it needs at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 16, 8, 128, 16
WORKING_SET = 400_000_000  # bytes of KV or weights that a case cycles through, more than a core's caches hold


@dataclass(frozen=True)
class Case:
    name: str
    turn: Callable[[int], object]
    """one run; the number picks which of several copies of the data it reads"""
    read: int = 0
    """bytes"""
    flops: int = 0
