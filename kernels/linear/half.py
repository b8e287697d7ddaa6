"""Matrix products for half-precision weights on processors that multiply only float32 (AVX2, say)."""

from functools import cache

import torch

from . import half_cpu, onednn

FEW_ROWS = 16
"""Up to this many rows, widening weights in registers is faster than widening them in memory."""

SCRATCH = 6 << 20
"""Elements of the buffer (24 MiB), or of one output if that is larger."""


class HalfWidenedOnUseProduct:
    """Keeps the weights as they are stored. For few rows, each weight is widened in a register as it is read;
    for many rows, a part of the weights at a time is widened into a scratch buffer and multiplied by oneDNN.

    Refers to its weight [out, in], contiguous. Products share the buffer, so only one thread may call.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        assert weight.is_contiguous()
        self._weight = weight
        self._bias = None if bias is None else bias.float()
        _scratch(max(SCRATCH, weight.shape[1]))  # allocated now: a program would reuse its memory

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(len(x), len(self._weight), dtype=x.dtype)
        if len(x) <= FEW_ROWS:
            half_cpu.multiply(half_cpu.to_float32(x), self._weight, self._bias, y)
        else:
            self._multiply_parts(x, y)
        return y

    def _multiply_parts(self, x: torch.Tensor, y: torch.Tensor) -> None:
        outputs, inputs = self._weight.shape
        padded = torch.zeros(onednn.padded_rows(len(x)), inputs)
        padded[: len(x)] = x
        scratch = _scratch(max(SCRATCH, inputs))
        step = len(scratch) // inputs
        for begin in range(0, outputs, step):
            part = self._weight[begin : begin + step]
            wide = scratch[: part.numel()].view_as(part)
            half_cpu.widen(part, wide)
            bias = None if self._bias is None else self._bias[begin : begin + step]
            y[:, begin : begin + step].copy_(onednn.multiply(padded, wide, bias)[: len(x)])


class HalfWidenedOnLoadProduct:
    """Holds the weights as float32, in twice the memory. Any number of rows runs the same code."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._product = onednn.OneDnnProduct(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x.float()).to(x.dtype)


@cache
def _scratch(elements: int) -> torch.Tensor:
    return torch.empty(elements)
