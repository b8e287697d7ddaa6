# mypy: disable-error-code="no-untyped-call"
"""Matrix products with weights of 4 or 8 bits and scales for groups of inputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from . import quantized_cpu, quantized_tiles
from .byte_dots import TILE, VECTOR

LARGEST_GROUP = 128
"""inputs that share a stored scale, or a scale of activations, at most"""

SCRATCH = 1 << 19
"""Codes of activations that are multiplied at a time, approximately: they should stay in a core's cache."""

MOST_ROWS = 512
"""Rows that are multiplied at a time, at most."""


class QuantizedShape(NamedTuple):
    """w[o, i] = codes[o, i] * scales[o, i // group] + offsets[o, i // group]"""

    outputs: int
    inputs: int
    bits: int
    """4 or 8; the codes are unsigned"""
    group: int
    """inputs of a group: divides `inputs`, a multiple of 16"""
    zero: int | None
    """all offsets are -zero * scale; None: they are given"""


def takes(shape: QuantizedShape, device: torch.device) -> bool:
    """Whether the device has a product for the shape. Otherwise the caller expands the weight."""
    if device.type != "cpu" or shape.bits not in (4, 8) or shape.outputs < 1:
        return False
    return shape.group >= 16 and shape.group % 16 == 0 and shape.inputs % shape.group == 0


