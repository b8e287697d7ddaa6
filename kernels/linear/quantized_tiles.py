# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Conversion of quantized weights to tiles and back (see `byte_dots`)."""

import numpy as np

from ..common.jit import compiled
from ..common.numba_tools import load, pointer
from .byte_dots import TILE, VECTOR

_HALF = TILE // 2
_VECTOR_WORDS = VECTOR // 4


@compiled
def pack_codes(tiles, begin, codes, group, head_words, bits):
    """Write codes of outputs from `begin` on into tiles, where they are 0.

    tiles: uint32 [tiles, groups, words of a group]; codes: uint32 [n, inputs / 4], a byte for each code
    """
    groups, steps = tiles.shape[1], group // 4
    for row in range(len(codes)):
        output = begin + row
        half, lane = output % TILE // _HALF, output % _HALF
        for index in range(groups):
            target, source = tiles[output // TILE, index], codes[row, index * steps : (index + 1) * steps]
            if bits == 8:
                for step in range(steps):
                    target[head_words + (2 * step + half) * _VECTOR_WORDS + lane] = source[step]
            else:
                for step in range(steps):
                    target[head_words + step * _VECTOR_WORDS + lane] |= source[step] << np.uint32(4 * half)


@compiled
def expand_rows(tiles, factors, outputs, order, group, zero, has_offsets, bits, weights):
    """Write the weights of the outputs [n] into `weights`, float32 [n, inputs].

    tiles: uint8 [tiles, groups, bytes of a group]; order: int64 [inputs], the columns of the stored weights
    """
    head = VECTOR * (2 if has_offsets else 1)
    for row in range(len(outputs)):
        output = outputs[row]
        half, lane, factor = output % TILE // _HALF, output % _HALF, factors[output]
        for index in range(tiles.shape[1]):
            source = tiles[output // TILE, index]
            tables = pointer(np.int64(source.ctypes.data), np.int16(0))
            scale = load(tables, output % TILE) * factor
            offset = load(tables, TILE + output % TILE) * factor if has_offsets else np.float32(0)
            for place in range(group):
                step, byte = place // 4, place % 4
                if bits == 8:
                    code = np.int32(source[head + (2 * step + half) * VECTOR + 4 * lane + byte])
                else:
                    code = np.int32(source[head + step * VECTOR + 4 * lane + byte]) >> (4 * half) & 15
                weights[row, order[index * group + place]] = np.float32(code - zero) * scale + offset
