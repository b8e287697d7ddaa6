"""Configurations from the command line, for a model directory without a model."""

from __future__ import annotations

import shutil
from pathlib import Path

from arbora.frontend.cli.main import build_parser, serve_config
from arbora.runtime.config import BUILTIN_MODEL, ServeConfig


def make_model(parent: Path) -> Path:
    directory = parent / "tiny-model"
    directory.mkdir()
    shutil.copy(BUILTIN_MODEL / "config.json", directory)
    (directory / "model.safetensors").touch()
    (directory / "tokenizer.json").touch()
    return directory


def configured(*flags: str | Path, **environment: str) -> ServeConfig:
    parsed = build_parser().parse_args(["serve", *map(str, flags)])
    return serve_config(vars(parsed), environment)
