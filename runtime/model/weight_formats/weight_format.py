"""The interface of weight formats, and the format of weights in 16 or 32 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

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


class Run(NamedTuple):
    """Outputs or inputs that ranks divide among themselves: numbers, or `units` heads of `size` numbers."""

    units: int
    size: int = 1


class Split(NamedTuple):
    """How ranks divide a projection: its outputs, which may be several runs, or its inputs, which are one."""

    along: Literal["outputs", "inputs"]
    runs: tuple[Run, ...]


class Projection(NamedTuple):
    """A matrix [outputs, inputs] of the decoder. `kind` is the name of its class in configs."""

    name: str
    """such as `model.layers.0.self_attn.q_proj`"""
    outputs: int
    inputs: int
    biased: bool = False
    kind: Literal["Linear", "Embedding"] = "Linear"
    split: Split | None = None
    """None: every rank has the whole projection"""


def by_outputs(name: str, runs: tuple[Run, ...], inputs: int, *, biased: bool = False) -> Projection:
    """A projection whose outputs ranks divide."""
    outputs = sum(run.units * run.size for run in runs)
    return Projection(name, outputs, inputs, biased, split=Split("outputs", runs))


def by_inputs(name: str, outputs: int, run: Run, *, biased: bool = False) -> Projection:
    """A projection whose inputs ranks divide, so that its results are to be summed."""
    return Projection(name, outputs, run.units * run.size, biased, split=Split("inputs", (run,)))


class TensorError(Exception):
    """A tensor of a projection can't be used because of its values: a scale is NaN, say.

    part: the end of the tensor's name, such as `scales` for `…q_proj.scales`
    problem: what is wrong and how to mend it, as the rest of a sentence that begins with the tensor's name
    """

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(part, problem)
        self.part, self.problem = part, problem


Stored = Mapping[str, torch.Tensor]
"""a projection's tensors as stored, by the last part of their names, such as `weight_scale`"""


class CodedRows(NamedTuple):
    """Some outputs of a weight: (codes - zeros) * scales + offsets."""

    codes: torch.Tensor
    """[n, inputs], uint8 or FP8 E4M3: the code of each weight"""
    scales: torch.Tensor
    """[n or 1, groups]: the scales"""
    zeros: torch.Tensor | int = 0
    """[n or 1, groups]: the zero points"""
    offsets: torch.Tensor | None = None
    """[n, groups]: the offsets; None: 0"""
    factors: torch.Tensor | None = None
    """float32 [1 or 2, n, inputs / 256], if the weight has factors (see `CodedShape.has_factors`)"""


@dataclass(frozen=True)
class Groups:
    size: int
    """number of inputs in a group"""
    index: torch.Tensor | None
    """int64 [inputs], the group of each input; None: every group is a run of `size` inputs"""


@dataclass(frozen=True)
class CodedWeight:
    """A quantized weight as stored. `rows` decodes a run of outputs that begins at a multiple of 128."""

    bits: Literal[4, 5, 6, 8] | None
    """bits of a code; None: FP8"""
    groups: Groups
    zero: int | None
    """the zero point, if it is the same for all groups and there are no offsets"""
    scale_part: str
    """the end of the name of the tensor with the scales and offsets: `scales` for `…q_proj.scales`"""
    rows: Callable[[slice], CodedRows]
    rounds_activations: bool = False
    """whether the checkpoint is meant to be served with activations rounded to the type of the codes"""
    has_factors: bool = False
    """whether `rows` decodes factors, too"""


class WeightFormat(Protocol):
    """One way to store a projection."""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        """The projection's tensors by the last part of their names. The bias is not included."""

    def read(self, stored: Stored, outputs: int, inputs: int) -> torch.Tensor | CodedWeight:
        """The weight. A tensor has the shape [outputs, inputs].

        Raises TensorError for values that no valid checkpoint has.
        """


@dataclass(frozen=True)
class FloatFormat:
    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        return {"weight": TensorSpec(((projection.outputs, projection.inputs),), tuple(FLOATS))}

    def read(self, stored: Stored, outputs: int, inputs: int) -> torch.Tensor:
        return stored["weight"]


ChooseFormat = Callable[[Projection], WeightFormat]
