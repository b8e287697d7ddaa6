"""The block types of GGUF: each row of a weight is a sequence of blocks with their own scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from ....kernels.linear import FACTOR_INPUTS
from .compressed_formats import MXFP4_CODES, MXFP4_HALF_SCALES, MXFP4_ZERO
from .head_order import HeadOrder
from .weight_format import CodedRows, CodedWeight, Groups, Projection, Stored, TensorError, TensorSpec


class Block(NamedTuple):
    """The decoded blocks of n rows. Each tensor is [n, blocks, …]."""

    codes: torch.Tensor
    """uint8 [n, blocks, elements of a block]"""
    scales: torch.Tensor
    """float32 [n, blocks, groups of a block]"""
    offsets: torch.Tensor | None = None
    factors: torch.Tensor | None = None
    """float32 [1 or 2, n, blocks]: scales, and offsets, are integers times these"""


class BlockType(NamedTuple):
    elements: int
    bits: Literal[4, 5, 6, 8]
    group: int
    zero: int | None
    """the zero point of all groups; None if there are offsets"""
    decode: Callable[[torch.Tensor], Block]
    """decodes uint8 [n, blocks, bytes]"""

    @property
    def has_factors(self) -> bool:
        """see `CodedShape.has_factors`"""
        return self.elements == FACTOR_INPUTS


@dataclass(frozen=True)
class BlockFormat:
    type: str
    columns: HeadOrder | None = None
    """the order of the inputs in the file; None: as in Hugging Face's checkpoints"""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        return {"weight": TensorSpec(((projection.outputs, projection.inputs),), (self.type,))}

    def read(self, stored: Stored, outputs: int, inputs: int) -> CodedWeight:
        kind, weight = BLOCK_TYPES[self.type], stored["weight"]
        blocks, order = inputs // kind.elements, self.columns
        if order is not None and (problem := order.find_problem(inputs)):
            raise TensorError("weight", f"has {problem}")
        if order is not None and order.size % kind.group:
            problem = f"has heads of {order.size} inputs, no multiple of the {kind.group} of a group"
            raise TensorError("weight", f"{problem}. Use a file in which it is in 16 or 32 bits")

        def rows(piece: slice) -> CodedRows:
            block = kind.decode(weight[piece].view(-1, blocks, weight.shape[1] // blocks))
            offsets = None if block.offsets is None else block.offsets.flatten(1)
            scales, zero = block.scales.flatten(1), kind.zero or 0
            decoded = CodedRows(block.codes.flatten(1), scales, zero, offsets, block.factors)
            return decoded if order is None else _restore_columns(decoded, order, kind.group)

        # Another order of the inputs would mix groups that share a factor.
        has_factors = kind.has_factors and order is None
        groups = Groups(kind.group, None)
        return CodedWeight(kind.bits, groups, kind.zero, "weight", rows, has_factors=has_factors)


def _restore_columns(decoded: CodedRows, order: HeadOrder, group: int) -> CodedRows:
    def restore(each: torch.Tensor, size: int) -> torch.Tensor:
        return order._replace(size=size).restore(each.T).T.contiguous()

    groups = order.size // group
    offsets = None if decoded.offsets is None else restore(decoded.offsets, groups)
    codes, scales = restore(decoded.codes, order.size), restore(decoded.scales, groups)
    return CodedRows(codes, scales, decoded.zeros, offsets)


def _half(raw: torch.Tensor, begin: int) -> torch.Tensor:
    """Reads the float16 at byte `begin` of each block, as float32 [n, blocks, 1]."""
    return raw[..., begin : begin + 2].contiguous().view(torch.float16).float()


def _nibbles(raw: torch.Tensor, run: int) -> torch.Tensor:
    """The low halves of each `run` bytes, followed by their high halves."""
    runs = raw.reshape(*raw.shape[:-1], -1, run)
    return torch.stack((runs & 15, runs >> 4), dim=-2).flatten(-3)


def _fifth_bits(raw: torch.Tensor) -> torch.Tensor:
    """Each bit of 4 bytes as 0 or 16, beginning with the lowest."""
    places = torch.arange(8, dtype=torch.uint8)
    return ((raw.unsqueeze(-1) >> places) & 1).flatten(-2) << 4


def _q4_0(raw: torch.Tensor) -> Block:
    return Block(_nibbles(raw[..., 2:], 16), _half(raw, 0))


def _q4_1(raw: torch.Tensor) -> Block:
    return Block(_nibbles(raw[..., 4:], 16), _half(raw, 0), _half(raw, 2))


def _q5_0(raw: torch.Tensor) -> Block:
    return Block(_nibbles(raw[..., 6:], 16) | _fifth_bits(raw[..., 2:6]), _half(raw, 0))


def _q5_1(raw: torch.Tensor) -> Block:
    codes = _nibbles(raw[..., 8:], 16) | _fifth_bits(raw[..., 4:8])
    return Block(codes, _half(raw, 0), _half(raw, 2))


def _q8_0(raw: torch.Tensor) -> Block:
    return Block(raw[..., 2:] ^ 128, _half(raw, 0))


def _k_block(codes: torch.Tensor, raw: torch.Tensor) -> Block:
    """A block of Q4_K or Q5_K. The scales and offsets of its 8 groups are 6 bits each, in 12 bytes after two
    factors."""
    first, second, third = raw[..., 4:8], raw[..., 8:12], raw[..., 12:16]
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=-1)
    minima = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=-1)
    factors = _half(raw, 0), -_half(raw, 2)
    return Block(codes, scales * factors[0], minima * factors[1], torch.stack(factors).squeeze(-1))


