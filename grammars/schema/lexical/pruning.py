"""Prunes the graph of a code point's bytes for states in which some classes of code points are dead."""

from __future__ import annotations

import numpy as np

from ...jit import njit
from ...regex.dfa import DEAD


@njit(cache=True)
def prune(graph, nodes, alive):
    """For each state, the nodes without the paths to its dead classes. Equal nodes are merged.

    graph: int32 [nodes, byte classes] of nodes or -2 - class, each after its successors
    nodes: int64 [n], the nodes to prune
    alive: bool [states, classes], the classes that lead on from each state

    Returns the position of each pruned node for each state, int32 [states, n], `DEAD` if none of its entries
    is left; and the nodes, int32 [positions, byte classes].
    """
    sets, set_of = distinct(alive.astype(np.int32))
    rows, slots, used = np.empty((64, graph.shape[1]), np.int32), np.full(256, -1, np.int32), 0
    row, number = np.empty(graph.shape[1], np.int32), np.empty(len(graph), np.int32)
    places = np.full((len(sets), len(nodes)), DEAD, np.int32)
    for which in range(len(sets)):
        number[:] = DEAD
        for node in range(1, len(graph)):
            if _write_pruned(graph[node], number, sets[which], row):
                rows, slots, used, number[node] = _intern(rows, slots, used, row)
        for i in range(len(nodes)):
            places[which, i] = number[nodes[i]]
    return places[set_of], rows[:used].copy()


@njit(cache=True)
def _write_pruned(entries, number, alive, row):
    """Writes the entries that are left of a node, and returns whether there are any."""
    is_left = False
    for column in range(len(entries)):
        entry = entries[column]
        if entry >= 0:
            entry = number[entry]
        elif entry < DEAD and not alive[-2 - entry]:
            entry = DEAD
        row[column] = entry
        is_left = is_left or entry != DEAD
    return is_left


@njit(cache=True)
def distinct(table):
    """The distinct rows, and the position of each row among them."""
    rows, slots, used = np.empty((64, table.shape[1]), np.int32), np.full(256, -1, np.int32), 0
    place = np.empty(len(table), np.int32)
    for i in range(len(table)):
        rows, slots, used, place[i] = _intern(rows, slots, used, table[i])
    return rows[:used].copy(), place


@njit(cache=True)
def _intern(rows, slots, used, row):
    """Adds a row if it is new. Returns the rows, their slots by hash, their number, and the position of the
    row."""
    slot = _slot(rows, slots, row)
    if slots[slot] >= 0:
        return rows, slots, used, slots[slot]
    if used == len(rows):
        longer = np.empty((2 * used, rows.shape[1]), np.int32)
        longer[:used] = rows
        rows, slots = longer, np.full(2 * len(slots), -1, np.int32)
        for place in range(used):
            slots[_slot(rows, slots, rows[place])] = place
        slot = _slot(rows, slots, row)
    rows[used] = row
    slots[slot] = used
    return rows, slots, used + 1, np.int32(used)


@njit(cache=True)
def _slot(rows, slots, row):
    """The slot that has the row, or the free slot for it."""
    code = np.uint64(0)
    for entry in row:
        code = (code ^ np.uint64(entry + (1 << 40))) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    slot = np.int64(code & np.uint64(len(slots) - 1))
    while slots[slot] >= 0 and not (rows[slots[slot]] == row).all():
        slot = (slot + 1) & (len(slots) - 1)
    return slot
