"""The bytes of one code point inside a JSON string, in UTF-8 or escaped, as a small graph.

Code points of one class share nodes, so the graph has a few dozen nodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...jit import njit
from ...jit.arrays import distinct_rows, grow_rows, no_rows, number_next
from ...regex.dfa import DEAD, distinct_columns

Escapes: TypeAlias = Literal["any", "usual", "lower"]
"""any: every escape; usual: the escapes of JSON writers; lower: the usual ones with lower-case digits"""

Segment: TypeAlias = tuple[tuple[int, int], ...]  # (offset where a class begins, class or DEAD)…
Row: TypeAlias = dict[int, int]  # byte → node, or -2 - class at the end of a code point

_SHORT = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_CONTINUATION = [[0x80 + value] for value in range(64)]
_HIGHEST = 1 << 30
_PLAIN = frozenset(range(0x20, 0x7F)) - {0x22, 0x5C}  # escaped only if every escape is allowed


class _Graph:
    """The nodes between two code points, for one partition of the code points into classes."""

    def __init__(self, cuts: list[int], classes: list[int], escapes: Escapes) -> None:
        self._cuts = cuts
        self._classes = classes
        self._whole: Segment = tuple(zip(cuts, classes, strict=True))
        self._escapes = escapes
        self.rows: list[Row] = [{}]
        self._known: dict[tuple[object, ...], int] = {}
        self._raw()
        self.rows[0][0x5C] = self._escape()

    def _node(self, row: Row) -> int:
        key = tuple(sorted(row.items()))
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append(row)
        return self._known[key]

    def _class(self, code: int) -> int:
        return self._classes[bisect_right(self._cuts, code) - 1]

    def _segment(self, start: int, length: int) -> Segment:
        return _part(self._whole, start, length)

    def _raw(self) -> None:
        top = self.rows[0]
        for code in range(0x20, 0x80):
            if code not in (0x22, 0x5C):
                self._put(top, [code], -2 - self._class(code))
        for lead in range(0xC2, 0xE0):
            self._put(top, [lead], self._continue(self._segment((lead & 0x1F) << 6, 64), 1))
        for lead in range(0xE0, 0xF0):
            holes = [(0, 0x800)] if lead == 0xE0 else [(0x800, 0x1000)] if lead == 0xED else []
            self._put(top, [lead], self._continue(self._segment((lead & 0xF) << 12, 0x1000), 2, holes))
        for lead in range(0xF0, 0xF5):
            holes = [(0, 0x10000)] if lead == 0xF0 else [(0x10000, 0x40000)] if lead == 0xF4 else []
            self._put(top, [lead], self._continue(self._segment((lead & 7) << 18, 0x40000), 3, holes))

    def _continue(self, segment: Segment, left: int, holes: Sequence[tuple[int, int]] = ()) -> int:
        """A node that reads `left` continuation bytes. The segment's offsets count from its first code
        point."""
        for start, end in holes:
            segment = _without(segment, start, end)
        return self._digits("utf8", segment, left, 64, _CONTINUATION)

    def _digits(self, kind: str, segment: Segment, left: int, base: int, digits: list[list[int]]) -> int:
        if left == 0:
            return -2 - segment[0][1] if segment[0][1] >= 0 else DEAD
        key = (kind, left, segment)
        if key not in self._known:
            size = base ** (left - 1)
            row: Row = {}
            for value, bytes_of_digit in enumerate(digits):
                inner = _part(segment, value * size, size)
                self._put(row, bytes_of_digit, self._digits(kind, inner, left - 1, base, digits))
            self._known[key] = self._node(row) if row else DEAD
        return self._known[key]

    def _put(self, row: Row, choices: list[int], target: int) -> None:
        if target != DEAD and target != -2 - DEAD:
            for byte in choices:
                row[byte] = target

    def _escape(self) -> int:
        row: Row = {}
        for code, letter in _SHORT.items():
            self._put(row, [ord(letter)], -2 - self._class(code))
        if self._escapes == "any":
            self._put(row, [ord("/")], -2 - self._class(ord("/")))
        self._put(row, [ord("u")], self._hex(self._escapable(), 4, pairs=True))
        return self._node(row)

    def _escapable(self) -> Segment:
        """The classes of the first 65,536 code points, without those that are never escaped."""
        segment = self._segment(0, 0x10000)
        holes = [(0xD800, 0xE000)]
        if self._escapes != "any":
            holes += [(code, code + 1) for code in _SHORT] + [(0x20, 0x7F)]
        for start, end in holes:
            segment = _without(segment, start, end)
        return segment

    def _hex(self, segment: Segment, left: int, *, pairs: bool = False) -> int:
        digits = [_hex_digit(value, self._escapes) for value in range(16)]
        node = self._digits("hex", segment, left, 16, digits)
        if not pairs:
            return node
        row = dict(self.rows[node]) if node >= 0 else {}
        self._put(row, digits[0xD], self._surrogate_digit(row.get(digits[0xD][0], DEAD), digits))
        return self._node(row) if row else DEAD

    def _surrogate_digit(self, plain: int, digits: list[list[int]]) -> int:
        """The node after `\\ud`: the entries of node `plain`, and those of surrogate pairs (1,024 code points
        for each first surrogate)."""
        row = dict(self.rows[plain]) if plain >= 0 else {}
        for value in range(4):
            node = self._high_surrogate(self._segment(0x10000 + (value << 18), 1 << 18), 2, digits)
            self._put(row, digits[8 + value], node)
        return self._node(row) if row else DEAD

    def _high_surrogate(self, segment: Segment, left: int, digits: list[list[int]]) -> int:
        if left == 0:
            return self._low_surrogate(segment, digits)
        key = ("high", left, segment)
        if key not in self._known:
            size = 1024 << 4 * (left - 1)
            row: Row = {}
            for value, bytes_of_digit in enumerate(digits):
                inner = _part(segment, value * size, size)
                self._put(row, bytes_of_digit, self._high_surrogate(inner, left - 1, digits))
            self._known[key] = self._node(row) if row else DEAD
        return self._known[key]

    def _low_surrogate(self, segment: Segment, digits: list[list[int]]) -> int:
        key = ("low", segment)
        if key not in self._known:
            row: Row = {}
            for value in range(4):
                inner = _part(segment, value << 8, 256)
                self._put(row, digits[0xC + value], self._digits("hex", inner, 2, 16, digits))
            node = self._node(row) if row else DEAD
            for before in (digits[0xD], [ord("u")], [ord("\\")]):
                node = self._node(dict.fromkeys(before, node)) if row else DEAD
            self._known[key] = node
        return self._known[key]


def _hex_digit(value: int, escapes: Escapes) -> list[int]:
    lower = ord(f"{value:x}")
    return [lower] if escapes == "lower" or value < 10 else [lower, lower - 32]


def _part(segment: Segment, start: int, length: int) -> Segment:
    if len(segment) == 1:
        return segment
    first = bisect_right(segment, (start, _HIGHEST))
    last = bisect_left(segment, (start + length,))
    part = [(0, segment[first - 1][1])]
    for offset, group in segment[first:last]:
        if group != part[-1][1]:
            part.append((offset - start, group))
    return tuple(part)


def _without(segment: Segment, start: int, end: int) -> Segment:
    after = [group for offset, group in segment if offset <= end][-1]
    before = [entry for entry in segment if entry[0] < start]
    later = [entry for entry in segment if entry[0] > end]
    return (*before, (start, DEAD), (end, after), *later)


def code_point_graph(
    cuts: tuple[int, ...], classes: tuple[int, ...], escapes: Escapes
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The class of each byte, and the graph: [nodes, byte classes] of nodes or -2 - class. Only the quote has
    class 0."""
    plain = list(_PLAIN) if escapes != "any" else []
    interval = np.searchsorted(cuts, plain, "right") - 1
    own = np.array(classes, np.int32)[interval] if plain else np.empty(0, np.int32)
    outer = _without_plain(cuts, classes) if plain else (cuts, classes)
    numbers = list(dict.fromkeys(group for group in outer[1] if group >= 0))
    rank = {group: place for place, group in enumerate(numbers)}
    table = _shared_graph(outer[0], tuple(rank.get(group, DEAD) for group in outer[1]), escapes)
    leaves = np.array([*numbers, 0], np.int32)[np.where(table < -1, -2 - table, len(numbers))]
    table = np.where(table < -1, -2 - leaves, table).astype(np.int32)
    table[0, plain] = np.where(own >= 0, -2 - own, DEAD)
    return _with_byte_classes(table)


