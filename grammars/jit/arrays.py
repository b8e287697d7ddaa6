"""What compiled functions of several folders do with arrays: enlarge and sort them, and find equal rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import njit


class DistinctRows(NamedTuple):
    """Rows of integers without repetition: `rows[:used[0]]`.

    To add a row, write it into `rows[used[0]]` and call `number_next`. If all rows are used, call `grow_rows`
    before.
    """

    rows: NDArray[Any]  # [capacity, columns]: the rows
    slots: NDArray[np.int32]  # hash table of row numbers, -1 where empty
    used: NDArray[np.int64]  # [1]: number of rows in use


@njit(cache=True, nogil=True)
def no_rows(rows):
    """A table without rows, which will be written into `rows`."""
    size = 4
    while size < 2 * len(rows):
        size *= 2
    return DistinctRows(rows, np.full(size, -1, np.int32), np.zeros(1, np.int64))


@njit(cache=True, nogil=True)
def grow_rows(table):
    """The table with twice the capacity."""
    larger = no_rows(longer(table.rows, 2 * len(table.rows)))
    while larger.used[0] < table.used[0]:
        number_next(larger)
    return larger


@njit(nogil=True, forceinline=True)
def number_next(table):
    """The number of the row that was written last: the number of an equal row, or a new one."""
    rows, slots, columns = table.rows, table.slots, table.rows.shape[1]
    new = table.used[0]
    code = np.uint64(0)
    for column in range(columns):
        code = (code ^ np.uint64(np.int64(rows[new, column]))) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    slot = np.int64(code & np.uint64(len(slots) - 1))
    while slots[slot] >= 0:
        known = np.int64(slots[slot])
        column = 0
        while column < columns and rows[known, column] == rows[new, column]:
            column += 1
        if column == columns:
            return known
        slot = (slot + 1) & (len(slots) - 1)
    slots[slot] = new
    table.used[0] = new + 1
    return new


@njit(cache=True, nogil=True)
def distinct_rows(table):
    """The first index of each distinct row of integers [rows, columns], and for each row its place among
    them; int64."""
    distinct = no_rows(np.empty_like(table))
    firsts, places = np.empty(len(table), np.int64), np.empty(len(table), np.int64)
    for row in range(len(table)):
        found = distinct.used[0]
        distinct.rows[found] = table[row]
        places[row] = number_next(distinct)
        if places[row] == found:
            firsts[found] = row
    return firsts[: distinct.used[0]].copy(), places


@njit(cache=True, nogil=True)
def longer(array, size):
    """A longer copy of the array, with undefined elements or rows behind its own."""
    longer = np.empty((size,) + array.shape[1:], array.dtype)  # noqa: RUF005  (numba can't unpack)
    longer[: len(array)] = array
    return longer


@njit(cache=True, nogil=True)
def sort_by_key(keys, most):
    """Where the elements with each key (less than `most`) begin, int32 [most + 1], and the elements in that
    order."""
    first = np.zeros(most + 1, np.int32)
    for key in keys:
        first[key + 1] += 1
    for key in range(most):
        first[key + 1] += first[key]
    order = np.empty(len(keys), np.int32)
    filled = first[:-1].copy()
    for element in range(len(keys)):
        order[filled[keys[element]]] = element
        filled[keys[element]] += 1
    return first, order
