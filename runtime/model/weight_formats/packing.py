"""Quantized weights that stay packed: their codes, scales and offsets are converted to a product's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ....kernels.linear import (
    CodedPacker,
    CodedProduct,
    CodedShape,
    Fp8Packer,
    Fp8Shape,
    QuantizedPacker,
    QuantizedShape,
    takes,
    takes_fp8,
    takes_on_cuda,
)
from .expand import pieces
from .weight_format import CodedRows, CodedWeight, Groups


@dataclass(frozen=True)
class Packing:
    """How a product stores a weight. Projections with equal packings can share a product."""

    bits: Literal[4, 8] | None
    """as `CodedWeight.bits`; FP8 has neither a zero nor an order"""
    group: int
    zero: int | None
    """see `CodedWeight.zero`"""
    order: tuple[int, ...] | None
    """the inputs in the order of their groups; None if they are in order"""
    rounds_activations: bool = False
    """see `CodedWeight.rounds_activations`"""


def packing_of(
    weight: torch.Tensor | CodedWeight, outputs: int, inputs: int, device: torch.device
) -> Packing | None:
    """How the device's product stores the weight; None if the device has no product for it."""
    if isinstance(weight, torch.Tensor):
        return None
    group, order = weight.groups.size, None
    if weight.bits is None:
        if is_on_cuda(device):
            takes_it = takes_on_cuda(CodedShape(outputs, inputs, None, group, 0))
        else:
            takes_it = takes_fp8(Fp8Shape(outputs, inputs, group), device)
        return Packing(None, group, None, None, weight.rounds_activations) if takes_it else None
    if weight.groups.index is not None:
        if not _equally_many(weight.groups, inputs):
            return None
        order = tuple(torch.argsort(weight.groups.index, stable=True).tolist())
    if is_on_cuda(device):
        takes_it = takes_on_cuda(CodedShape(outputs, inputs, weight.bits, group, weight.zero))
    else:
        takes_it = takes(QuantizedShape(outputs, inputs, weight.bits, group, weight.zero), device)
    return Packing(weight.bits, group, weight.zero, order, weight.rounds_activations) if takes_it else None


def is_on_cuda(device: torch.device) -> bool:
    """Whether the device's products are those of the CUDA kernels."""
    return device.type == "cuda"


def pack(
    packing: Packing,
    inputs: int,
    weights: Sequence[tuple[int, CodedWeight]],
    bias: torch.Tensor | None,
    device: torch.device,
    batch_invariant: bool,
) -> CodedProduct:
    """Makes the product of weights with this packing, each given with its number of outputs. Temporary
    tensors stay within a few MB. batch_invariant: see `Linear.pack`."""
    outputs = sum(count for count, _ in weights)
    if packing.bits is None and not is_on_cuda(device):
        return _pack_fp8(Fp8Shape(outputs, inputs, packing.group), weights, bias)
    order = None if packing.order is None else torch.tensor(packing.order)
    packer = _packer(packing, outputs, inputs, device, order)
    _write(packer, packing, inputs, weights, order)
    if isinstance(packer, CodedPacker):
        return packer.product(bias, packing.rounds_activations)
    return packer.product(bias, batch_invariant)


def _packer(
    packing: Packing, outputs: int, inputs: int, device: torch.device, order: torch.Tensor | None
) -> QuantizedPacker | CodedPacker:
    if is_on_cuda(device):
        zero = 0 if packing.bits is None else packing.zero
        return CodedPacker(CodedShape(outputs, inputs, packing.bits, packing.group, zero), device, order)
    assert packing.bits is not None, "a CPU packs FP8 by `_pack_fp8`"
    return QuantizedPacker(QuantizedShape(outputs, inputs, packing.bits, packing.group, packing.zero), order)


def _write(
    packer: QuantizedPacker | CodedPacker,
    packing: Packing,
    inputs: int,
    weights: Sequence[tuple[int, CodedWeight]],
    order: torch.Tensor | None,
) -> None:
    has_offsets = packing.bits is not None and packing.zero is None
    begin = 0
    for count, weight in weights:
        for piece in pieces(count, inputs):
            rows = weight.rows(piece)
            codes = rows.codes if order is None else rows.codes.index_select(1, order)
            scales = rows.scales.to(torch.float32).expand(len(codes), -1)
            offsets = _offsets(rows, scales) if has_offsets else None
            packer.write(begin + piece.start, codes.contiguous(), scales, offsets)
        begin += count


def _pack_fp8(
    shape: Fp8Shape, weights: Sequence[tuple[int, CodedWeight]], bias: torch.Tensor | None
) -> CodedProduct:
    packer, begin = Fp8Packer(shape), 0
    for count, weight in weights:
        for piece in pieces(count, shape.inputs):
            rows = weight.rows(piece)
            scales = rows.scales.to(torch.float32).expand(len(rows.codes), -1)
            packer.write(begin + piece.start, rows.codes, scales)
        begin += count
    return packer.product(bias)


def _offsets(rows: CodedRows, scales: torch.Tensor) -> torch.Tensor:
    given = torch.zeros(()) if rows.offsets is None else rows.offsets
    return given - scales * rows.zeros


def _equally_many(groups: Groups, inputs: int) -> bool:
    assert groups.index is not None
    counts = torch.bincount(groups.index)
    return inputs % groups.size == 0 and bool((counts == groups.size).all())
