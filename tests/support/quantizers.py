"""Quantizes weights as the published formats do. Packing is written value by value, unlike the readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, within a word's eight, that AutoAWQ stores in each nibble."""


class Quantized(NamedTuple):
    tensors: dict[str, torch.Tensor]
    """by the last part of their names"""
    weight: torch.Tensor
    """float32 [outputs, inputs]: what the tensors stand for"""


Quantize = Callable[[torch.Tensor], Quantized]


class Integers(NamedTuple):
    """values: unsigned [outputs, inputs]; zeros, scales: [outputs, groups]; groups: int64 [inputs]"""

    values: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    groups: torch.Tensor

    def weight(self) -> torch.Tensor:
        centred = self.values - self.zeros[:, self.groups]
        return centred.float() * self.scales.float()[:, self.groups]


def integers(
    weight: torch.Tensor, bits: int, groups: torch.Tensor, dtype: torch.dtype, symmetric: bool = False
) -> Integers:
    """The weight as integers of `bits` bits with a scale for each group. groups: the group of each input;
    dtype: of the scales"""
    most, zeros, scales = (1 << bits) - 1, [], []
    for group in range(int(groups.max()) + 1):
        part = weight[:, groups == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            low, high = -torch.maximum(-low, high), torch.maximum(-low, high)
        scale = ((high - low) / most).to(dtype)
        scales.append(scale)
        middle = torch.full_like(low, (most + 1) // 2)
        zeros.append(middle if symmetric else (-low / scale.float()).round().clamp(0, most))
    zero, scale = torch.stack(zeros, 1).long(), torch.stack(scales, 1)
    values = (weight / scale.float()[:, groups]).round() + zero[:, groups]
    return Integers(values.clamp(0, most).long(), zero, scale, groups)


def words(values: Sequence[int], bits: int) -> list[int]:
    """Signed words of 32 bits; the first value is in the lowest bits."""
    packed = []
    each = 32 // bits
    for start in range(0, len(values), each):
        word = 0
        for place, value in enumerate(values[start : start + each]):
            word |= value << (bits * place)
        packed.append(word - (1 << 32) if word >= 1 << 31 else word)
    return packed


def packed_rows(values: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.tensor([words(row, bits) for row in values.tolist()], dtype=torch.int32)


def runs(inputs: int, size: int) -> torch.Tensor:
    return torch.tensor([index // size for index in range(inputs)])


def gptq(
    bits: int, group: int, ordered: bool = False, zero_offset: int = 1, biased: bool = False
) -> Quantize:
    def quantize(weight: torch.Tensor) -> Quantized:
        outputs, inputs = weight.shape
        groups = runs(inputs, group if group > 0 else inputs)
        if ordered:
            groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
        whole = integers(weight, bits, groups, torch.float16)
        mask = (1 << bits) - 1
        tensors = {
            "qweight": packed_rows(whole.values, bits).T.contiguous(),
            "qzeros": packed_rows(((whole.zeros - zero_offset) & mask).T, bits),
            "scales": whole.scales.T.contiguous(),
            "g_idx": groups.int(),
        }
        if biased:
            tensors["bias"] = torch.zeros(outputs, dtype=torch.float16)
        return Quantized(tensors, whole.weight())

    return quantize


def awq(group: int) -> Quantize:
    def reordered(values: torch.Tensor) -> torch.Tensor:
        order = [start + place for start in range(0, values.shape[1], 8) for place in AWQ_ORDER]
        return packed_rows(values[:, order], 4)

    def quantize(weight: torch.Tensor) -> Quantized:
        inputs = weight.shape[1]
        whole = integers(weight, 4, runs(inputs, group if group > 0 else inputs), torch.float16)
        tensors = {
            "qweight": reordered(whole.values.T),
            "qzeros": reordered(whole.zeros.T),
            "scales": whole.scales.T.contiguous(),
        }
        return Quantized(tensors, whole.weight())

    return quantize


def pack_quantized(bits: int, group: int | None, symmetric: bool = True, ordered: bool = False) -> Quantize:
    def quantize(weight: torch.Tensor) -> Quantized:
        inputs = weight.shape[1]
        groups = runs(inputs, group or inputs)
        if ordered:
            groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
        whole = integers(weight, bits, groups, torch.bfloat16, symmetric)
        tensors = {
            "weight_packed": packed_rows(whole.values, bits),
            "weight_scale": whole.scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = packed_rows(whole.zeros.T, bits).T.contiguous()
        if ordered:
            tensors["weight_g_idx"] = groups.int()
        return Quantized(tensors, whole.weight())

    return quantize


def int8_channel(symmetric: bool = True) -> Quantize:
    def quantize(weight: torch.Tensor) -> Quantized:
        groups = torch.zeros(weight.shape[1], dtype=torch.int64)
        whole = integers(weight, 8, groups, torch.bfloat16, symmetric)
        tensors = {"weight": (whole.values - 128).to(torch.int8), "weight_scale": whole.scales}
        if not symmetric:
            tensors["weight_zero_point"] = (whole.zeros - 128).to(torch.int8)
        return Quantized(tensors, whole.weight())

    return quantize


FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def mxfp4() -> Quantize:
    def quantize(weight: torch.Tensor) -> Quantized:
        groups = weight.view(len(weight), -1, 32)
        exponents = (groups.abs().amax(2) / 6).log2().ceil().clamp(min=-127) + 127
        scales = torch.exp2(exponents - 127).unsqueeze(2)
        table = torch.tensor([*FP4, *(-value for value in FP4)])
        codes = (groups.unsqueeze(3) / scales.unsqueeze(3) - table).abs().argmin(3)
        values = codes.view(len(weight), -1).tolist()
        packed = [[low + 16 * high for low, high in zip(row[::2], row[1::2], strict=True)] for row in values]
        tensors = {"weight_packed": torch.tensor(packed).byte(), "weight_scale": exponents.byte()}
        return Quantized(tensors, (table[codes] * scales).view(weight.shape))

    return quantize


def fp8(rows: int | None, columns: int | None, scale: str, dtype: torch.dtype = torch.float32) -> Quantize:
    """One scale for each block of rows by columns; None: all of them."""

    def quantize(weight: torch.Tensor) -> Quantized:
        outputs, inputs = weight.shape
        height, width = rows or outputs, columns or inputs
        grid = torch.empty(-(-outputs // height), -(-inputs // width), dtype=dtype)
        stored, expanded = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
        for i in range(grid.shape[0]):
            for j in range(grid.shape[1]):
                at = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
                grid[i, j] = weight[at].abs().max() / 448
                stored[at] = (weight[at] / grid[i, j].float()).to(torch.float8_e4m3fn)
                expanded[at] = stored[at].float() * grid[i, j].float()
        return Quantized({"weight": stored, scale: grid.view(-1) if rows is None else grid}, expanded)

    return quantize
