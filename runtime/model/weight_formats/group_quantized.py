"""GPTQ and AWQ: integers, packed into words and stored as [inputs, outputs], with zero points for groups of
inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from .expand import find_groups, only_value, unpack
from .weight_format import FLOATS, CodedRows, CodedWeight, Projection, Stored, TensorError, TensorSpec

AWQ_NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]
"""for each output of a word, the number of the nibble that holds it, counted from the lowest"""


@dataclass(frozen=True)
class GptqFormat:
    bits: Literal[4, 8]
    group_size: int | None
    """number of inputs in a group; None: all inputs"""
    ordered: bool
    """whether the groups are not runs of inputs, so that `g_idx` is necessary"""
    zero_offset: int
    """added to each stored zero point: 1 in version 1, 0 in version 2"""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, inputs = projection.outputs, projection.inputs
        groups = -(-inputs // (self.group_size or inputs))
        each = 32 // self.bits  # values in a word
        described = {
            "qweight": TensorSpec(((-(-inputs // each), outputs),), ("I32",)),
            "qzeros": TensorSpec(((groups, -(-outputs // each)),), ("I32",)),
            "scales": TensorSpec(((groups, outputs),), tuple(FLOATS)),
            "g_idx": TensorSpec(((inputs,),), ("I32", "I64"), optional=not self.ordered),
        }
        if not projection.biased:
            described["bias"] = TensorSpec(((outputs,),), tuple(FLOATS), optional=True)
        return described

    def read(self, stored: Stored, outputs: int, inputs: int) -> CodedWeight:
        if "bias" in stored and bool(stored["bias"].any()):
            raise TensorError(
                "bias",
                "has values other than 0, but the architecture in config.json has no bias here. Use the "
                "config.json that belongs to the checkpoint",
            )
        qweight, scales = stored["qweight"], stored["scales"]
        groups = find_groups(stored.get("g_idx"), inputs, self.group_size)
        # In version 1 a zero point of 0 is stored with all bits set.
        unpacked = unpack(stored["qzeros"], self.bits)[:, :outputs]
        zeros = ((unpacked + self.zero_offset) & ((1 << self.bits) - 1)).T

        def rows(piece: slice) -> CodedRows:
            codes = unpack(qweight[:, piece].T, self.bits)[:, :inputs]
            return CodedRows(codes, scales[:, piece].T, zeros[piece])

        return CodedWeight(self.bits, groups, only_value(zeros), "scales", rows)


@dataclass(frozen=True)
class AwqFormat:
    """Codes of 4 bits in AutoAWQ's layout for GEMM."""

    group_size: int | None
    """number of inputs in a group; None: all inputs"""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, inputs = projection.outputs, projection.inputs
        groups = -(-inputs // (self.group_size or inputs))
        return {
            "qweight": TensorSpec(((inputs, outputs // 8),), ("I32",)),
            "qzeros": TensorSpec(((groups, outputs // 8),), ("I32",)),
            "scales": TensorSpec(((groups, outputs),), tuple(FLOATS)),
        }

    def read(self, stored: Stored, outputs: int, inputs: int) -> CodedWeight:
        qweight, qzeros, scales = stored["qweight"], stored["qzeros"], stored["scales"]
        zeros = _by_output(qzeros)

        def rows(piece: slice) -> CodedRows:
            codes = _by_output(qweight[:, piece.start // 8 : piece.stop // 8])
            return CodedRows(codes, scales[:, piece].T, zeros[piece])

        groups = find_groups(None, inputs, self.group_size)
        return CodedWeight(4, groups, only_value(zeros), "scales", rows)


def _by_output(words: torch.Tensor) -> torch.Tensor:
    """Unpacks words [rows, n] to uint8 [8 * n, rows]."""
    columns = words.T.contiguous()
    nibbles = [((columns >> 4 * nibble) & 15).to(torch.uint8) for nibble in AWQ_NIBBLES]
    return torch.stack(nibbles, dim=1).flatten(0, 1)
