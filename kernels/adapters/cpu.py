"""Additions of adapters on a CPU: one kernel for A, one for B."""

from __future__ import annotations

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.lanes import fill_lanes, load_wide, multiply_add, store_narrow, sum_lanes
from ..common.numba_tools import KIND, fetch_add, fma, load, pointer, shift, store
from ..common.threads import ParallelKernel, thread_count
from ..common.vectors import LANES
from .layout import DOWN, RANK, RANKS, SCALES, UP, ProductTable

COLUMNS = 512
"""outputs that a thread adds to at a time"""


def add_products(table: ProductTable, rows: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    (count, inputs), outputs, parts = x.shape, y.shape[1], len(table.sizes)
    low = torch.empty(count, table.width, dtype=torch.float32)
    tables = rows.data_ptr(), table.entries.data_ptr(), table.step
    sizes = count, inputs, outputs, parts, table.width
    addresses = x.data_ptr(), low.data_ptr(), y.data_ptr(), table.ends.data_ptr()
    threads = thread_count(count * max(inputs, outputs) * table.width)
    DOWN_KERNELS[x.dtype].run((*tables, *sizes, *addresses), threads)
    UP_KERNELS[x.dtype].run((*tables, *sizes, *addresses), threads)


@compiled_fast
def _multiply_down(arguments, kind):
    """low[place] = scale · A x[row] for the rows in their order. Arguments: the counter of pieces, then those
    of `add_products`."""
    head = pointer(arguments[1], np.int32(0))
    count, inputs, parts, width = arguments[4], arguments[5], arguments[7], arguments[8]
    blocks, pieces = np.int64(head[0]), (width + RANKS - 1) // RANKS
    order = shift(head, 1)
    while True:
        work = fetch_add(arguments, 1)
        if work >= blocks * pieces:
            break
        block = shift(head, 1 + count + work // pieces * 3)
        entry = shift(pointer(arguments[2], np.int64(0)), np.int64(block[0]) * arguments[3])
        rank, first, number = entry[RANK], np.int64(block[1]), np.int64(block[2])
        begin = work % pieces * RANKS
        end = min(parts * rank, begin + RANKS)
        if begin >= end:
            continue
        scales = pointer(entry[SCALES], np.float32(0))
        a = pointer(entry[DOWN], kind)
        x = pointer(arguments[9], kind)
        low = shift(pointer(arguments[10], np.float32(0)), first * width)
        whole = number - number % 4
        for at in range(0, whole, 4):
            p0 = shift(x, np.int64(order[first + at]) * inputs)
            p1 = shift(x, np.int64(order[first + at + 1]) * inputs)
            p2 = shift(x, np.int64(order[first + at + 2]) * inputs)
            p3 = shift(x, np.int64(order[first + at + 3]) * inputs)
            for j in range(begin, end):
                if scales[j // rank] != np.float32(0):
                    _multiply_four(
                        shift(a, j * inputs), p0, p1, p2, p3, inputs, shift(low, at * width + j), width
                    )
        for at in range(whole, number):
            row = shift(x, np.int64(order[first + at]) * inputs)
            for j in range(begin, end, 4):
                some = shift(a, j * inputs)
                last = end - 1 - j
                p1 = shift(some, min(last, 1) * inputs)
                p2 = shift(some, min(last, 2) * inputs)
                p3 = shift(some, min(last, 3) * inputs)
                _multiply_four(row, some, p1, p2, p3, inputs, shift(low, at * width + j), np.int64(1))
        for at in range(number):
            for j in range(begin, end):
                scale = scales[j // rank]
                value = low[at * width + j]
                low[at * width + j] = value * scale if scale != np.float32(0) else np.float32(0)


@compiled_fast
def _multiply_four(one, p0, p1, p2, p3, size, out, stride):
    """out[i · stride] = the product of `one` and p_i. Each has the same bits wherever it stands."""
    a = b = c = d = fill_lanes(np.float32(0))
    end = size - size % LANES
    for i in range(0, end, LANES):
        values = load_wide(one, i)
        a = multiply_add(values, load_wide(p0, i), a)
        b = multiply_add(values, load_wide(p1, i), b)
        c = multiply_add(values, load_wide(p2, i), c)
        d = multiply_add(values, load_wide(p3, i), d)
    w, x, y, z = sum_lanes(a), sum_lanes(b), sum_lanes(c), sum_lanes(d)
    for i in range(end, size):
        value = load(one, i)
        w, x = fma(value, load(p0, i), w), fma(value, load(p1, i), x)
        y, z = fma(value, load(p2, i), y), fma(value, load(p3, i), z)
    out[0], out[stride], out[2 * stride], out[3 * stride] = w, x, y, z


@compiled_fast
def _add_up(arguments, kind):
    """y[row] += B low[place] for the rows in their order. Arguments: as `_multiply_down`."""
    head = pointer(arguments[1], np.int32(0))
    count, outputs, parts, width = arguments[4], arguments[6], arguments[7], arguments[8]
    ends = pointer(arguments[12], np.int64(0))
    blocks, pieces = np.int64(head[0]), (outputs + COLUMNS - 1) // COLUMNS
    order = shift(head, 1)
    while True:
        work = fetch_add(arguments, 1)
        if work >= blocks * pieces:
            break
        block = shift(head, 1 + count + work // pieces * 3)
        entry = shift(pointer(arguments[2], np.int64(0)), np.int64(block[0]) * arguments[3])
        rank, first, number = entry[RANK], np.int64(block[1]), np.int64(block[2])
        if rank == 0:
            continue
        scales = pointer(entry[SCALES], np.float32(0))
        b = pointer(entry[UP], kind)
        low = shift(pointer(arguments[10], np.float32(0)), first * width)
        begin = work % pieces * COLUMNS
        start = np.int64(0)
        for part in range(parts):
            left, right = max(start, begin), min(ends[part], begin + COLUMNS)
            start = ends[part]
            if left < right and scales[part] != np.float32(0):
                for at in range(number):
                    y = shift(pointer(arguments[11], kind), np.int64(order[first + at]) * outputs)
                    _add_row(shift(low, at * width + part * rank), b, rank, outputs, left, right, y)


@compiled_fast
def _add_row(low, b, rank, outputs, left, right, y):
    """y[i] += the sum over k < rank of low[k] · b[k, i], for left <= i < right"""
    i = left
    while i + 4 * LANES <= right:
        p, q = load_wide(y, i), load_wide(y, i + LANES)
        r, s = load_wide(y, i + 2 * LANES), load_wide(y, i + 3 * LANES)
        for k in range(rank):
            factor, some = fill_lanes(low[k]), shift(b, k * outputs + i)
            p = multiply_add(factor, load_wide(some, 0), p)
            q = multiply_add(factor, load_wide(some, LANES), q)
            r = multiply_add(factor, load_wide(some, 2 * LANES), r)
            s = multiply_add(factor, load_wide(some, 3 * LANES), s)
        store_narrow(y, i, p)
        store_narrow(y, i + LANES, q)
        store_narrow(y, i + 2 * LANES, r)
        store_narrow(y, i + 3 * LANES, s)
        i += 4 * LANES
    while i + LANES <= right:
        p = load_wide(y, i)
        for k in range(rank):
            p = multiply_add(fill_lanes(low[k]), load_wide(b, k * outputs + i), p)
        store_narrow(y, i, p)
        i += LANES
    while i < right:
        value = load(y, i)
        for k in range(rank):
            value = fma(low[k], load(b, k * outputs + i), value)
        store(y, i, value)
        i += 1


DOWN_KERNELS = {dtype: ParallelKernel(_multiply_down, kind) for dtype, kind in KIND.items()}
UP_KERNELS = {dtype: ParallelKernel(_add_up, kind) for dtype, kind in KIND.items()}
