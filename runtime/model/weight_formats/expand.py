"""Arithmetic of the quantized formats: unpacking words and scaling groups of inputs, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...errors import ConfigError

ALIGNMENT = 128
"""Pieces start at a multiple of this many outputs, so at a whole word and a whole block of scales."""

PIECE = 1 << 18
"""Elements of a piece, approximately: its float32 values stay in a processor's second-level cache."""


def expand_rows(target: torch.Tensor, rows: Callable[[slice], torch.Tensor]) -> None:
    """Writes `rows(piece)` [piece, inputs] to each piece of the target [outputs, inputs].

    It computes in one thread: pieces are so small that threads would mostly wait for each other.
    """
    outputs, inputs = target.shape
    step = max(1, PIECE // (ALIGNMENT * inputs)) * ALIGNMENT
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for begin in range(0, outputs, step):
            piece = slice(begin, min(begin + step, outputs))
            target[piece].copy_(rows(piece))
    finally:
        torch.set_num_threads(threads)


def scaled(
    values: torch.Tensor, zeros: torch.Tensor | None, scales: torch.Tensor, groups: torch.Tensor | None
) -> torch.Tensor:
    """float32 [n, inputs]: (values - zeros) * scales.

    values: [n, inputs]. zeros, scales: [n or 1, groups]. groups: each input's group, None if every group is
    a run of equally many inputs.
    """
    wide = widened_fp8(values) if values.dtype == torch.float8_e4m3fn else values.to(torch.float32)
    scales = scales.to(torch.float32).contiguous()
    if groups is None:
        split = wide.view(len(wide), scales.shape[1], -1)
        if zeros is not None:
            split.sub_(zeros.unsqueeze(-1))
        split.mul_(scales.unsqueeze(-1))
    else:
        if zeros is not None:
            wide.sub_(zeros.to(torch.float32).contiguous().index_select(1, groups))
        wide.mul_(scales.index_select(1, groups))
    return wide


def groups_of(index: torch.Tensor | None, inputs: int, size: int | None) -> torch.Tensor | None:
    """`groups` for `scaled`: as stored in `index`, or else runs of `size` inputs.

    The last run may be shorter. size: None is all inputs.
    """
    in_order = torch.arange(inputs) // (size or inputs)
    if index is not None and not torch.equal(index.long(), in_order):
        most = int(in_order[-1])
        if not 0 <= int(index.min()) <= int(index.max()) <= most:
            raise ConfigError(f"its group index has values outside of 0 to {most}")
        return index.long()
    return None if inputs % (size or inputs) == 0 else in_order


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [rows, 32 / bits * n] from int32 words [rows, n], from their lowest bits on; bits: 4 or 8."""
    # Unlike `contiguous`, `clone` also sets the stride of a dimension of one element, which `view` needs.
    raw = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return raw
    return torch.stack((raw & 15, raw >> 4), dim=-1).flatten(1)


def widened_fp8(values: torch.Tensor) -> torch.Tensor:
    """float32 of FP8 E4M3 values, ten times as fast as `to`. Raises ConfigError for NaN.

    The bits of a value, moved to a float16's places, are the value / 256.
    """
    if values.numel() and (values.view(torch.int8).max() == 0x7F or values.view(torch.uint8).max() == 0xFF):
        raise ConfigError("some of its values are NaN: the checkpoint is damaged")
    moved = (values.view(torch.int8).to(torch.int16) << 7) & ~(1 << 14)
    return moved.view(torch.float16).to(torch.float32).mul_(256)
