"""Matrix products on CPUs with FP8 (E4M3) weights and scales for groups of inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..common.rows import to_float32
from ..common.teams import place_by_node, team_arguments
from ..common.threads import is_recording, thread_count
from . import fp8_cpu
from .byte_dots import available
from .coded_weight import CPU, CodedShape
from .fp8_tile import OUTPUTS, PLACES
from .integer_cpu import KINDS

_PLACES = torch.tensor([32 * half + place for half in (0, 1) for place in PLACES])


def serves(shape: CodedShape) -> bool:
    """Whether groups are whole pairs of inputs, or all inputs are one group."""
    return available() and (shape.group % 2 == 0 or shape.group >= shape.inputs)


class Fp8CpuPacker:
    """A `CodedPacker`."""

    def __init__(
        self, shape: CodedShape, input_order: torch.Tensor | None = None, device: torch.device = CPU
    ) -> None:
        assert serves(shape) and shape.bits is None and device.type == "cpu", shape
        assert input_order is None, "FP8 weights have their inputs in order"
        self._shape = shape
        strips, pairs = -(-shape.outputs // OUTPUTS), -(-shape.inputs // 2)
        self._codes = place_by_node(torch.empty(strips, pairs, OUTPUTS, dtype=torch.int16)).zero_()
        self._scales = torch.zeros(strips, shape.groups, OUTPUTS)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self._codes, self._scales

    @tensors.setter
    def tensors(self, filled: tuple[torch.Tensor, ...]) -> None:
        self._codes, self._scales = filled

    def write(
        self,
        begin: int,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
    ) -> None:
        assert factors is None, "only `IntegerCpuPacker` stores factors"
        assert offsets is None, "FP8 weights have no offsets"
        shape, end = self._shape, begin + len(codes)
        assert 0 <= begin <= end <= shape.outputs, f"{len(codes)} outputs from {begin} of {shape.outputs}"
        assert codes.shape == (len(codes), shape.inputs) and codes.dtype == torch.float8_e4m3fn
        assert scales.shape == (len(codes), shape.groups), (scales.shape, len(codes), shape.groups)
        pairs = F.pad(codes.view(torch.uint8), (0, shape.inputs % 2)).view(torch.int16)
        for strip in range(begin // OUTPUTS, -(-end // OUTPUTS)):
            first, last = max(begin, strip * OUTPUTS), min(end, (strip + 1) * OUTPUTS)
            place, part = (
                slice(first - strip * OUTPUTS, last - strip * OUTPUTS),
                slice(first - begin, last - begin),
            )
            self._codes[strip][:, _PLACES[place]] = pairs[part].T
            self._scales[strip][:, place] = scales[part].T

    def product(
        self, bias: torch.Tensor | None, batch_invariant: bool = False, may_round: bool = False
    ) -> Fp8CpuProduct:
        return Fp8CpuProduct(self._shape, self._codes, self._scales, bias)


class Fp8CpuProduct:
    """y = x wᵀ + bias. Activations are not quantized; sums are float32.

    The bits of a row's result depend neither on other rows nor on the number of threads.
    """

    def __init__(
        self, shape: CodedShape, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """codes: int16 [strips, pairs, OUTPUTS], in the order of `PLACES`; scales: float32 [strips, groups,
        OUTPUTS]"""
        self.shape, self._codes, self._scales = shape, codes, scales
        self._bias = None if bias is None else bias.float()
        bias_address = 0 if self._bias is None else self._bias.data_ptr()
        self.addresses = (codes.data_ptr(), scales.data_ptr(), bias_address)
        """of the codes, the scales and the bias, 0 for none"""

    @property
    def nbytes(self) -> int:
        parts = (self._codes, self._scales, self._bias)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(len(x), self.shape.outputs, dtype=x.dtype)
        kept, arguments = self.prepare(x, y)
        threads = arguments[-1]
        fp8_cpu.choose_kernel(x.dtype).run((*arguments, *team_arguments(threads)), threads)
        del kept  # the kernel has read it
        return y

    def prepare(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        """x as the kernel reads it, and the kernel's arguments (see `fp8_cpu`)."""
        shape, dtype = self.shape, x.dtype
        x = x.contiguous() if fp8_cpu.multiplies_pairs(dtype) else to_float32(x.contiguous())
        x = F.pad(x, (0, 1)) if shape.inputs % 2 else x
        pairs = self._codes.shape[1]
        sizes = (len(x), shape.outputs, pairs, min(pairs, -(-shape.group // 2)))
        threads = thread_count(self._codes.numel())
        return x, (*sizes, x.data_ptr(), *self.addresses, y.data_ptr(), threads)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        shape = self.shape
        assert is_recording() or not len(ids) or 0 <= ids.min() <= ids.max() < shape.outputs, (
            f"ids beyond {shape.outputs} outputs"
        )
        weights = torch.empty(len(ids), shape.inputs, dtype=dtype)
        tables = (self._codes, _PLACES, fp8_cpu.VALUES, self._scales)
        arguments = (
            len(ids),
            ids.data_ptr(),
            ids.element_size(),
            *(table.data_ptr() for table in tables),
            shape.inputs,
            shape.group,
            weights.data_ptr(),
            KINDS[dtype],
        )
        fp8_cpu.expand_rows.run(arguments, 1)
        return weights
