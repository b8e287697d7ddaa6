"""The form that a tensor of a checkpoint must have."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
GET_FILE_AGAIN = "Copy or download the file again"

Shape = tuple[int, ...]


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no value is NaN or infinite."""
    # If the sum is finite, all values are. It takes a sixth of the time of `isfinite`.
    return math.isfinite(tensor.sum(dtype=torch.float32)) or bool(tensor.isfinite().all())


class TensorSpec(NamedTuple):
    """The shapes and dtypes that a tensor may have in a checkpoint."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = tuple(FLOATS)
    """as safetensors or GGUF names them, such as `I32`"""
    optional: bool = False

    def __str__(self) -> str:
        return f"{' or '.join(str(list(shape)) for shape in self.shapes)} of {', '.join(self.dtypes)}"
