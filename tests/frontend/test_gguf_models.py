"""GGUF files are refused with what to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from arbora.frontend.model_source import find_model
from arbora.runtime.errors import ConfigError

INSTEAD = "GGUF is not supported: use the model's safetensors checkpoint"


def test_a_gguf_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.Q4_K_M.gguf"
    file.touch()
    with pytest.raises(ConfigError, match=INSTEAD):
        find_model(str(file))


def test_a_directory_of_gguf_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "model.Q4_K_M.gguf").touch()
    with pytest.raises(ConfigError, match=INSTEAD):
        find_model(str(tmp_path))
