"""The product of activations with a quantized weight, in one parallel region."""

from collections.abc import Callable

import numpy as np
import torch

from ..common.amx import DEPTH, SHAPES_BYTES, load_shapes, multiply_square, release_tiles
from ..common.jit import compiled, insert_into_caller
from ..common.numba_tools import fetch_add, pointer, prefetch, shift
from ..common.teams import find_own_team, take_piece, take_pieces
from ..common.threads import ParallelKernel
from .byte_dots import FORMATS, TILE, VECTOR, TileFormat, tile_bytes
from .integer_panels import PANEL, PANEL_BYTES, block_offset, multiply_panel, start_panels
from .integer_tiles import widen_groups
from .rounded_rows import BLOCK_ROWS, STEP, STEP_WORDS, pack_rows, quantize_groups, wait_until
from .tile_products import MAX_ROWS, WHOLE_PACE, add_products, write_results

FEW_ROWS = 16
"""Up to this many rows, a product is limited by reading the weight."""

MEMORY_BYTES = max(4 * TILE * (FEW_ROWS + MAX_ROWS), PANEL_BYTES)
"""Scratch memory of each thread. It holds either the results of FEW_ROWS rows, rounded up to whole passes,
and a copy of one row's, or what `integer_panels` needs for a panel."""

WIDENED_AT = 4 * TILE * (BLOCK_ROWS + 1) + SHAPES_BYTES
"""Where the widened tiles begin in a thread's memory for AMX_BFLOAT16. Before them come the results of a
block of rows, a copy of one row's, and the shapes of AMX's registers."""

ROWS_BEYOND = BLOCK_ROWS
"""The kernels read the codes of up to this many rows after the last one, and ignore those rows' products."""

ARGUMENTS, WIDENED_ARGUMENTS = 29, 23
"""Arguments of a product, and of one by AMX_BFLOAT16. Those of the teams follow (see `teams`)."""

PIECE = 1024
"""Inputs of a row that a thread quantizes at a time, approximately."""

NEAR, FAR = 1024, 8192
"""Bytes between the codes that are multiplied and those that are prefetched: NEAR for up to 2 rows with 4
bits and up to 4 rows with 8 bits, FAR for more. 4 rows with 8 bits take 1.08 times as long with FAR as with
NEAR, 4 rows with 4 bits 1.12 times as long with NEAR as with FAR (bench/results/cpu-notes.md)."""

HALVED_ROWS, OUTPUTS_OF_A_ROW = 64, 16
"""A product of at least HALVED_ROWS rows is computed by two sides of threads, each for half of the rows, if
it has at most OUTPUTS_OF_A_ROW outputs for each row. Threads with even numbers are side 0, the others side 1.
Both sides read all weights, but fewer codes of activations pass from core to core."""

WHOLE = 2
"""the side of a thread if rows are not halved"""

NO_AMX, AMX_BYTES, AMX_BFLOAT16 = range(3)
"""How a product is computed: without AMX; by AMX as `integer_panels` describes, or after
`integer_tiles.widen_groups`."""

FLOAT32, BFLOAT16, FLOAT16 = range(3)
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


@compiled
def _add_products(rows, passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, fetch):
    """`add_products`, in a function of its own: otherwise each caller would contain all of its code."""
    add_products(rows, passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, fetch)


@compiled
def _size_of_passes(rows):
    """Chooses how many rows a pass has, from 4 to MAX_ROWS, so that the last pass has the fewest unused rows.
    Of equally good numbers it takes the largest."""
    best = MAX_ROWS
    for size in range(MAX_ROWS - 1, 3, -1):
        if (rows + size - 1) // size * size < (rows + best - 1) // best * best:
            best = size
    return best


