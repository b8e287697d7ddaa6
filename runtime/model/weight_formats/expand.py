"""Arithmetic of the quantized formats: unpacking words, and scaling groups of inputs, for some rows at a
time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .weight_format import GET_FILE_AGAIN, CodedRows, CodedWeight, Groups, TensorError

ALIGNMENT = 128
"""Pieces start at a multiple of this number of outputs, and so at a word and at a block of scales."""

PIECE = 1 << 18
"""Approximate number of elements of a piece: as float32 they fit in a processor's second-level cache."""


def expand_into(target: torch.Tensor, weight: torch.Tensor | CodedWeight) -> None:
    """Writes the weight to the target [outputs, inputs]. Temporary tensors stay within a few MB."""
    if isinstance(weight, torch.Tensor):
        target.copy_(weight)
        return
    for piece in pieces(*target.shape):
        target[piece].copy_(scale_codes(weight.rows(piece), weight.groups.index))


def pieces(outputs: int, inputs: int) -> Iterator[slice]:
    """Yields runs of outputs. The caller works on each in one thread, because pieces are so small that more
    threads would mostly wait for each other."""
    step = max(1, PIECE // (ALIGNMENT * inputs)) * ALIGNMENT
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for begin in range(0, outputs, step):
            yield slice(begin, min(begin + step, outputs))
    finally:
        torch.set_num_threads(threads)


def scale_codes(rows: CodedRows, groups: torch.Tensor | None) -> torch.Tensor:
    """(codes - zeros) * scales + offsets, float32 [n, inputs]. For `groups` see `Groups.index`."""
    codes = rows.codes
    wide = widen_fp8(codes) if codes.dtype == torch.float8_e4m3fn else codes.to(torch.float32)
    scales = rows.scales.to(torch.float32).contiguous()
    split = wide.view(len(wide), scales.shape[1], -1) if groups is None else wide

    def of_inputs(values: torch.Tensor) -> torch.Tensor:
        if groups is None:
            return values.unsqueeze(-1)
        return values.to(torch.float32).contiguous().index_select(1, groups)

    if isinstance(rows.zeros, torch.Tensor):
        split.sub_(of_inputs(rows.zeros))
    elif rows.zeros:
        split.sub_(rows.zeros)
    split.mul_(of_inputs(scales))
    if rows.offsets is not None:
        split.add_(of_inputs(rows.offsets))
    return wide


def find_groups(
    index: torch.Tensor | None, inputs: int, size: int | None, index_part: str = "g_idx"
) -> Groups:
    """Returns the groups that `index` stores; without it, runs of `size` inputs.

    The last run may be shorter. A `size` of None stands for all inputs. `index_part` is the last part of the
    index's name.
    """
    size = size or inputs
    in_order = torch.arange(inputs) // size
    if index is not None and not torch.equal(index.long(), in_order):
        most = int(in_order[-1])
        low, high = int(index.min()), int(index.max())
        if not 0 <= low <= high <= most:
            raise TensorError(
                index_part, f"has values from {low} to {high}, but groups are 0 to {most}. {GET_FILE_AGAIN}"
            )
        return Groups(size, index.long())
    return Groups(size, None if inputs % size == 0 else in_order)


def only_value(values: torch.Tensor) -> int | None:
    """The number to which all values are equal; None if they differ."""
    first = values.flatten()[0]
    return int(first) if bool((values == first).all()) else None


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpacks int32 words [rows, n] to uint8 [rows, 32 / bits * n], beginning with the lowest bits; bits: 4
    or 8."""
    # Unlike `contiguous`, `clone` also sets the stride of a dimension of one element, which `view` needs.
    raw = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return raw if bits == 8 else nibbles(raw)


def nibbles(raw: torch.Tensor) -> torch.Tensor:
    """Splits the bytes [rows, n] into uint8 [rows, 2 * n]; the low half of a byte comes first."""
    return torch.stack((raw & 15, raw >> 4), dim=-1).flatten(1)


def widen_fp8(values: torch.Tensor) -> torch.Tensor:
    """Converts FP8 E4M3 values other than NaN to float32, ten times as fast as `to`.

    The bits of a value, moved to the positions of a float16, are the value / 256.
    """
    moved = (values.view(torch.int8).to(torch.int16) << 7) & ~(1 << 14)
    return moved.view(torch.float16).to(torch.float32).mul_(256)
