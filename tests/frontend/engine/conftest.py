"""A small model, and an `Engine` of each file's own that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import arbora
import pytest
from tiny_checkpoint import write_tiny_checkpoint


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny"))


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[arbora.Engine]:
    options: Any = {"device": "cpu", "kv_memory": "4MiB", "max_waiting": 4, "debug": "invariants"}
    with arbora.Engine(model, **options) as engine:
        yield engine
