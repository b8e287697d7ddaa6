"""Matrix products of bfloat16 and float16, with weights in the order in which the kernel reads them.

A strip holds the weights of some outputs, from the first to the last pair of inputs, so that a thread reads
memory in order. float16 is multiplied in float32; bfloat16 by `vdpbf16ps` or in float32 (see `half_tile`),
and many rows by AMX if the processor has it and the inputs fill its registers. Each gives a row the same bits
whatever the other rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from ..common import amx
from ..common.amx import DEPTH, SIDE, multiply_square, multiply_wide
from ..common.jit import compiled_fast
from ..common.numba_tools import KIND, fetch_add, has_feature, pointer, shift, store
from ..common.rows import number_at, to_float32
from ..common.teams import divide_piece, find_own_team, place_by_node, take_piece, team_arguments
from ..common.threads import ParallelKernel, thread_count
from ..common.vectors import LANES
from .half_tile import (
    HALF_STRIP,
    MAX_ROWS,
    MULTIPLIES_PAIRS,
    OUTPUTS,
    PAIR,
    STREAM_ROWS,
    VECTORS,
    tiles,
    write_half_strip,
)
from .onednn import onednn_multiplies
from .rounded_rows import BLOCK_ROWS, STEP, STEP_WORDS, block_bytes, pack_rows

AHEAD = 256 // OUTPUTS
"""Pairs of inputs between prefetching and multiplying: 1 KB of weights. With 2 KB, products of 1 to 4 rows
take 1.01 to 1.02 times as long, of 5 rows 1.04 and of 6 rows 1.14 times as long; 0.5 KB is not faster."""

BLOCK = 128 if MULTIPLIES_PAIRS else 32
"""Pairs of inputs that are multiplied with all rows before the next ones: 32 KB of weights, which stay in the
first-level cache, or 4 KB. Meanwhile the next ones are prefetched. With 16 KB in float32, 4 rows take 1.5
times as long if weights are in memory."""

VECTOR_ARGUMENTS, AMX_ARGUMENTS = 9, 12
"""Arguments of `KERNELS` and of `multiply_by_amx`. Those of the teams follow (see `teams`)."""

PANEL = 252 if MULTIPLIES_PAIRS else 96
"""Rows that a thread takes at a time, at most. Their sums stay in the second-level cache. Activations in
float32 take twice the memory: with 252 of 512 rows of 4,096 inputs, products take up to 1.6 times as long."""

MIN_PANEL, MIN_BLOCKS = 4 * MAX_ROWS, 2
"""Where strips are too few for the threads, a thread takes a strip for some of the rows: this many at least,
or this many blocks for AMX. Each thread reads the weights of its strip."""

STRIPS_OF_A_THREAD = 4
"""With fewer strips for each thread, and a number of strips that threads can't share equally, threads take
half a strip at a time for few rows."""

AMX_ACTIVATIONS = 1 << 20
"""Bytes of activations that AMX multiplies at a time, approximately. A thread reads them for each strip, so
they should stay in its second-level cache."""

AMX_ROWS = 5
"""AMX multiplies from this many rows on. For fewer rows `vdpbf16ps` reads the weights faster."""

AMX_AHEAD = 4
"""Steps of DEPTH pairs by which weights are prefetched before AMX needs them, with a single block of rows."""

AMX_SUMS = 4 * BLOCK_ROWS * OUTPUTS
"""Bytes of the sums of a block of rows and a strip."""

PACKED_ELEMENTS = 1 << 22
"""Elements that are packed at a time, approximately."""

NEIGHBOURS = {torch.bfloat16: 1, torch.float16: LANES}
"""Outputs whose first values of a pair are stored one after the other, before their second values."""


def serves(dtype: torch.dtype) -> bool:
    """Whether the product multiplies this dtype: bfloat16 on x86, and both half precisions where oneDNN
    doesn't multiply them."""
    if dtype == torch.bfloat16 and (MULTIPLIES_PAIRS or has_feature("fma")):
        return True
    return dtype in PAIR and not onednn_multiplies(dtype)


class Strips(NamedTuple):
    """A weight in the order in which the kernel reads it."""

    values: torch.Tensor
    """bfloat16 or float16 [strips, pairs, 2 * OUTPUTS], as `half_tile` describes"""
    outputs: int
    inputs: int


