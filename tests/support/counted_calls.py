"""Bounds the work of a piece of code by the calls that it makes, which no slow machine changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def at_most_calls(limit: int) -> Iterator[None]:
    """Fails as soon as this thread has made more calls than that, of functions of Python and of C."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > limit:
            sys.setprofile(None)
            pytest.fail(f"more than {limit} calls")  # no Exception: the code may catch those

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert calls <= limit
