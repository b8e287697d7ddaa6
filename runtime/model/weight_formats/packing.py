"""Quantized weights that stay packed: their codes, scales and offsets are converted to a product's format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ....kernels.linear import (
    CodedPacker,
    CodedProduct,
    CodedShape,
    HostPacker,
    find_packer,
)
from .expand import pieces
from .weight_format import CodedRows, CodedWeight, Groups

Take = Callable[[Callable[[], Sequence[torch.Tensor]]], Sequence[torch.Tensor]]
"""returns tensors that an earlier start made, or lets its argument make them"""


def make_now(make: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
    return make()


@dataclass(frozen=True)
class Packing:
    """How a product stores a weight. Projections with equal packings can share a product."""

    bits: int | None
    """bits of a code, as in `CodedShape.bits`; FP8 has zero 0 and no order"""
    group: int
    zero: int | None
    """the zero point of all groups, as in `CodedWeight.zero`"""
    order: tuple[int, ...] | None
    """the inputs in the order of their groups; None if they are in order"""
    rounds_activations: bool = False
    """see `CodedWeight.rounds_activations`"""
    has_factors: bool = False
    """see `CodedShape.has_factors`"""

    def shape(self, outputs: int, inputs: int) -> CodedShape:
        return CodedShape(outputs, inputs, self.bits, self.group, self.zero, self.has_factors)


def choose_shape(shape: CodedShape, device: torch.device) -> CodedShape | None:
    """The shape in which the device's product stores a weight: the given one, or one without factors, whose
    codes have 4 or 8 bits. None if the device has no product for it."""
    plain = shape._replace(has_factors=False, bits=8 if shape.bits in (5, 6) else shape.bits)
    return next((each for each in (shape, plain) if find_packer(each, device) is not None), None)


def find_packing(
    weight: torch.Tensor | CodedWeight, outputs: int, inputs: int, device: torch.device
) -> Packing | None:
    """How the device's product stores the weight; None if the device has no product for it."""
    if isinstance(weight, torch.Tensor):
        return None
    order, zero = None, weight.zero
    if weight.bits is None:
        zero = 0
    elif weight.groups.index is not None:
        if not _equally_many(weight.groups, inputs):
            return None
        order = tuple(torch.argsort(weight.groups.index, stable=True).tolist())
    group = weight.groups.size
    shape = choose_shape(CodedShape(outputs, inputs, weight.bits, group, zero, weight.has_factors), device)
    if shape is None:
        return None
    return Packing(shape.bits, group, zero, order, weight.rounds_activations, shape.has_factors)


def pack(
    packing: Packing,
    inputs: int,
    weights: Sequence[tuple[int, Callable[[], CodedWeight]]],
    bias: torch.Tensor | None,
    device: torch.device,
    batch_invariant: bool,
    take: Take = make_now,
) -> CodedProduct:
    """Makes one product of weights with this packing, each paired with its number of outputs. They are read
    unless `take` has the packed tensors. batch_invariant: see `Linear.pack`."""
    shape = packing.shape(sum(count for count, _ in weights), inputs)
    make = find_packer(shape, device)
    assert make is not None, "the packing was made for this device"
    order = None if packing.order is None else torch.tensor(packing.order)
    if hasattr(make, "tensors"):  # a HostPacker
        filled = take(lambda: _fill(make(shape, order, device), inputs, weights, packing, order))
        with torch.device("meta"):  # the packer allocates no memory, as it gets the filled tensors
            packer = make(shape, order, device)
        assert isinstance(packer, HostPacker)
        packer.tensors = tuple(filled)
    else:
        packer = make(shape, order, device)
        _fill(packer, inputs, weights, packing, order)
    return packer.product(bias, batch_invariant, packing.rounds_activations)


def _fill(
    packer: CodedPacker,
    inputs: int,
    weights: Sequence[tuple[int, Callable[[], CodedWeight]]],
    packing: Packing,
    order: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Writes all weights. Temporary tensors stay within a few MB. Returns the packed tensors, if they are in
    host memory."""
    begin = 0
    for count, read in weights:
        weight = read()
        for piece in pieces(count, inputs):
            rows = weight.rows(piece)
            codes = rows.codes if order is None else rows.codes.index_select(1, order)
            scales = rows.scales.to(torch.float32).expand(len(codes), -1)
            offsets = _offsets(rows, scales) if packing.zero is None else None
            factors = rows.factors if packing.has_factors else None
            packer.write(begin + piece.start, codes.contiguous(), scales, offsets, factors)
        begin += count
    return packer.tensors if isinstance(packer, HostPacker) else ()


def _offsets(rows: CodedRows, scales: torch.Tensor) -> torch.Tensor:
    given = torch.zeros(()) if rows.offsets is None else rows.offsets
    return given - scales * rows.zeros


def _equally_many(groups: Groups, inputs: int) -> bool:
    assert groups.index is not None
    counts = torch.bincount(groups.index)
    return inputs % groups.size == 0 and bool((counts == groups.size).all())