class HalfCpuProduct:
    """Holds a copy of the weight [out, in], padded to whole strips and pairs."""

    def __init__(
        self,
        weight: torch.Tensor | Strips,
        bias: torch.Tensor | None,
        batch_invariant: bool = False,
    ) -> None:
        """weight: if it is a tensor, it is only read. batch_invariant: AMX, if available, multiplies any
        number of rows."""
        strips = pack_strips([weight]) if isinstance(weight, torch.Tensor) else weight
        self._weight, self._outputs, self._inputs = strips
        self._bias = None if bias is None else bias.float()
        self.addresses = (self._weight.data_ptr(), 0, 0 if self._bias is None else self._bias.data_ptr())
        """of the weight, nothing, and the bias, 0 for none"""
        self._amx_rows = 1 if batch_invariant else AMX_ROWS
        dtype = self._weight.dtype
        self._has_pairs = MULTIPLIES_PAIRS and dtype == torch.bfloat16
        self._has_amx = self._has_pairs and amx.available() and self._inputs % STEP == 0
        self._kernel = KERNELS[dtype]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        y = torch.empty(rows, self._outputs, dtype=x.dtype)
        x = self._pad(x)
        if not self._has_amx or rows < self._amx_rows:
            self._run(self._kernel, x, y)
            return y
        parts = max(1, -(-rows * 2 * self._inputs // AMX_ACTIVATIONS))
        size = max(1, -(-rows // (parts * BLOCK_ROWS))) * BLOCK_ROWS
        for part, results in zip(x.split(size), y.split(size), strict=True):
            blocks = torch.empty(block_bytes(len(part), self._inputs), dtype=torch.uint8)
            self._run(multiply_by_amx, part, results, blocks.data_ptr(), 0, 0)
        return y

    def prepare(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        """x as the kernel of `KERNELS` reads it, and the arguments."""
        x = self._pad(x)
        return x, (*self._arguments(x, y), torch.get_num_threads())

    def _pad(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous() if self._inputs % 2 == 0 else F.pad(x, (0, 1))
        return x if self._has_pairs else to_float32(x)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns rows of the weight [n, in], of its dtype. ids: the rows' numbers, int32 or int64 [n],
        contiguous."""
        assert ids.dtype in (torch.int32, torch.int64) and ids.is_contiguous()
        weights = torch.empty(len(ids), self._inputs, dtype=self._weight.dtype)
        sizes = (len(ids), self._inputs, self._weight.shape[1], ids.element_size())
        addresses = (ids.data_ptr(), self._weight.data_ptr(), weights.data_ptr(), NEIGHBOURS[weights.dtype])
        copy_rows.run((*sizes, *addresses), thread_count(weights.numel()))
        return weights

    def _run(self, kernel: ParallelKernel, x: torch.Tensor, y: torch.Tensor, *more: int) -> None:
        threads = thread_count(self._weight.numel())
        kernel.run((*self._arguments(x, y), threads, *more, *team_arguments(threads)), threads)

    def _arguments(self, x: torch.Tensor, y: torch.Tensor) -> tuple[int, ...]:
        weight, _, bias = self.addresses
        return len(x), self._outputs, self._weight.shape[1], x.data_ptr(), weight, bias, y.data_ptr()


def pack_strips(parts: Sequence[torch.Tensor]) -> Strips:
    """Packs a weight in parts, bfloat16 or float16 [outputs of a part, in], one after the other."""
    outputs, inputs = sum(len(part) for part in parts), parts[0].shape[1]
    strips, pairs = -(-outputs // OUTPUTS), -(-inputs // 2)
    is_whole = outputs % OUTPUTS == 0 and inputs % 2 == 0
    packed = place_by_node(torch.empty(strips, pairs, OUTPUTS, dtype=torch.int32))
    if not is_whole:
        packed.zero_()
    if any(len(part) % OUTPUTS for part in parts[:-1]):
        parts = [torch.cat(list(parts))]
    first = 0
    for part in parts:
        _pack_part(part, packed[first:])
        first += -(-len(part) // OUTPUTS)
    strip_words = packed.flatten(1).view(parts[0].dtype)
    return Strips(strip_words.view(strips, pairs, 2 * OUTPUTS), outputs, inputs)


def _pack_part(weight: torch.Tensor, packed: torch.Tensor) -> None:
    """Writes the first strips of `packed`, int32 [strips, pairs, OUTPUTS]."""
    (outputs, inputs), pairs = weight.shape, packed.shape[1]
    step = max(1, PACKED_ELEMENTS // (OUTPUTS * inputs))
    for strip in range(0, -(-outputs // OUTPUTS), step):
        part = weight[strip * OUTPUTS : (strip + step) * OUTPUTS]
        lacking = -len(part) % OUTPUTS
        if lacking or inputs % 2:
            part = F.pad(part, (0, inputs % 2, 0, lacking))
        elif part.data_ptr() % 4 or part.storage_offset() % 2:  # tensors in a file may be unaligned
            part = part.clone()
        target = packed[strip : strip + step][: len(part) // OUTPUTS]
        if weight.dtype == torch.bfloat16:
            target[:] = part.view(torch.int32).view(-1, OUTPUTS, pairs).transpose(1, 2)
        else:
            values = part.view(torch.int16).view(-1, VECTORS, LANES, pairs, 2)
            target.view(torch.int16).view(-1, pairs, VECTORS, 2, LANES)[:] = values.permute(0, 3, 1, 4, 2)


_multiply_few = tiles(range(1, STREAM_ROWS + 1), VECTORS)
_multiply_half_strip = tiles(range(1, MAX_ROWS + 1), VECTORS // 2, VECTORS // 2)
_multiply_many = tiles(range(MAX_ROWS // 2, MAX_ROWS + 1), 2)


@compiled_fast
def _multiply_by_vectors(arguments, pair, kind):
    """Arguments: the counter of panels of strips, then those of `HalfCpuProduct` and of the teams.
    pair, kind: see `half_tile.PAIR` and `numba_tools.KIND`."""
    _multiply_panels(arguments, np.empty(min(arguments[1], PANEL) * OUTPUTS, np.float32), pair, kind)


@compiled_fast
def _multiply_panels(arguments, memory, pair, kind):
    """memory: the thread's sums. The caller holds it: numba frees an array after the last use of its name."""
    rows, outputs, threads = arguments[1], arguments[2], arguments[8]
    sums = pointer(np.int64(memory.ctypes.data), np.float32(0))
    strips = (outputs + OUTPUTS - 1) // OUTPUTS
    panels = count_panels(rows, strips, threads, PANEL)
    team = find_own_team(arguments, VECTOR_ARGUMENTS)
    if 0 < rows <= MAX_ROWS and takes_half_strips(strips, threads):
        _multiply_half_strips(arguments, sums, strips, team, pair, kind)
        return
    while True:
        work = take_piece(arguments, VECTOR_ARGUMENTS, team, strips * panels)
        if work >= strips * panels:
            break
        panel, strip = divide_piece(arguments, VECTOR_ARGUMENTS, work, panels, strips)
        first = rows * panel // panels
        count = rows * (panel + 1) // panels - first
        # The other threads take the next strips, so this thread's own next strip follows theirs. With teams
        # they take the panels of a strip first.
        ahead = threads if arguments[VECTOR_ARGUMENTS] == 0 else (panel + threads) // panels
        multiply_strip(arguments, strip, first, count, ahead, sums, pair, kind)


@compiled_fast
def count_panels(rows, strips, threads, panel):
    """Into how many panels of at most `panel` rows the rows are divided: more if there are fewer than two
    strips for each thread."""
    wanted = (2 * threads + strips - 1) // strips
    return max((rows + panel - 1) // panel, min(wanted, rows // MIN_PANEL))


@compiled_fast
def takes_half_strips(strips, threads):
    """Whether threads take half a strip at a time for few rows."""
    return strips < STRIPS_OF_A_THREAD * threads and strips % threads != 0


@compiled_fast
def _multiply_half_strips(arguments, sums, strips, team, pair, kind):
    """Multiplies all rows, at most MAX_ROWS. The bits of the results are those of whole strips."""
    rows, pairs = arguments[1], arguments[3]
    x = pointer(arguments[4], pair)
    while True:
        work = take_piece(arguments, VECTOR_ARGUMENTS, team, 2 * strips)
        if work >= 2 * strips:
            break
        start = work // 2 * pairs * OUTPUTS + work % 2 * HALF_STRIP
        weights = shift(pointer(arguments[5], np.uint32(0)), start)
        later = shift(weights, AHEAD * OUTPUTS)
        _multiply_half_strip(rows, pairs, x, pairs, weights, sums, False, later, OUTPUTS, kind)
        _store_rows(arguments, sums, 0, rows, work * HALF_STRIP, HALF_STRIP, kind)


@compiled_fast
def multiply_strip(arguments, strip, first, count, ahead, sums, pair, kind):
    """Multiplies at most PANEL rows from row `first` on with a strip. Many rows prefetch the strip that is
    `ahead` strips further on. sums: float32 [count, OUTPUTS]"""
    pairs = arguments[3]
    x = shift(pointer(arguments[4], pair), first * pairs)
    weights = shift(pointer(arguments[5], np.uint32(0)), strip * pairs * OUTPUTS)
    if count <= STREAM_ROWS:
        later = shift(weights, AHEAD * OUTPUTS)
        _multiply_few(count, pairs, x, pairs, weights, sums, False, later, OUTPUTS, kind)
    else:
        for begin in range(0, pairs, BLOCK):
            some, end = min(BLOCK, pairs - begin), begin + BLOCK
            later = end if end < pairs else ahead * pairs
            part, then = shift(weights, begin * OUTPUTS), shift(weights, later * OUTPUTS)
            _add_block(shift(x, begin), part, sums, count, some, pairs, begin > 0, then, kind)
    _store_rows(arguments, sums, first, count, strip * OUTPUTS, OUTPUTS, kind)


@compiled_fast
def _add_block(x, weights, sums, rows, count, stride, add, later, kind):
    """The products of `count` pairs, in tiles of nearly equal numbers of rows. The first tiles prefetch the
    block at `later`: two of them half of it each, or four of them a quarter each. The others repeat that,
    which costs little."""
    parts = (rows + MAX_ROWS - 1) // MAX_ROWS
    shares = 4 if parts >= 4 else min(parts, 2)
    step = OUTPUTS // shares
    for index in range(parts):
        row = rows * index // parts
        size = rows * (index + 1) // parts - row
        here, to = shift(x, row * stride), shift(sums, row * OUTPUTS)
        then = shift(later, index % shares * BLOCK * step)
        _multiply_many(size, count, here, stride, weights, to, add, then, step, kind)


@compiled_fast
def _store_rows(arguments, sums, first, count, output, width, kind):
    """Writes the sums of a panel's rows and `width` outputs of a strip, one or two halves, plus the bias."""
    outputs, biased = arguments[2], arguments[6] != 0
    some = min(width, outputs - output)
    for row in range(count):
        for start in range(0, some, HALF_STRIP):
            y = shift(pointer(arguments[7], kind), (first + row) * outputs + output + start)
            bias = shift(pointer(arguments[6], np.float32(0)), output + start)
            of_row = shift(sums, row * OUTPUTS + start)
            if some - start >= HALF_STRIP:
                write_half_strip(of_row, bias, biased, y)
            elif biased:
                for i in range(some - start):
                    store(y, i, of_row[i] + bias[i])
            else:
                for i in range(some - start):
                    store(y, i, of_row[i])


@ParallelKernel
def multiply_by_amx(arguments):
    """Arguments: the counter of strips, those of `HalfCpuProduct`, the address of the blocks of rows, the
    counters of `pack_rows`, and those of the teams."""
    multiply_blocks(arguments, np.empty(AMX_SUMS + 2 * amx.SHAPES_BYTES, np.uint8))


@compiled_fast
def multiply_blocks(arguments, memory):
    """memory: for the thread's sums, of a block of rows and a strip, and the shapes of AMX's registers. The
    caller holds it, see `_multiply_panels`."""
    rows, outputs, pairs = arguments[1], arguments[2], arguments[3]
    x, blocks = pointer(arguments[4], np.uint16(0)), pointer(arguments[9], np.uint32(0))
    pack_rows(x, rows, 2 * pairs, blocks, shift(arguments, 10), shift(arguments, 11))
    line = amx.SHAPES_BYTES  # also the size of a cache line; sums that begin at one are stored faster
    start = (np.int64(memory.ctypes.data) + line - 1) // line * line
    sums = pointer(start, np.float32(0))
    amx.load_shapes(pointer(start + AMX_SUMS, np.uint8(0)))
    weights, steps = pointer(arguments[5], np.uint32(0)), pairs // DEPTH
    strips, turns = (outputs + OUTPUTS - 1) // OUTPUTS, (rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    # If there are fewer than two strips for each thread, a thread takes a strip for a part of the blocks.
    parts = max(1, min((2 * arguments[8] + strips - 1) // strips, turns // MIN_BLOCKS))
    # While the blocks of rows are multiplied with a strip, each prefetches a part of the next strip. Nothing
    # has prefetched the first strip, so its weights are prefetched shortly before they are multiplied. With a
    # single block of rows this is done for each strip.
    whole, in_part = DEPTH * OUTPUTS // LANES, turns // parts
    lines = (whole + in_part - 1) // in_part
    team, is_first = find_own_team(arguments, AMX_ARGUMENTS), True
    work = take_piece(arguments, AMX_ARGUMENTS, team, strips * parts)
    while work < strips * parts:
        following = take_piece(arguments, AMX_ARGUMENTS, team, strips * parts)
        strip, part = work // parts, work % parts
        of_strip = shift(weights, strip * pairs * OUTPUTS)
        next_strip = shift(weights, min(following // parts, strips) * pairs * OUTPUTS)
        begin = turns * part // parts
        for turn in range(begin, turns * (part + 1) // parts):
            first = turn * BLOCK_ROWS
            count, block = min(BLOCK_ROWS, rows - first), shift(blocks, turn * steps * STEP_WORDS)
            if turns == 1 or (is_first and turn == begin):
                later, some = shift(of_strip, AMX_AHEAD * DEPTH * OUTPUTS), whole
            else:
                later, some = shift(next_strip, (turn - begin) * steps * lines * LANES), lines
            _multiply_block(count, pairs, block, of_strip, sums, later, some)
            _store_rows(arguments, sums, first, count, strip * OUTPUTS, OUTPUTS, np.uint16(0))
        is_first = False
        work = following
    amx.release_tiles()


@compiled_fast
def _multiply_block(rows, pairs, block, weights, sums, later, lines):
    """Multiplies the first `rows` rows of a block with a strip."""
    if rows <= BLOCK_ROWS // 2:
        multiply_wide(pairs, block, DEPTH, STEP_WORDS, weights, OUTPUTS, sums, OUTPUTS, False, later, lines)
    else:
        multiply_square(pairs, block, DEPTH, STEP_WORDS, weights, OUTPUTS, sums, OUTPUTS, False, later, lines)
        weights, sums = shift(weights, SIDE), shift(sums, SIDE)
        multiply_square(pairs, block, DEPTH, STEP_WORDS, weights, OUTPUTS, sums, OUTPUTS, False, later, 0)


@ParallelKernel
def copy_rows(arguments):
    """Arguments: the counter of rows, then those of `HalfCpuProduct.rows`."""
    inputs, pairs, neighbours = arguments[2], arguments[3], arguments[8]
    while True:
        row = fetch_add(arguments, 1)
        if row >= arguments[1]:
            break
        strip, output = divmod(number_at(arguments[5], arguments[4], row), OUTPUTS)
        place = output + output // neighbours * neighbours
        weights = shift(pointer(arguments[6], np.uint16(0)), 2 * strip * pairs * OUTPUTS + place)
        target = shift(pointer(arguments[7], np.uint16(0)), row * inputs)
        for i in range(inputs):
            target[i] = weights[i // 2 * 2 * OUTPUTS + i % 2 * neighbours]


KERNELS = {dtype: ParallelKernel(_multiply_by_vectors, pair, KIND[dtype]) for dtype, pair in PAIR.items()}
"""`_multiply_by_vectors` by the weights' dtype"""
