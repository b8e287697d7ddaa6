"""A model directory for tests of options, without weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_options import make_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path)
