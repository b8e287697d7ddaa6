"""Servers of a small real model, started by its short name. They run alone, with `make test-models`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_model import NAME, real_file
from served import Served, serve

MEMORY = ("--kv-memory", "256MiB")


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Served]:
    """Served with the defaults of a user's server."""
    real_file()
    with serve(Path(NAME), "--dtype", "auto", *MEMORY) as served:
        yield served


@pytest.fixture(scope="session")
def exact_smollm2() -> Iterator[Served]:
    """Replies depend on nothing but the request."""
    real_file()
    with serve(Path(NAME), "--dtype", "auto", "--deterministic", *MEMORY) as served:
        yield served