def _q4_k(raw: torch.Tensor) -> Block:
    return _k_block(_nibbles(raw[..., 16:], 32), raw)


def _q5_k(raw: torch.Tensor) -> Block:
    places = torch.arange(8, dtype=torch.uint8).unsqueeze(-1)
    fifth = ((raw[..., 16:48].unsqueeze(-2) >> places) & 1).flatten(-2) << 4
    return _k_block(_nibbles(raw[..., 48:], 32) | fifth, raw)


def _q6_k(raw: torch.Tensor) -> Block:
    low = _nibbles(raw[..., :128], 64)
    places = torch.arange(0, 8, 2, dtype=torch.uint8).unsqueeze(-1)
    high = ((raw[..., 128:192].reshape(*raw.shape[:-1], 2, 1, 32) >> places) & 3).flatten(-3)
    scales, factor = raw[..., 192:208].view(torch.int8).float(), _half(raw, 208)
    return Block(low | (high << 4), scales * factor, factors=factor.squeeze(-1).unsqueeze(0))


IQ4_ZERO = 127
IQ4_CODES = torch.tensor(
    [
        IQ4_ZERO + value
        for value in (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    ],
    dtype=torch.uint8,
)


def _mxfp4(raw: torch.Tensor) -> Block:
    return Block(MXFP4_CODES[_nibbles(raw[..., 1:], 16).int()], MXFP4_HALF_SCALES[raw[..., :1].int()])


def _iq4_nl(raw: torch.Tensor) -> Block:
    return Block(IQ4_CODES[_nibbles(raw[..., 2:], 16).int()], _half(raw, 0))


BLOCK_TYPES = {
    "Q4_0": BlockType(32, 4, 32, 8, _q4_0),
    "Q4_1": BlockType(32, 4, 32, None, _q4_1),
    "Q5_0": BlockType(32, 8, 32, 16, _q5_0),
    "Q5_1": BlockType(32, 8, 32, None, _q5_1),
    "Q8_0": BlockType(32, 8, 32, 128, _q8_0),
    "Q4_K": BlockType(256, 4, 32, None, _q4_k),
    "Q5_K": BlockType(256, 5, 32, None, _q5_k),
    "Q6_K": BlockType(256, 6, 16, 32, _q6_k),
    "IQ4_NL": BlockType(32, 8, 32, IQ4_ZERO, _iq4_nl),
    "MXFP4": BlockType(32, 8, 32, MXFP4_ZERO, _mxfp4),
}
