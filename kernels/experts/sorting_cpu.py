"""The experts of tokens on a CPU: choosing them, sorting tokens by them, and adding up their results."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..common.jit import compiled, compiled_fast
from ..common.numba_tools import KIND, exp, fetch_add, load, pointer, shift, store
from ..common.reused_memory import NotRecordableError
from ..common.rows import number_at
from ..common.threads import ParallelKernel, thread_count

MAX_ROWS = 252
"""Rows of one expert that are multiplied at a time, at most."""
WORK = 3
"""numbers that describe a work: the expert, its first row, and the rows"""
COLUMNS = 512
"""Columns of a token's result that a thread adds up at a time."""


class Order(NamedTuple):
    """Pairs of a token and one of its experts, sorted by experts: each pair is a row of the products."""

    tokens: torch.Tensor
    """int32 [tokens × k], the token of each row; rows beyond those of real experts are token 0"""
    places: torch.Tensor
    """int32 [tokens, k], the row of each pair; -1: it has no expert"""
    works: torch.Tensor
    """int64 [1 + WORK × n]: the number of works, then for each of them the expert, the first row and the
    number of rows, at most MAX_ROWS"""


def choose(logits: torch.Tensor, k: int, renormalizes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers, int32 [tokens, k], of the largest logits [tokens, experts], the largest first and of equal
    ones the lowest number first; and their shares, float32, by softmax over the chosen or over all."""
    tokens, experts = logits.shape
    assert 1 <= k <= experts and logits.is_contiguous()
    numbers = torch.empty(tokens, k, dtype=torch.int32)
    shares = torch.empty(tokens, k, dtype=torch.float32)
    addresses = (logits.data_ptr(), numbers.data_ptr(), shares.data_ptr())
    CHOICES[logits.dtype].run((tokens, experts, k, renormalizes, *addresses), thread_count(logits.numel()))
    return numbers, shares


def sort(experts: torch.Tensor, count: int) -> Order:
    """experts: [tokens, k]; count: the number of experts"""
    tokens, k = experts.shape
    experts = experts.contiguous()
    order = Order(
        torch.empty(tokens * k, dtype=torch.int32),
        torch.empty(tokens, k, dtype=torch.int32),
        torch.empty(1 + WORK * max_works(tokens * k, count), dtype=torch.int64),
    )
    addresses = (experts.data_ptr(), *(each.data_ptr() for each in order))
    sort_kernel.run((tokens, k, count, experts.element_size(), *addresses), 1)
    return order


def max_works(rows: int, experts: int) -> int:
    return min(rows, experts + rows // MAX_ROWS)


def combine(results: torch.Tensor, places: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Σ shares[t, i] · results[places[t, i]] for each token t, [tokens, width]."""
    tokens, k = places.shape
    width = results.shape[1]
    assert results.is_contiguous()
    if shares.dtype != torch.float32:
        shares = shares.float()
    shares = shares.contiguous()
    out = torch.empty(tokens, width, dtype=results.dtype)
    addresses = (results.data_ptr(), places.data_ptr(), shares.data_ptr(), out.data_ptr())
    SUMS[results.dtype].run((tokens, k, width, *addresses), thread_count(results.numel()))
    return out


def read_works(works: torch.Tensor, is_recorded: bool) -> list[tuple[int, int, int]]:
    if is_recorded:
        raise NotRecordableError("a product for each expert")
    (count, *numbers) = works.tolist()
    return [tuple(numbers[WORK * work : WORK * (work + 1)]) for work in range(count)]


@compiled_fast
def _choose(arguments, kind):
    """Arguments: the counter of tokens, then those of `choose`."""
    experts, k = arguments[2], arguments[3]
    while True:
        token = fetch_add(arguments, 1)
        if token >= arguments[1]:
            break
        logits = shift(pointer(arguments[5], kind), token * experts)
        numbers = shift(pointer(arguments[6], np.int32(0)), token * k)
        shares = shift(pointer(arguments[7], np.float32(0)), token * k)
        for i in range(k):
            numbers[i] = _find_largest(logits, experts, numbers, i)
        _divide(logits, experts if arguments[4] == 0 else 0, numbers, k, shares)


@compiled
def _find_largest(logits, experts, numbers, count):
    """The number of the largest logit that is not among the first `count` numbers."""
    best, largest = -1, np.float32(0)
    for expert in range(experts):
        value = load(logits, expert)
        if best >= 0 and not value > largest:
            continue
        is_taken = False
        for i in range(count):
            is_taken |= numbers[i] == expert
        if not is_taken:
            best, largest = expert, value
    return best


@compiled_fast
def _divide(logits, experts, numbers, k, shares):
    """The shares of the chosen numbers by softmax over the first `experts` logits; 0: over the chosen."""
    largest = load(logits, np.int64(numbers[0]))
    total = np.float32(0)
    for i in range(k):
        shares[i] = exp(load(logits, np.int64(numbers[i])) - largest)
        total += shares[i]
    if experts > 0:
        total = np.float32(0)
        for expert in range(experts):
            total += exp(load(logits, expert) - largest)
    for i in range(k):
        shares[i] /= total


@ParallelKernel
def sort_kernel(arguments):
    """Arguments: the counter of threads, of which the first one works; tokens, k, experts, bytes of a number,
    and the addresses of the numbers and of the fields of `Order`."""
    if fetch_add(arguments, 1) == 0:
        _sort(arguments)


@compiled
def _sort(arguments):
    pairs, k, experts = arguments[1] * arguments[2], arguments[2], arguments[3]
    tokens, places = pointer(arguments[6], np.int32(0)), pointer(arguments[7], np.int32(0))
    works = pointer(arguments[8], np.int64(0))
    counts = np.zeros(experts, np.int64)
    for pair in range(pairs):
        tokens[pair] = 0
        expert = number_at(arguments[5], arguments[4], pair)
        if 0 <= expert < experts:
            counts[expert] += 1
    first, count = 0, 0
    for expert in range(experts):
        begin, end = first, first + counts[expert]
        counts[expert] = first
        while begin < end:
            rows = min(MAX_ROWS, end - begin)
            works[1 + WORK * count], works[2 + WORK * count], works[3 + WORK * count] = expert, begin, rows
            begin, count = begin + rows, count + 1
        first = end
    works[0] = count
    for pair in range(pairs):
        expert = number_at(arguments[5], arguments[4], pair)
        places[pair] = -1
        if 0 <= expert < experts:
            row = counts[expert]
            counts[expert] += 1
            places[pair], tokens[row] = row, pair // k


@compiled_fast
def _combine(arguments, kind):
    """Arguments: the counter of pieces, then those of `combine`."""
    tokens, k, width = arguments[1], arguments[2], arguments[3]
    pieces = (width + COLUMNS - 1) // COLUMNS
    sums = np.empty(COLUMNS, np.float32)
    total = pointer(np.int64(sums.ctypes.data), np.float32(0))
    while True:
        work = fetch_add(arguments, 1)
        if work >= tokens * pieces:
            break
        token, begin = work // pieces, work % pieces * COLUMNS
        count = min(COLUMNS, width - begin)
        sums[:] = np.float32(0)
        for i in range(token * k, (token + 1) * k):
            row = np.int64(pointer(arguments[5], np.int32(0))[i])
            if row >= 0:
                share = pointer(arguments[6], np.float32(0))[i]
                _add(shift(pointer(arguments[4], kind), row * width + begin), share, count, total)
        out = shift(pointer(arguments[7], kind), token * width + begin)
        for i in range(count):
            store(out, i, total[i])


@compiled_fast
def _add(values, share, count, total):
    for i in range(count):
        total[i] += share * load(values, i)


CHOICES = {dtype: ParallelKernel(_choose, kind) for dtype, kind in KIND.items()}
SUMS = {dtype: ParallelKernel(_combine, kind) for dtype, kind in KIND.items()}
