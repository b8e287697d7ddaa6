"""Rounds weights to integers or FP8, with a scale for each group of an output's inputs or for all of them. It
needs no calibration."""

from __future__ import annotations

import torch

INT8_MAX = 127
FP8_MAX = 448.0
INT4_MIN, INT4_MAX = -8, 7
DIVISORS = [-(6 + 0.4 * index) for index in range(8)]
"""A group's extreme value divided by each of these is tried as its scale; so that value becomes -6 to -8.

A hundred divisors make the error of normally distributed weights 0.2 % smaller."""


def round_to_int8(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds float32 [n, inputs] to int8 [n, inputs], with bfloat16 scales [n, groups].

    The extreme value of each group becomes 127 or -127.
    """
    groups = _by_place(weight, group)
    scales = _rounded_up(groups.abs().amax(0) / INT8_MAX)
    codes = (groups * _inverse(scales)).round_().clamp_(-INT8_MAX, INT8_MAX)
    return _by_output(codes, weight), scales.to(torch.bfloat16).view(len(weight), -1)


def round_to_fp8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds float32 [n, inputs] to FP8 E4M3 [n, inputs], with bfloat16 scales [n, 1].

    The extreme value of each output becomes 448 or -448, or a little less.
    """
    scales = _rounded_up(weight.abs().amax(1, keepdim=True) / FP8_MAX)
    codes = (weight * _inverse(scales)).clamp_(-FP8_MAX, FP8_MAX)
    return codes.to(torch.float8_e4m3fn), scales.to(torch.bfloat16)


def round_to_int4(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds float32 [n, inputs] to int8 [n, inputs] from -8 to 7, with bfloat16 scales [n, groups].

    Several scales are tried for each group, each followed by the least-squares fit to its codes. The one with
    the smallest squared error is used. A scale may be negative, so that the extreme value becomes -8.
    """
    groups = _by_place(weight, group)
    least, most = groups.amin(0), groups.amax(0)
    inverse = _inverse(torch.where(most > -least, most, least))
    best, scales = torch.zeros_like(inverse), torch.zeros_like(inverse)
    for divisor in DIVISORS:
        codes = _int4(groups, inverse * divisor)
        product, square = (codes * groups).sum(0), (codes * codes).sum(0).clamp_(min=1)
        gain = product * product / square  # how much less the squared error is than with a scale of 0
        better = gain > best
        best = torch.where(better, gain, best)
        scales = torch.where(better, product / square, scales)
    scales = scales.to(torch.bfloat16)
    codes = _int4(groups, _inverse(scales.float()))
    return _by_output(codes, weight), scales.view(len(weight), -1)


def _by_place(weight: torch.Tensor, group: int) -> torch.Tensor:
    """Transposes to [group, n * groups]: sums over the first dimension are several times as fast as over the
    last."""
    return weight.view(-1, group).T.contiguous()


def _by_output(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return codes.to(torch.int8).T.contiguous().view_as(weight)


def _int4(groups: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return (groups * inverse).round_().clamp_(INT4_MIN, INT4_MAX)


def _inverse(values: torch.Tensor) -> torch.Tensor:
    """1 / values, and 0 for 0."""
    return torch.where(values == 0, 0.0, 1 / values)


def _rounded_up(values: torch.Tensor) -> torch.Tensor:
    """The next larger bfloat16 value, as float32, so that no weight exceeds the range."""
    return ((values.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
