"""Products of rows with the weights of several experts, in one parallel region on a CPU.

Each kernel does what that of the dense product does; its threads take pieces of all experts' products. The
works that `sorting_cpu.sort` writes tell which rows belong to which expert, so a recorded program serves any
routing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch

from ..common.jit import compiled, compiled_fast, insert_into_caller
from ..common.numba_tools import KIND, fetch_add, pointer, shift
from ..common.teams import divide_piece, find_own_team, take_piece, take_pieces, team_arguments
from ..common.threads import ParallelKernel
from ..linear import Linear, fp8_cpu, fp8_tile, half_cpu, half_tile, integer_cpu
from ..linear.byte_dots import TILE, tile_bytes
from ..linear.fp8 import Fp8CpuProduct
from ..linear.half_cpu import HalfCpuProduct
from ..linear.integer import IntegerCpuProduct
from ..linear.integer_cpu import WHOLE
from .sorting_cpu import MAX_ROWS, WORK

ADDRESSES = 3
"""the addresses of an expert's product"""

INTEGER_TEAMS, FP8_TEAMS, HALF_TEAMS = (
    2 + count for count in (integer_cpu.ARGUMENTS, fp8_cpu.ARGUMENTS, half_cpu.VECTOR_ARGUMENTS)
)
"""The indices of the teams' arguments. Before them come those of the dense product and the addresses of the
works and of the experts' addresses."""

_Product = IntegerCpuProduct | Fp8CpuProduct | HalfCpuProduct


class GroupedProduct:
    """y[i] = x[i] · the weight of its expert."""

    def __init__(self, products: Sequence[_Product], outputs: int) -> None:
        self._products, self._outputs = products, outputs
        self._addresses = torch.tensor([each.addresses for each in products])

    @staticmethod
    def of(linears: Sequence[Linear]) -> GroupedProduct | None:
        """None: there is no kernel for these weights. All have one shape."""
        of_linears = (each.product for each in linears)
        products = [each for each in of_linears if _is_served(each)]
        if len(products) < len(linears) or len({_describe(each) for each in products}) > 1:
            return None
        return GroupedProduct(products, linears[0].out_features)

    def __call__(self, x: torch.Tensor, works: torch.Tensor) -> torch.Tensor:
        """x: [rows, inputs], sorted by experts; works: see `sorting_cpu.Order`. Rows without an expert have
        undefined results."""
        y = torch.empty(len(x), self._outputs, dtype=x.dtype)
        first = self._products[0]
        kept, arguments = first.prepare(x, y)
        threads = torch.get_num_threads()
        more = (works.data_ptr(), self._addresses.data_ptr(), *team_arguments(threads))
        _find_kernel(first, x.dtype).run((*arguments, *more), threads)
        del kept  # the kernel has read it
        return y


def _is_served(product: object) -> TypeGuard[_Product]:
    if isinstance(product, IntegerCpuProduct):
        return product.input_order is None
    if isinstance(product, Fp8CpuProduct):
        return product.shape.inputs % 2 == 0
    return isinstance(product, HalfCpuProduct)


def _describe(product: _Product) -> object:
    if isinstance(product, IntegerCpuProduct | Fp8CpuProduct):
        return type(product), product.shape
    return type(product)


def _find_kernel(product: _Product, dtype: torch.dtype) -> ParallelKernel:
    if isinstance(product, IntegerCpuProduct):
        return INTEGERS[product.kind]
    if isinstance(product, Fp8CpuProduct):
        return FP8_PAIRS if fp8_cpu.multiplies_pairs(dtype) else FP8_FLOATS[dtype]
    return HALVES[dtype]


@compiled
def _count_works(works):
    return pointer(works, np.int64(0))[0]


@compiled
def _take(work, works, addresses, own, place):
    """Writes the addresses of a work's weight from index `place` of the arguments `own` on. Returns the first
    row and the number of rows."""
    numbers = shift(pointer(works, np.int64(0)), 1 + WORK * work)
    of_expert = shift(pointer(addresses, np.int64(0)), ADDRESSES * numbers[0])
    for i in range(ADDRESSES):
        own[place + i] = of_expert[i]
    return numbers[1], numbers[2]


@compiled
def _copy(arguments, count):
    """The first `count` arguments, and place for an expert's addresses."""
    own = np.empty(count + ADDRESSES, np.int64)
    for i in range(count):
        own[i] = arguments[i]
    return own


@compiled
def _multiply_integers(arguments, bits, stored, has_offsets, sum_kind):
    """Arguments: those of `integer_cpu`, without AMX, then the addresses of the works and of the experts'
    addresses."""
    integer_cpu.quantize(arguments, has_offsets, WHOLE)
    memory = arguments[18] + fetch_add(shift(arguments, 19), 1) * arguments[21]
    _multiply_tiles(arguments, _copy(arguments, 29), memory, bits, stored, has_offsets, sum_kind)


