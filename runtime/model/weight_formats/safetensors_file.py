"""The tensors of a safetensors file."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open

from ...checkpoint_json import GET_IT_AGAIN
from ...errors import ConfigError
from .tensor_spec import Shape


class SafetensorsFile:
    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that is missing or incomplete."""
        if not path.exists():
            raise ConfigError(f"{path}: this file is missing, but the checkpoint's index names it.")
        try:
            self._file = cast(
                Any, safe_open(path, framework="pt", device="cpu")
            )  # the library's type hints are incomplete
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path}: not a whole safetensors file ({error}). {GET_IT_AGAIN}.") from None
        self.names: Set[str] = frozenset(self._file.keys())

    def stored_name(self, name: str) -> str:
        return name

    def describe(self, name: str) -> tuple[Shape, str]:
        part = self._file.get_slice(name)
        return tuple(part.get_shape()), part.get_dtype()

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor
