"""Matrix products on CUDA with weights of 4 or 8 bits, or FP8 (E4M3), and scales for groups of inputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from .quantized import float16_factors

FEW_ROWS = 256
"""Up to this many rows are multiplied with widened codes; for more rows the weight is expanded first, or the
activations are rounded."""

EXPANDED_BYTES = 64 << 20
"""of a weight that are expanded at a time"""

LARGEST_GROUP, SMALLEST_GROUP = 128, 16


class CodedShape(NamedTuple):
    """w[o, i] = codes[o, i] * scales[o, i // group] + offsets[o, i // group]"""

    outputs: int
    inputs: int
    bits: int | None
    """4 or 8, of unsigned codes; None: FP8"""
    group: int
    """inputs that share a scale; the last group may be smaller"""
    zero: int | None
    """all offsets are -zero * scale; None: they are given. FP8: 0"""

    @property
    def stored_group(self) -> int:
        """Inputs that share a stored scale: a power of two that divides the group."""
        if self.group >= self.inputs and self.group % LARGEST_GROUP:
            return LARGEST_GROUP if self.bits is None else _power_of_two_in(self.inputs)
        return _power_of_two_in(self.group)

    @property
    def steps(self) -> int:
        """See `coded_cuda`."""
        groups = -(-self.inputs // self.stored_group)
        return -(-groups // 2) if self.bits == 4 else groups


def takes_on_cuda(shape: CodedShape) -> bool:
    """Whether CUDA has a product for the shape. Otherwise the caller expands the weight."""
    if min(shape.outputs, shape.inputs, shape.group) < 1 or shape.bits not in (4, 8, None):
        return False
    is_whole = shape.bits is None or shape.inputs % shape.group == 0
    return is_whole and shape.stored_group >= SMALLEST_GROUP


class CodedPacker:
    """Fills the stored form on the device, some outputs at a time.

    Scales and offsets of integer codes are stored as float16 relative to a power of two for each output (see
    `quantized.QuantizedPacker`), those of FP8 as float32.
    """

    def __init__(
        self, shape: CodedShape, device: torch.device, input_order: torch.Tensor | None = None
    ) -> None:
        """input_order: int64 [inputs]; column j of the codes is multiplied with x[:, input_order[j]]."""
        assert takes_on_cuda(shape), shape
        self._shape = shape
        self._input_order = None if input_order is None else input_order.to(device)
        self._middle = 0 if shape.bits is None else 1 << (shape.bits - 1)
        width = shape.steps * shape.stored_group
        self._codes = torch.empty(shape.outputs, width, dtype=torch.int8, device=device)
        self._scales = self._table(device)
        has_offsets = shape.bits is not None and shape.zero != self._middle
        self._offsets = torch.empty_like(self._scales) if has_offsets else None
        self._factors = torch.empty(shape.outputs, device=device)

    def write(
        self, begin: int, codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None = None
    ) -> None:
        """Store n outputs from output `begin` on, any number, each output once.

        codes: uint8 or float8_e4m3fn [n, inputs]; scales, offsets: float32 [n, groups], offsets only if the
        shape has no zero.
        """
        shape, part = self._shape, slice(begin, begin + len(codes))
        groups = -(-shape.inputs // shape.group)
        assert codes.shape == (len(codes), shape.inputs) and scales.shape == (len(codes), groups)
        assert (offsets is None) == (shape.zero is not None)
        self._codes[part] = self._bytes(codes)
        if self._offsets is None:
            tables = scales[None]
        else:
            given = -scales * (shape.zero or 0) if offsets is None else offsets
            tables = torch.stack([scales, given + self._middle * scales])
        factors = torch.ones(len(codes)) if shape.bits is None else float16_factors(tables)
        self._factors[part] = factors * (FP8_UNIT if shape.bits is None else 1)
        stored = self._by_stored_group(tables / factors[:, None])
        self._scales[:, part] = stored[0].to(self._scales)
        if self._offsets is not None:
            self._offsets[:, part] = stored[1].to(self._scales)

    def product(self, bias: torch.Tensor | None, may_round: bool = False) -> CodedCudaProduct:
        """The product with all written outputs. Nothing may be written afterwards.

        may_round: of many rows, activations may be rounded to the type of the codes
        """
        weight = (self._codes, self._scales, self._offsets, self._factors)
        return CodedCudaProduct(self._shape, *weight, bias, self._input_order, may_round)

    def _bytes(self, codes: torch.Tensor) -> torch.Tensor:
        """int8 [n, steps × group]"""
        shape, group = self._shape, self._shape.stored_group
        if shape.bits is None:
            return F.pad(codes.view(torch.int8), (0, self._codes.shape[1] - shape.inputs))
        signed = (codes ^ self._middle).view(torch.int8)  # of 4 bits: in the low half
        if shape.bits == 8:
            return signed
        padded = F.pad(signed, (0, 2 * self._codes.shape[1] - shape.inputs))
        low, high = padded.view(len(codes), shape.steps, 2, group).unbind(2)
        return ((low & 15) | (high << 4)).flatten(1)

    def _table(self, device: torch.device) -> torch.Tensor:
        """Scales or offsets, see `coded_cuda.Stored`."""
        shape = self._shape
        groups = -(-shape.inputs // shape.stored_group)
        if shape.bits is None:
            return torch.empty(groups, shape.outputs, device=device)
        return torch.empty(-(-groups // 2), shape.outputs, 2, dtype=torch.float16, device=device)

    def _by_stored_group(self, tables: torch.Tensor) -> torch.Tensor:
        """[tables, n, groups as given] → [tables, groups as stored, n], or pairs [tables, pairs, n, 2]"""
        shape = self._shape
        count = -(-shape.inputs // shape.stored_group)
        group = min(shape.group, count * shape.stored_group)
        repeated = tables.repeat_interleave(max(1, -(-group // shape.stored_group)), dim=2)[..., :count]
        if shape.bits is None:
            return repeated.transpose(1, 2)
        paired = F.pad(repeated, (0, count % 2))
        return paired.reshape(*paired.shape[:2], -1, 2).transpose(1, 2)


class CodedCudaProduct:
    """y = x wᵀ + bias. Activations are rounded only in products of many rows, if they may be and the device
    multiplies bytes of the codes' type (see `byte_cuda`). Otherwise sums are float32."""

    def __init__(
        self,
        shape: CodedShape,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None,
        factors: torch.Tensor,
        bias: torch.Tensor | None,
        input_order: torch.Tensor | None,
        may_round: bool,
    ) -> None:
        """See `coded_cuda.Stored` and `CodedPacker`."""
        from . import byte_cuda  # Triton may be missing without a GPU
        from .coded_cuda import Stored

        bits, group = shape.bits or 8, shape.stored_group
        self._weight = Stored(codes, scales, offsets, factors, shape.inputs, bits, group, shape.bits is None)
        self._bias = None if bias is None else bias.contiguous()
        self._input_order = input_order
        self._rounds = may_round and byte_cuda.takes(self._weight, codes.device)

    @property
    def outputs(self) -> int:
        return len(self._weight.codes)

    @property
    def inputs(self) -> int:
        return self._weight.inputs

    @property
    def nbytes(self) -> int:
        """Bytes of the stored weight: codes, scales, offsets, factors and bias."""
        weight = self._weight
        parts = (weight.codes, weight.scales, weight.offsets, weight.factors, self._bias, self._input_order)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, inputs], float32, bfloat16 or float16 → [rows, outputs], same dtype."""
        from . import byte_cuda, coded_cuda

        x = x.contiguous() if self._input_order is None else x.index_select(1, self._input_order)
        if len(x) <= FEW_ROWS:
            return coded_cuda.multiply(x, self._weight, self._bias)
        if self._rounds:
            return byte_cuda.multiply(x, self._weight, self._bias)
        y = torch.empty(len(x), self.outputs, dtype=x.dtype, device=x.device)
        step = max(1, EXPANDED_BYTES // (self.inputs * x.element_size()))
        for begin in range(0, self.outputs, step):
            end = min(begin + step, self.outputs)
            bias = None if self._bias is None else self._bias[begin:end]
            y[:, begin:end] = F.linear(x, coded_cuda.expand(self._weight, begin, end, x.dtype), bias)
        return y

    def rows(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The stored weights of these outputs, [n, inputs], in the order of x. ids: int32 or int64 [n]"""
        from . import coded_cuda

        weight, ids = self._weight, ids.long()
        picked = weight._replace(
            codes=weight.codes[ids],
            scales=weight.scales[:, ids],
            offsets=None if weight.offsets is None else weight.offsets[:, ids],
            factors=weight.factors[ids],
        )
        rows = coded_cuda.expand(picked, 0, len(ids), torch.float32).to(dtype)
        if self._input_order is None:
            return rows
        return torch.empty_like(rows).index_copy_(1, self._input_order, rows)


FP8_UNIT = 256
"""The kernels read an FP8 code as its value / 256."""


def _power_of_two_in(size: int) -> int:
    """The largest power of two that divides the size, at most `LARGEST_GROUP`."""
    return min(size & -size, LARGEST_GROUP)
