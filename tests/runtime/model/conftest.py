"""The checkpoint that most tests of whole steps run."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import WINDOWED, random_model, save_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small qwen3 with a window in every other layer."""
    return save_model(random_model("qwen3", **WINDOWED), tmp_path_factory.mktemp("model"))
