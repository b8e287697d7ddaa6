"""Finds markers that may be split over the pieces of a stream."""

from __future__ import annotations


def overlap(text: str, marker: str) -> int:
    """Length of the longest suffix of `text` that begins `marker` without completing it."""
    sizes = range(min(len(text), len(marker) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)