@compiled
def quantize(arguments, has_offsets, side):
    """Quantizes rows together with the other threads, and waits until all are quantized.

    side: threads of side 1 begin with the last rows, all others with the first ones
    """
    rows, inputs, group, parts, x = arguments[4], arguments[6], arguments[7], arguments[8], arguments[10]
    zero = np.int32(arguments[9])
    codes = pointer(arguments[11], np.int8(0))
    scales = pointer(arguments[12], np.float32(0))
    sums = pointer(arguments[13], np.float32(0))
    groups = inputs // (group * parts)
    step = max(1, PIECE // (group * parts))
    pieces = (groups + step - 1) // step
    done = shift(arguments, 2)
    while True:
        piece = fetch_add(shift(arguments, 1), 1)
        if piece >= rows * pieces:
            break
        if side != WHOLE:
            piece = fetch_add(shift(arguments, 24 + side), 1)
            if side == 1:
                piece = rows * pieces - 1 - piece
        row, first = piece // pieces, piece % pieces * step
        count = min(step, groups - first)
        start = row * groups + first
        at = start * parts * group
        of_codes, step_codes = shift(codes, at), parts * group
        if arguments[20] == AMX_BYTES:
            of_codes, step_codes = shift(codes, block_offset(row, first, groups)), BLOCK_ROWS * group
        out = of_codes, step_codes, shift(scales, start), shift(sums, start * parts)
        if arguments[3] == FLOAT32:
            wide = shift(pointer(x, np.float32(0)), at)
            quantize_groups(wide, count, parts, group, *out, zero, has_offsets)
        elif arguments[3] == BFLOAT16:
            brain = shift(pointer(x, np.uint16(0)), at)
            quantize_groups(brain, count, parts, group, *out, zero, has_offsets)
        else:
            half = shift(pointer(x, np.int16(0)), at)
            quantize_groups(half, count, parts, group, *out, zero, has_offsets)
        fetch_add(done, 1)
    wait_until(done, rows * pieces)


@compiled
def _prefetch_results(arguments, first, rows, output):
    """Prefetches where the results of some rows and one tile will be written: a line or two of each row."""
    size = 4 if arguments[3] == FLOAT32 else 2
    y = pointer(arguments[17], np.uint8(0))
    for row in range(first, first + rows):
        at = (row * arguments[5] + output) * size
        for start in range(0, TILE * size, VECTOR):
            prefetch(y, at + start)


@compiled
def _store_rows(arguments, totals, first, rows, output):
    """Writes the results of some rows and one tile, whose first output is `output`."""
    y = arguments[17]
    if arguments[3] == FLOAT32:
        _store(arguments, totals, first, rows, output, y, np.float32(0))
    elif arguments[3] == BFLOAT16:
        _store(arguments, totals, first, rows, output, y, np.uint16(0))
    else:
        _store(arguments, totals, first, rows, output, y, np.int16(0))


@compiled
def _store(arguments, totals, first, rows, output, y, kind):
    outputs = arguments[5]
    count = min(TILE, outputs - output)
    factors = shift(pointer(arguments[15], np.float32(0)), output)
    bias = shift(pointer(arguments[16], np.float32(0)), output)
    whole = pointer(totals + 4 * rows * TILE, kind)
    for row in range(rows):
        total = pointer(totals + 4 * row * TILE, np.float32(0))
        target = shift(pointer(y, kind), (first + row) * outputs + output)
        if count == TILE:
            write_results(total, factors, bias, arguments[16] != 0, target)
        else:
            write_results(total, factors, bias, arguments[16] != 0, whole)
            for i in range(count):
                target[i] = whole[i]


@compiled
def multiply_tile(
    arguments, address, whole_tile, stored, sum_kind, totals, output, begin, end, near, tiles_ahead
):
    """Multiplies rows `begin` to `end` with one tile, whose first output is `output`.

    Up to FEW_ROWS rows are multiplied in one turn: each part of the tile with all rows, then the next part,
    so that the thread reads the weight at an even pace. More rows take several turns of up to MAX_ROWS rows,
    each with the whole tile. Each turn but the first prefetches a part of the thread's next tile, which is
    `tiles_ahead` tiles further on; 0: that is not known.
    whole_tile: its bytes; stored: of the type that stands for its format in `byte_dots.FORMATS`
    near: the first turn prefetches NEAR bytes ahead, otherwise FAR

    Callers pass no literals, because numba would compile the function again for each literal.
    """
    rows, inputs, group, parts = end - begin, arguments[6], arguments[7], arguments[8]
    groups, steps = inputs // (group * parts), group // 4
    codes = pointer(address, stored)
    out = pointer(totals, np.float32(0))
    turns = 1 if rows <= FEW_ROWS else (rows + MAX_ROWS - 1) // MAX_ROWS
    for number in range(turns):
        row = begin + rows * number // turns
        some = begin + rows * (number + 1) // turns - row
        size = max(1, some) if some <= MAX_ROWS else _size_of_passes(some)
        passes = (some + size - 1) // size
        for i in range(passes * size * TILE):
            out[i] = np.float32(0)
        x = shift(pointer(arguments[11], np.int8(0)), row * inputs)
        scales = shift(pointer(arguments[12], np.float32(0)), row * groups)
        sums = shift(pointer(arguments[13], sum_kind), row * groups * parts)
        fetch = NEAR if near else FAR, WHOLE_PACE
        if number > 0:
            fetch = 0, WHOLE_PACE  # prefetches what is multiplied anyway
            if tiles_ahead > 0:
                first = whole_tile * (number - 1) // (turns - 1)
                fetch = whole_tile * tiles_ahead + first, -(-WHOLE_PACE // (turns - 1))
        if rows > FEW_ROWS:
            _prefetch_results(arguments, row, some, output)
        wide = groups * parts
        _add_products(
            size, passes, groups, parts, steps, codes, x, inputs, scales, groups, sums, wide, out, fetch
        )
        _store_rows(arguments, totals, row, some, output)


@compiled
def _multiply_panels(arguments, address, bits, has_offsets, sum_kind, memory, output):
    """Multiplies all rows with one tile by AMX. The results are those of `multiply_tile`."""
    rows = arguments[4]
    for row in range(0, rows, PANEL):
        count = min(PANEL, rows - row)
        _prefetch_results(arguments, row, count, output)
        multiply_panel(arguments, address, bits, has_offsets, sum_kind, memory, row, count)
        _store_rows(arguments, memory, row, count, output)


@compiled
def _pack(arguments):
    """Writes the blocks of rows for AMX together with the other threads."""
    rows, inputs, x = arguments[4], arguments[6], arguments[10]
    blocks, taken, done = pointer(arguments[11], np.uint32(0)), shift(arguments, 1), shift(arguments, 2)
    if arguments[3] == FLOAT32:
        pack_rows(pointer(x, np.float32(0)), rows, inputs, blocks, taken, done)
    elif arguments[3] == BFLOAT16:
        pack_rows(pointer(x, np.uint16(0)), rows, inputs, blocks, taken, done)
    else:
        pack_rows(pointer(x, np.int16(0)), rows, inputs, blocks, taken, done)


@compiled
def multiply_widened(arguments, tiles, whole_tile, stored, sum_kind):
    """Widens some tiles to bfloat16 and multiplies them with all rows, then the next ones."""
    _pack(arguments)
    rows, inputs, group, some = arguments[4], arguments[6], arguments[7], arguments[22]
    memory = arguments[18] + fetch_add(shift(arguments, 19), 1) * arguments[21]
    load_shapes(pointer(memory + WIDENED_AT - SHAPES_BYTES, np.uint8(0)))
    sums = pointer(memory, np.float32(0))
    widened = pointer(memory + WIDENED_AT, np.uint32(0))
    blocks = pointer(arguments[11], np.uint32(0))
    tile_words, block_words = inputs // 2 * TILE, inputs // STEP * STEP_WORDS
    blocks_of_tiles, team = (tiles + some - 1) // some, find_own_team(arguments, WIDENED_ARGUMENTS)
    while True:
        begin = take_piece(arguments, WIDENED_ARGUMENTS, team, blocks_of_tiles) * some
        if begin >= tiles:
            break
        count = min(some, tiles - begin)
        for index in range(count):
            address = arguments[14] + (begin + index) * whole_tile
            to = shift(widened, index * tile_words)
            widen_groups(address, inputs // group, group // 4, arguments[9], stored, sum_kind, to)
        for row in range(0, rows, BLOCK_ROWS):
            x = shift(blocks, row // BLOCK_ROWS * block_words)
            size = min(BLOCK_ROWS, rows - row)
            for index in range(count):
                output = (begin + index) * TILE
                _prefetch_results(arguments, row, size, output)
                weights = shift(widened, index * tile_words)
                multiply_square(inputs // 2, x, DEPTH, STEP_WORDS, weights, TILE, sums, TILE, False, x, 0)
                _store_rows(arguments, memory, row, size, output)
    release_tiles()


@insert_into_caller
def _multiply_halves(arguments, tiles, whole_tile, stored, sum_kind, memory, side):
    """Multiplies the half of the rows that belongs to this thread's side with one tile after another.

    A thread whose side has no tiles left takes the other side's, from the last one backwards. So most codes
    of activations are read by the core that has written them, and a slower core does less.
    """
    rows = arguments[4]
    while fetch_add(shift(arguments, 26), 1) < 2 * tiles:
        tile, half = fetch_add(shift(arguments, 27 + side), 1), side
        if tile >= tiles:
            tile, half = 2 * tiles - 1 - tile, 1 - side
        begin, end = rows * half // 2, rows * (half + 1) // 2
        address = arguments[14] + tile * whole_tile
        # Between two tiles of a thread, each other thread of its side probably takes one.
        ahead = max(1, arguments[22] // 4) if half == side else 0
        multiply_tile(
            arguments,
            address,
            whole_tile,
            stored,
            sum_kind,
            memory,
            tile * TILE,
            begin,
            end,
            np.bool_(False),
            ahead,
        )


@compiled
def _multiply(arguments, bits, stored, has_offsets, sum_kind):
    """Arguments, in order: three counters, of the tiles that threads have taken, of the pieces of x that
    threads have begun to quantize, and of the quantized pieces; the kind of
    x and y, rows, outputs, inputs, group of weights, such groups that share a scale of activations, zero; the
    addresses of x, its codes (of its blocks for AMX_BFLOAT16), scales and sums, the tiles, the outputs'
    factors, the bias or 0, y, and the threads' memory; the counter of threads; how the product is computed;
    the bytes of each thread's memory; for AMX_BFLOAT16, the tiles that a thread takes at a time; otherwise
    the divisor: a thread takes the remaining tiles divided by it, at least one. Then, except for
    AMX_BFLOAT16: whether each half of the rows belongs to one side of the threads; counters of the pieces
    that each side has begun to quantize, of all tiles taken for a half, and of those that each side took. The
    last are those of the teams."""
    tiles = (arguments[5] + TILE - 1) // TILE
    whole_tile = tile_bytes(stored, arguments[6], arguments[7], has_offsets)
    if arguments[20] == AMX_BFLOAT16:
        multiply_widened(arguments, tiles, whole_tile, stored, sum_kind)
        return
    number = fetch_add(shift(arguments, 19), 1)
    memory = arguments[18] + number * arguments[21]
    side = number % 2 if arguments[23] != 0 else WHOLE
    quantize(arguments, has_offsets, side)
    if side != WHOLE:
        _multiply_halves(arguments, tiles, whole_tile, stored, sum_kind, memory, side)
        return
    if arguments[20] == AMX_BYTES:
        start_panels(memory)
    near, start, team = 2 * arguments[4] <= bits, np.int64(0), find_own_team(arguments, ARGUMENTS)
    # At the start of each block of tiles a thread waits for the first lines, which nothing has prefetched.
    # So the first blocks are large, and the last ones small.
    while True:
        begin, end = take_pieces(arguments, ARGUMENTS, team, tiles, arguments[22])
        if begin >= tiles:
            break
        for tile in range(begin, end):
            at, output = arguments[14] + tile * whole_tile, tile * TILE
            if arguments[20] == AMX_BYTES:
                _multiply_panels(arguments, at, bits, has_offsets, sum_kind, memory, output)
            else:
                rows, ahead = arguments[4], 1 if tile + 1 < end else 0
                multiply_tile(
                    arguments, at, whole_tile, stored, sum_kind, memory, output, start, rows, near, ahead
                )
    if arguments[20] == AMX_BYTES:
        release_tiles()


def kernels_by_format(function: Callable[..., None]) -> dict[tuple[TileFormat, bool], ParallelKernel]:
    """The kernels of a function that takes the arguments, then the bits of a code, a value of the type that
    stands for the format in FORMATS, whether offsets are stored, and a value of the type of the activations'
    sums. By the format and whether offsets are stored."""
    return {
        (form, has_offsets): ParallelKernel(
            function, form.bits, np.dtype(str(kind)).type(0), has_offsets, sum_kind
        )
        for kind, form in FORMATS.items()
        for has_offsets, sum_kind in ((False, np.int32(0)), (True, np.float32(0)))
    }


KERNELS = kernels_by_format(_multiply)
