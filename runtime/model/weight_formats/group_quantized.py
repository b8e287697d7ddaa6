"""GPTQ and AWQ: packed integers, stored as [inputs, outputs], with zero points for groups of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...errors import ConfigError
from .checkpoint import FLOATS, TensorSpec
from .expand import expand_rows, groups_of, scaled, unpack
from .weight_format import Projection, Stored

AWQ_NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]
"""The nibble, from the lowest, that holds each output of a word."""


@dataclass(frozen=True)
class GptqFormat:
    bits: int
    """4 or 8"""
    group_size: int | None
    """inputs of a group; None: all inputs"""
    ordered: bool
    """Whether the groups are not runs of inputs, so that `g_idx` is necessary."""
    zero_offset: int
    """Added to each stored zero point: 1 in version 1, 0 in version 2."""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, inputs = projection.outputs, projection.inputs
        groups = -(-inputs // (self.group_size or inputs))
        each = 32 // self.bits  # values of a word
        described = {
            "qweight": TensorSpec(((-(-inputs // each), outputs),), ("I32",)),
            "qzeros": TensorSpec(((groups, -(-outputs // each)),), ("I32",)),
            "scales": TensorSpec(((groups, outputs),), tuple(FLOATS)),
            "g_idx": TensorSpec(((inputs,),), ("I32", "I64"), optional=not self.ordered),
        }
        if not projection.biased:
            described["bias"] = TensorSpec(((outputs,),), tuple(FLOATS), optional=True)
        return described

    def expand_into(self, target: torch.Tensor, stored: Stored) -> None:
        if "bias" in stored and bool(stored["bias"].any()):
            raise ConfigError("its bias is not zero, but this architecture has none here")
        qweight, qzeros, scales = stored["qweight"], stored["qzeros"], stored["scales"]
        inputs, each = target.shape[1], 32 // self.bits
        groups = groups_of(stored.get("g_idx"), inputs, self.group_size)

        def rows(piece: slice) -> torch.Tensor:
            values = unpack(qweight[:, piece].T, self.bits)[:, :inputs]
            words = qzeros[:, piece.start // each : -(-piece.stop // each)]
            zeros = unpack(words, self.bits)[:, : piece.stop - piece.start]
            # Version 1 stores a zero point of 0 as all bits set.
            zeros = (zeros + self.zero_offset) & ((1 << self.bits) - 1)
            return scaled(values, zeros.T, scales[:, piece].T, groups)

        expand_rows(target, rows)


@dataclass(frozen=True)
class AwqFormat:
    """4 bits, in AutoAWQ's layout for GEMM."""

    group_size: int | None
    """inputs of a group; None: all inputs"""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, inputs = projection.outputs, projection.inputs
        groups = -(-inputs // (self.group_size or inputs))
        return {
            "qweight": TensorSpec(((inputs, outputs // 8),), ("I32",)),
            "qzeros": TensorSpec(((groups, outputs // 8),), ("I32",)),
            "scales": TensorSpec(((groups, outputs),), tuple(FLOATS)),
        }

    def expand_into(self, target: torch.Tensor, stored: Stored) -> None:
        qweight, qzeros, scales = stored["qweight"], stored["qzeros"], stored["scales"]
        inputs = target.shape[1]
        groups = groups_of(None, inputs, self.group_size)

        def rows(piece: slice) -> torch.Tensor:
            words = slice(piece.start // 8, piece.stop // 8)
            return scaled(
                _by_output(qweight[:, words]), _by_output(qzeros[:, words]), scales[:, piece].T, groups
            )

        expand_rows(target, rows)


def _by_output(words: torch.Tensor) -> torch.Tensor:
    """int32 [8 * n, rows] from words [rows, n]"""
    columns = words.T.contiguous()
    return torch.stack([(columns >> 4 * nibble) & 15 for nibble in AWQ_NIBBLES], dim=1).flatten(0, 1)