@insert_into_caller
def _multiply_tiles(arguments, own, memory, bits, stored, has_offsets, sum_kind):
    """own: a copy of the arguments, which the caller holds"""
    tiles = (arguments[5] + TILE - 1) // TILE
    whole_tile = tile_bytes(stored, arguments[6], arguments[7], has_offsets)
    given = pointer(np.int64(own.ctypes.data), np.int64(0))
    works = _count_works(arguments[29])
    total, team = works * tiles, find_own_team(arguments, INTEGER_TEAMS)
    while True:
        begin, end = take_pieces(arguments, INTEGER_TEAMS, team, total, arguments[22])
        if begin >= total:
            break
        for index in range(begin, end):
            work, tile = divide_piece(arguments, INTEGER_TEAMS, index, works, tiles)
            first, rows = _take(work, arguments[29], arguments[30], given, 14)
            near, has_teams = 2 * rows <= bits, arguments[INTEGER_TEAMS] != 0
            ahead = 1 if index + 1 < end and tile + 1 < tiles and not has_teams else 0
            at, output = given[14] + tile * whole_tile, tile * TILE
            integer_cpu.multiply_tile(
                given, at, whole_tile, stored, sum_kind, memory, output, first, first + rows, near, ahead
            )


@compiled
def _multiply_fp8(arguments, pair, kind):
    """Arguments: those of `fp8_cpu`, then the addresses of the works and of the experts' addresses."""
    memory = np.empty((min(arguments[1], MAX_ROWS) + 2 * fp8_cpu.BLOCK) * fp8_tile.OUTPUTS, np.float32)
    _multiply_fp8_strips(arguments, _copy(arguments, 10), memory, pair, kind)


@insert_into_caller
def _multiply_fp8_strips(arguments, own, memory, pair, kind):
    """own, memory: held by the caller"""
    outputs = arguments[2]
    given = pointer(np.int64(own.ctypes.data), np.int64(0))
    sums = pointer(np.int64(memory.ctypes.data), np.float32(0))
    buffer = shift(sums, fp8_tile.OUTPUTS * min(arguments[1], MAX_ROWS))
    strips = (outputs + fp8_tile.OUTPUTS - 1) // fp8_tile.OUTPUTS
    works = _count_works(arguments[11])
    total, team = works * strips, find_own_team(arguments, FP8_TEAMS)
    while True:
        index = take_piece(arguments, FP8_TEAMS, team, total)
        if index >= total:
            break
        work, strip = divide_piece(arguments, FP8_TEAMS, index, works, strips)
        first, rows = _take(work, arguments[11], arguments[12], given, 6)
        fp8_cpu.multiply_strip(given, strip, first, rows, sums, buffer, pair)
        fp8_cpu.store_rows(given, sums, first, rows, strip * fp8_tile.OUTPUTS, kind)


@compiled_fast
def _multiply_halves(arguments, pair, kind):
    """Arguments: those of `half_cpu.KERNELS`, then the addresses of the works and of the experts'
    addresses."""
    memory = np.empty(min(arguments[1], MAX_ROWS) * half_tile.OUTPUTS, np.float32)
    _multiply_half_precision_strips(arguments, _copy(arguments, 9), memory, pair, kind)


@compiled_fast
def _multiply_half_precision_strips(arguments, own, memory, pair, kind):
    """own, memory: held by the caller"""
    given = pointer(np.int64(own.ctypes.data), np.int64(0))
    sums = pointer(np.int64(memory.ctypes.data), np.float32(0))
    strips = (arguments[2] + half_tile.OUTPUTS - 1) // half_tile.OUTPUTS
    works = _count_works(arguments[9])
    total, team = works * strips, find_own_team(arguments, HALF_TEAMS)
    while True:
        index = take_piece(arguments, HALF_TEAMS, team, total)
        if index >= total:
            break
        work, strip = divide_piece(arguments, HALF_TEAMS, index, works, strips)
        first, rows = _take(work, arguments[9], arguments[10], given, 9)
        given[5], given[6] = given[9], given[11]
        half_cpu.multiply_strip(given, strip, first, rows, 1, sums, pair, kind)


INTEGERS = integer_cpu.kernels_by_format(_multiply_integers)
FP8_PAIRS = ParallelKernel(_multiply_fp8, np.uint32(0), KIND[torch.bfloat16])
FP8_FLOATS = {dtype: ParallelKernel(_multiply_fp8, np.uint64(0), kind) for dtype, kind in KIND.items()}
HALVES = {
    dtype: ParallelKernel(_multiply_halves, pair, KIND[dtype]) for dtype, pair in half_tile.PAIR.items()
}