def _without_plain(
    cuts: tuple[int, ...], classes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The partition without the code points whose only form is their own byte."""
    code_points = sorted({*cuts, *_PLAIN, *(code + 1 for code in _PLAIN)})
    found: list[tuple[int, int]] = []
    for code in code_points:
        group = DEAD if code in _PLAIN else classes[bisect_right(cuts, code) - 1]
        if not found or found[-1][1] != group:
            found.append((code, group))
    return tuple(code for code, _ in found), tuple(group for _, group in found)


@lru_cache(256)
def _shared_graph(cuts: tuple[int, ...], classes: tuple[int, ...], escapes: Escapes) -> NDArray[np.int32]:
    """The graph, [nodes, 256], shared by all strings that differ only in their plain characters."""
    rows = _find_reached(_Graph(list(cuts), list(classes), escapes).rows)
    table = np.full((len(rows), 256), DEAD, np.int32)
    for node, row in enumerate(rows):
        table[node, list(row)] = list(row.values())
    return table


def _find_reached(rows: list[Row]) -> list[Row]:
    """The rows that can be reached from the first one, which stays first. All others come after their
    successors."""
    reached, pending = {0}, [0]
    while pending:
        for target in rows[pending.pop()].values():
            if target >= 0 and target not in reached:
                reached.add(target)
                pending.append(target)
    number = {node: position for position, node in enumerate(sorted(reached))}
    return [
        {byte: number[target] if target >= 0 else target for byte, target in rows[node].items()}
        for node in number
    ]


def _with_byte_classes(table: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    marked = np.vstack([table, np.arange(256, dtype=np.int32) == 0x22])
    columns, class_of_byte = distinct_columns(marked)
    order = np.argsort(columns != 0x22, kind="stable")  # moves the quote's class to the front
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[class_of_byte].astype(np.int32), np.take(table, columns[order], axis=1)


@njit(cache=True)
def prune(graph, nodes, alive):
    """For each state, the nodes without the paths to its dead classes. Equal nodes are merged.

    graph: int32 [nodes, byte classes] of nodes or -2 - class, each after its successors
    nodes: int64 [n], the nodes to prune
    alive: bool [states, classes], the classes that lead on from each state

    Returns the position of each pruned node for each state, int32 [states, n], `DEAD` if none of its entries
    is left; and the nodes, int32 [positions, byte classes].
    """
    sets, set_of = distinct_rows(alive.astype(np.int32))
    pruned = no_rows(np.empty((64, graph.shape[1]), np.int32))
    number = np.full(len(graph), DEAD, np.int32)
    places = np.full((len(sets), len(nodes)), DEAD, np.int32)
    for which in range(len(sets)):
        for node in range(1, len(graph)):
            if pruned.used[0] == len(pruned.rows):
                pruned = grow_rows(pruned)
            is_left = _write_pruned(graph[node], number, alive[sets[which]], pruned.rows[pruned.used[0]])
            number[node] = number_next(pruned) if is_left else DEAD
        for i in range(len(nodes)):
            places[which, i] = number[nodes[i]]
    return places[set_of], pruned.rows[: pruned.used[0]].copy()


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