class QuantizedPacker:
    """Fills the product's stored form, some outputs at a time.

    Each scale is stored as float16 relative to a power of two for each output, so it is rounded by at most
    2 ** -11 of itself, or 2 ** -39 of the output's largest scale or offset; offsets likewise. Scales and
    offsets that were float16 or bfloat16 stay exact unless an output's differ by more than a factor 2 ** 26.
    """

    def __init__(self, shape: QuantizedShape, input_order: torch.Tensor | None = None) -> None:
        """input_order: int64 [inputs]; column j of the codes is multiplied with x[:, input_order[j]]."""
        assert takes(shape, torch.device("cpu")), shape
        self._shape = shape
        self._input_order = input_order
        self._group = stored_group(shape.group)
        self._tables = 1 if shape.zero is not None else 2
        group_bytes = VECTOR * self._tables + TILE * self._group * shape.bits // 8
        tiles = -(-shape.outputs // TILE)
        self._tiles = torch.zeros(tiles, shape.inputs // self._group, group_bytes, dtype=torch.uint8)
        self._factors = torch.ones(tiles * TILE)

    def write(
        self, begin: int, codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None
    ) -> None:
        """Store n outputs from output `begin` on, any number, each output once.

        codes: uint8 [n, inputs], one a byte; scales, offsets: float32 [n, groups], offsets only if the shape
        has no zero.
        """
        shape, n = self._shape, len(codes)
        groups = shape.inputs // shape.group
        assert 0 <= begin <= begin + n <= shape.outputs, f"{begin} + {n} outputs of {shape.outputs}"
        assert codes.shape == (n, shape.inputs) and codes.dtype == torch.uint8, (codes.shape, codes.dtype)
        assert scales.shape == (n, groups), (scales.shape, (n, groups))
        assert (offsets is None) == (shape.zero is not None)
        quantized_tiles.pack_codes(
            self._tiles.numpy(), begin, codes.numpy(), self._group, VECTOR * self._tables, shape.bits
        )
        tables = torch.stack([scales] if offsets is None else [scales, offsets]).float()
        factors = _factors(tables)
        self._factors[begin : begin + n] = factors
        stored = (tables / factors[:, None]).half().repeat_interleave(shape.group // self._group, dim=2)
        at = torch.arange(begin, begin + n)
        heads = self._tiles[:, :, : VECTOR * self._tables].view(torch.float16)
        heads = heads.view(len(self._tiles), -1, self._tables, TILE)
        heads[at // TILE, :, :, at % TILE] = stored.permute(1, 2, 0)

    def product(self, bias: torch.Tensor | None) -> QuantizedProduct:
        """The product with all written outputs. Nothing may be written afterwards."""
        return QuantizedProduct(self._shape, self._group, self._tiles, self._factors, bias, self._input_order)


class QuantizedProduct:
    """y = x wᵀ + bias, with x quantized to 8 bits by groups of at most 128 inputs of a row.

    The bits of a row's result depend neither on other rows nor on the number of threads.
    """

    def __init__(
        self,
        shape: QuantizedShape,
        group: int,
        tiles: torch.Tensor,
        factors: torch.Tensor,
        bias: torch.Tensor | None,
        input_order: torch.Tensor | None,
    ) -> None:
        self._shape, self._group, self._parts = shape, group, groups_of_activations(shape)
        self._tiles, self._factors = tiles, factors
        self._bias = None if bias is None else F.pad(bias.float(), (0, len(factors) - len(bias)))
        self._input_order = input_order
        self._run = quantized_cpu.products(shape.bits, shape.zero is None).run
        self._rows = max(quantized_cpu.ROWS, min(MOST_ROWS, SCRATCH // shape.inputs))
        """that are multiplied at a time"""

    @property
    def outputs(self) -> int:
        return self._shape.outputs

    @property
    def inputs(self) -> int:
        return self._shape.inputs

    @property
    def nbytes(self) -> int:
        """Bytes of the stored weight: codes, scales, offsets, factors and bias."""
        parts = (self._tiles, self._factors, self._bias, self._input_order)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, inputs], float32, bfloat16 or float16 → [rows, outputs], same dtype."""
        x = x.contiguous() if self._input_order is None else x.index_select(1, self._input_order)
        y = torch.empty(len(x), self._shape.outputs, dtype=x.dtype)
        for begin in range(0, len(x), self._rows):
            self._multiply(x[begin : begin + self._rows], y[begin : begin + self._rows])
        return y

    def _multiply(self, x: torch.Tensor, y: torch.Tensor) -> None:
        outputs, inputs = self._shape.outputs, self._shape.inputs
        threads = torch.get_num_threads()
        rows = len(x) + quantized_cpu.ROWS  # the kernel reads beyond the last row
        groups = inputs // self._group
        totals = quantized_cpu.totals_bytes(len(x))
        scratch = torch.empty(VECTOR + threads * totals + rows * (inputs + 8 * groups), dtype=torch.int8)
        memory = -(-scratch.data_ptr() // VECTOR) * VECTOR
        codes = memory + threads * totals
        scales = codes + rows * inputs
        sums = scales + rows * groups * 4
        bias = 0 if self._bias is None else self._bias.data_ptr()
        sizes = (len(x), outputs, inputs, self._group, self._parts, self._shape.zero or 0)
        weight = (self._tiles.data_ptr(), self._factors.data_ptr(), bias)
        kind = quantized_cpu.KINDS[x.dtype]
        addresses = (x.data_ptr(), codes, scales, sums, *weight, y.data_ptr(), memory)
        self._run((0, 0, kind, *sizes, *addresses, 0), threads)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The stored weights of these outputs, float32 [n, inputs], in the order of x."""
        shape = self._shape
        codes = torch.empty(len(ids), shape.inputs, dtype=torch.uint8)
        tables = 2 if shape.zero is None else 1
        quantized_tiles.read_codes(
            self._tiles.numpy(), ids.numpy(), self._group, VECTOR * tables, shape.bits, codes.numpy()
        )
        heads = self._tiles[:, :, : VECTOR * tables].view(torch.float16)
        heads = heads.view(len(self._tiles), -1, tables, TILE)
        stored = heads[ids // TILE, :, :, ids % TILE].float() * self._factors[ids, None, None]
        values = codes.view(len(ids), -1, self._group).float()
        scales = stored[:, :, 0, None]
        expanded = (
            (values - shape.zero) * scales
            if shape.zero is not None
            else values * scales + stored[:, :, 1, None]
        )
        expanded = expanded.view(len(ids), shape.inputs)
        if self._input_order is None:
            return expanded
        weights = torch.empty_like(expanded)
        weights[:, self._input_order] = expanded
        return weights


def stored_group(group: int) -> int:
    """Inputs that share a stored scale: the largest multiple of 16 up to 128 that divides the given group."""
    return max(size for size in range(16, LARGEST_GROUP + 1, 16) if group % size == 0)


def groups_of_activations(shape: QuantizedShape) -> int:
    """Stored groups that share a scale of activations: as many as make up to 128 inputs and divide all."""
    group = stored_group(shape.group)
    groups = shape.inputs // group
    return max(parts for parts in range(1, LARGEST_GROUP // group + 1) if groups % parts == 0)


def _factors(tables: torch.Tensor) -> torch.Tensor:
    """The powers of two by which an output's largest scale or offset is divided to fit float16.

    tables: float32 [tables, n, groups]
    """
    _, exponents = torch.frexp(tables.abs().amax(dim=(0, 2)))
    return torch.ldexp(torch.ones(tables.shape[1]), exponents - 15)
