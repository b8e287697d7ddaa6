"""Fixtures that several files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import interpreted_triton  # noqa: F401 (first: others may import Triton)
import pytest
from served import Served, serve, write_served_checkpoint


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served_checkpoint(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def served(served_model: Path) -> Iterator[Served]:
    """One server with all its processes, for every test that leaves it as it was."""
    with serve(served_model) as server:
        yield server
