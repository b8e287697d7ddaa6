# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Quantized weights in and out of their tiles (see `byte_dots`)."""

import numpy as np

from ..common.jit import compiled
from .byte_dots import TILE, VECTOR


@compiled
def pack_codes(tiles, begin, codes, group, head, bits):
    """Write codes [n, inputs] of outputs from `begin` on into tiles [tiles, groups, bytes], uint8, where the
    codes' bytes are 0."""
    outputs, inputs = codes.shape
    for row in range(outputs):
        tile, lane = divmod(begin + row, TILE)
        half, lane = divmod(lane, TILE // 2)
        for column in range(inputs):
            index, place = divmod(column, group)
            step, byte = divmod(place, 4)
            if bits == 8:
                tiles[tile, index, head + (2 * step + half) * VECTOR + 4 * lane + byte] = codes[row, column]
            else:
                shifted = np.uint8(codes[row, column] << np.uint8(4 * half))
                tiles[tile, index, head + step * VECTOR + 4 * lane + byte] |= shifted


@compiled
def read_codes(tiles, outputs, group, head, bits, codes):
    """Write the codes of the outputs [n] into `codes` [n, inputs], uint8."""
    inputs = codes.shape[1]
    for row in range(len(outputs)):
        tile, lane = divmod(outputs[row], TILE)
        half, lane = divmod(lane, TILE // 2)
        for column in range(inputs):
            index, place = divmod(column, group)
            step, byte = divmod(place, 4)
            if bits == 8:
                codes[row, column] = tiles[tile, index, head + (2 * step + half) * VECTOR + 4 * lane + byte]
            else:
                both = tiles[tile, index, head + step * VECTOR + 4 * lane + byte]
                codes[row, column] = (both >> np.uint8(4 * half)) & np.uint8(15)
