"""Matrix products on CUDA with weights of 4 or 8 bits, or FP8 (E4M3), and scales for groups of inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .coded_weight import CPU, CodedShape, float16_factors

FEW_ROWS = 256
"""Up to this many rows are multiplied with widened codes; for more rows the weight is expanded first, or the
activations are rounded."""

EXPANDED_BYTES = 64 << 20
"""bytes of a weight that are expanded at a time"""

MAX_GROUP, MIN_GROUP = 128, 16


def stored_group(shape: CodedShape) -> int:
    """Returns how many inputs share a stored scale: a power of two that divides the group."""
    if shape.group >= shape.inputs and shape.group % MAX_GROUP:
        return MAX_GROUP if shape.bits is None else _power_of_two_in(shape.inputs)
    return _power_of_two_in(shape.group)


def serves(shape: CodedShape) -> bool:
    """Whether stored groups are large enough and, of integers, all groups have the same size."""
    is_whole = shape.bits is None or shape.inputs % shape.group == 0
    return is_whole and stored_group(shape) >= MIN_GROUP and not shape.has_factors


class CodedCudaPacker:
    """A `CodedPacker`, which stores on the device. Scales and offsets of integer codes are stored as float16
    (see `float16_factors`), those of FP8 as float32."""

    def __init__(
        self, shape: CodedShape, input_order: torch.Tensor | None = None, device: torch.device = CPU
    ) -> None:
        assert serves(shape), shape
        self._shape, self._group = shape, stored_group(shape)
        self._groups = -(-shape.inputs // self._group)
        self._steps = -(-self._groups // 2) if shape.bits == 4 else self._groups
        """steps of codes (see `coded_cuda`)"""
        self._input_order = None if input_order is None else input_order.to(device)
        self._middle = 0 if shape.bits is None else 1 << (shape.bits - 1)
        width = self._steps * self._group
        self._codes = torch.empty(shape.outputs, width, dtype=torch.int8, device=device)
        self._scales = self._table(device)
        has_offsets = shape.bits is not None and shape.zero != self._middle
        self._offsets = torch.empty_like(self._scales) if has_offsets else None
        self._factors = torch.empty(shape.outputs, device=device)

    def write(
        self,
        begin: int,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
    ) -> None:
        assert factors is None, "only `IntegerCpuPacker` stores factors"
        shape, part = self._shape, slice(begin, begin + len(codes))
        assert codes.shape == (len(codes), shape.inputs) and scales.shape == (len(codes), shape.groups)
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

    def product(
        self, bias: torch.Tensor | None, batch_invariant: bool = False, may_round: bool = False
    ) -> CodedCudaProduct:
        weight = (self._codes, self._scales, self._offsets, self._factors)
        return CodedCudaProduct(self._shape, *weight, bias, self._input_order, may_round)

    def _bytes(self, codes: torch.Tensor) -> torch.Tensor:
        """int8 [n, steps × group]"""
        shape, group = self._shape, self._group
        if shape.bits is None:
            return F.pad(codes.view(torch.int8), (0, self._codes.shape[1] - shape.inputs))
        signed = (codes ^ self._middle).view(torch.int8)  # codes of 4 bits are in the low half
        if shape.bits == 8:
            return signed
        padded = F.pad(signed, (0, 2 * self._codes.shape[1] - shape.inputs))
        low, high = padded.view(len(codes), self._steps, 2, group).unbind(2)
        return ((low & 15) | (high << 4)).flatten(1)

    def _table(self, device: torch.device) -> torch.Tensor:
        """Returns memory for scales or offsets, in the form of `coded_cuda.Stored`."""
        outputs = self._shape.outputs
        if self._shape.bits is None:
            return torch.empty(self._groups, outputs, device=device)
        return torch.empty(-(-self._groups // 2), outputs, 2, dtype=torch.float16, device=device)

    def _by_stored_group(self, tables: torch.Tensor) -> torch.Tensor:
        """[tables, n, groups as given] → [tables, groups as stored, n], or pairs [tables, pairs, n, 2]"""
        shape, count = self._shape, self._groups
        group = min(shape.group, count * self._group)
        repeated = tables.repeat_interleave(max(1, -(-group // self._group)), dim=2)[..., :count]
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
        """codes, scales, offsets, factors: in the form of `coded_cuda.Stored`"""
        from . import byte_cuda  # Triton may be missing without a GPU
        from .coded_cuda import Stored

        self.shape = shape
        bits, group = shape.bits or 8, stored_group(shape)
        self._weight = Stored(codes, scales, offsets, factors, shape.inputs, bits, group, shape.bits is None)
        self._bias = None if bias is None else bias.contiguous()
        self._input_order = input_order
        self._rounds = may_round and byte_cuda.takes(self._weight, codes.device)

    @property
    def nbytes(self) -> int:
        weight = self._weight
        parts = (weight.codes, weight.scales, weight.offsets, weight.factors, self._bias, self._input_order)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from . import byte_cuda, coded_cuda

        x = x.contiguous() if self._input_order is None else x.index_select(1, self._input_order)
        if len(x) <= FEW_ROWS:
            return coded_cuda.multiply(x, self._weight, self._bias)
        if self._rounds:
            return byte_cuda.multiply(x, self._weight, self._bias)
        outputs, inputs = self.shape.outputs, self.shape.inputs
        y = torch.empty(len(x), outputs, dtype=x.dtype, device=x.device)
        step = max(1, EXPANDED_BYTES // (inputs * x.element_size()))
        for begin in range(0, outputs, step):
            end = min(begin + step, outputs)
            bias = None if self._bias is None else self._bias[begin:end]
            y[:, begin:end] = F.linear(x, coded_cuda.expand(self._weight, begin, end, x.dtype), bias)
        return y

    def rows(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
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
    """The largest power of two that divides the size, at most `MAX_GROUP`."""
    return min(size & -size, MAX_GROUP)
