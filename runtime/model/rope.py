"""Rotary position embeddings (Su et al. 2021) and the ways to stretch them over longer contexts.

Every table is float32 and computed as transformers computes it, so that both give the same logits.

*Dynamic* NTK scaling is the exception: transformers chooses the frequencies anew for each sequence length,
which would invalidate cached keys. Here the table is fixed. Up to the context that the model was trained for,
it is the plain table, as in transformers. For longer contexts it is the table that transformers uses for a
sequence of `positions` tokens, for short sequences too.
"""

from __future__ import annotations

import math

import torch

from .devices import outside_heap
from .rope_config import RopeConfig

BLOCK = 4096
"""number of rows that are computed at a time"""
CPU = torch.device("cpu")


class RotaryTable:
    """Cosines, then sines, of positions 0, 1, …

    values: float32 [positions, dim], on the device. On a CPU a row is computed when a request first comes
    near its position, because few requests are as long as the context, and rows that are never written take
    no memory: 32,768 positions with 128 values would take 16 MiB. On a GPU all rows are computed at once.
    """

    def __init__(self, rope: RopeConfig | None, positions: int, device: torch.device = CPU) -> None:
        """rope: None rotates two dimensions by an angle of 0"""
        self._frequencies = torch.zeros(1) if rope is None else _inverse_frequencies(rope, positions)
        self._amplitude = 1.0 if rope is None else _amplitude(rope)
        self._computed = 0
        with outside_heap():
            self.values = torch.empty(positions, 2 * len(self._frequencies), device=device)
        if device != CPU:
            self.cover(positions)

    def cover(self, positions: int) -> None:
        """Computes the rows of at least the first `positions` positions, if the table has that many."""
        while self._computed < min(positions, len(self.values)):
            rows = self.values[self._computed : self._computed + BLOCK]
            numbers = torch.arange(self._computed, self._computed + len(rows))
            angles = numbers.float()[:, None] * self._frequencies
            rows.copy_(torch.cat((angles.cos(), angles.sin()), dim=-1) * self._amplitude)
            self._computed += len(rows)


def _inverse_frequencies(rope: RopeConfig, positions: int) -> torch.Tensor:
    """Angle per position of each pair of dimensions, float32 [dim / 2]."""
    match rope.kind:
        case "default":
            return _plain(rope.theta, rope.dim)
        case "linear":
            return _plain(rope.theta, rope.dim) / rope.factor
        case "dynamic":
            return _plain(_dynamic_theta(rope, positions), rope.dim)
        case "llama3":
            return _llama3(rope)
        case "yarn":
            return _yarn(rope)


def _plain(theta: float, dim: int) -> torch.Tensor:
    return 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))


def _dynamic_theta(rope: RopeConfig, positions: int) -> float:
    """The base of NTK-aware scaling for sequences of `positions` tokens (bloc97 and emozilla, 2023)."""
    length = max(positions, rope.original_positions)
    stretch = rope.factor * length / rope.original_positions - (rope.factor - 1)
    return float(rope.theta * stretch ** (rope.dim / (rope.dim - 2)))


def _llama3(rope: RopeConfig) -> torch.Tensor:
    """Llama 3.1: long wavelengths are stretched, short ones kept, medium ones interpolated."""
    plain = _plain(rope.theta, rope.dim)
    wavelength = 2 * math.pi / plain
    turns = rope.original_positions / wavelength
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    between = (1 - smooth) * plain / rope.factor + smooth * plain
    is_long = wavelength > rope.original_positions / rope.low_freq_factor
    is_short = wavelength < rope.original_positions / rope.high_freq_factor
    return torch.where(is_long, plain / rope.factor, torch.where(is_short, plain, between))


def _yarn(rope: RopeConfig) -> torch.Tensor:
    """YaRN (Peng et al. 2023): keeps frequencies with more than `beta_fast` rotations over the original
    context, divides those with fewer than `beta_slow` by `factor`, and mixes both in between."""
    wavelength_terms = rope.theta ** (torch.arange(0, rope.dim, 2).float() / rope.dim)
    low, high = _yarn_dimension(rope, rope.beta_fast), _yarn_dimension(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rope.dim // 2).float() - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * wavelength_terms) * (1 - kept) + 1.0 / wavelength_terms * kept


def _yarn_dimension(rope: RopeConfig, rotations: float) -> float:
    """The dimension that makes `rotations` rotations over the original context."""
    periods = rope.original_positions / (rotations * 2 * math.pi)
    return rope.dim * math.log(periods) / (2 * math.log(rope.theta))


def _amplitude(rope: RopeConfig) -> float:
    """The factor of cosines and sines: YaRN's attention temperature."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
