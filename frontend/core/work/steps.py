"""Work in steps. Between two steps it can stop, or wait for other work."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]  # yields between two steps, returns the result


def run_now(steps: Steps[T]) -> T:
    """The result of all steps, on the calling thread."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
