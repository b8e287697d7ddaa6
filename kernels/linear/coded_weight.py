"""Weights stored as codes and scales, and what their products have in common."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch

CPU = torch.device("cpu")
FACTOR_INPUTS = 256
"""inputs that share a factor, see `CodedShape.has_factors`"""


class CodedShape(NamedTuple):
    """w[o, i] = codes[o, i] * scales[o, i // group] + offsets[o, i // group]"""

    outputs: int
    inputs: int
    bits: int | None
    """4 or 8, of unsigned codes; 5 or 6 on CPUs, with factors; None: FP8 (E4M3)"""
    group: int
    """inputs that share a scale; the last group may be smaller"""
    zero: int | None
    """all offsets are -zero * scale; None: they are given. FP8: 0"""
    has_factors: bool = False
    """whether scales, and offsets, are integers from -128 to 127 times a factor, which all groups of
    FACTOR_INPUTS inputs share; CPU only"""

    @property
    def groups(self) -> int:
        return -(-self.inputs // self.group)


class CodedProduct(Protocol):
    """y = x wᵀ + bias for a coded weight w."""

    shape: CodedShape

    @property
    def nbytes(self) -> int:
        """Bytes of the stored weight, with its bias and the order of its inputs."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, inputs], float32, bfloat16 or float16 → [rows, outputs], same dtype."""

    def rows(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns the stored weights of these outputs, [n, inputs], in the order of x. ids: int32 or int64
        [n], contiguous; a program does not check them."""


class CodedPacker(Protocol):
    """Fills the stored form of a weight, some outputs at a time."""

    def __init__(
        self, shape: CodedShape, input_order: torch.Tensor | None = None, device: torch.device = CPU
    ) -> None:
        """input_order: int64 [inputs]; column j of the codes is multiplied with x[:, input_order[j]]. FP8
        weights have none."""

    def write(
        self,
        begin: int,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
    ) -> None:
        """Stores n outputs from output `begin` on, any number, each output once.

        codes: uint8, one a byte, or float8_e4m3fn without NaN, [n, inputs]; scales, offsets: float32
        [n, groups], offsets only if the shape has no zero; factors: float32 [1 or 2, n, inputs /
        FACTOR_INPUTS], of the scales and of the offsets, only if the shape has factors.
        """

    def product(
        self, bias: torch.Tensor | None, batch_invariant: bool = False, may_round: bool = False
    ) -> CodedProduct:
        """Returns the product with all written outputs. Nothing may be written afterwards.

        batch_invariant: the bits of a row's result do not depend on other rows; CPU only. may_round: on CUDA,
        activations may be rounded to the type of the codes in products of many rows.
        """


@runtime_checkable
class HostPacker(CodedPacker, Protocol):
    """A `CodedPacker` that stores in host memory."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What `write` fills. May be set to the tensors that another packer of the same shape filled."""

    @tensors.setter
    def tensors(self, filled: tuple[torch.Tensor, ...]) -> None: ...


def float16_factors(tables: torch.Tensor) -> torch.Tensor:
    """Returns the powers of two by which an output's largest scale or offset is divided to fit float16,
    float32 [n].

    Each scale is then rounded by at most 2 ** -11 of itself, or 2 ** -39 of the output's largest scale or
    offset; offsets likewise. Scales and offsets that were float16 or bfloat16 stay exact unless an output's
    differ by more than a factor 2 ** 26.

    tables: float32 [tables, n, groups]
    """
    _, exponents = torch.frexp(tables.abs().amax(dim=(0, 2)))
    return torch.ldexp(torch.ones(tables.shape[1]), (exponents - 15).clamp(min=-126))
