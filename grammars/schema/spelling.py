"""How code points are spelled inside a JSON string: UTF-8, and the escapes that JSON allows.

`spelled` turns an automaton over code points into one over the bytes between a string's quotes.
The bytes of one code point are a small graph of nodes. The states of a string share it: the first byte
of a longer spelling pushes, the last one pops and thereby chooses by the class of the code point.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import TooLargeError
from ..stack_automaton import TAIL
from .dfa import DEAD, Dfa, alive_states, distinct_columns, minimal_table

Spelling: TypeAlias = Literal["any", "usual", "lower"]
"""any: every escape; usual: escapes only where a JSON writer may use them; lower: so, in lower case."""

Segment: TypeAlias = tuple[tuple[int, int], ...]  # (offset where a class begins, class), DEAD for none
Row: TypeAlias = dict[int, int]  # byte → node, or -2 - class at the end of a code point

_SHORT = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_MAX_CELLS = 4_000_000
_CONTINUATION = [[0x80 + value] for value in range(64)]
_HIGHEST = 1 << 30


PUSHES = -(1 << 20)
KINDS: dict[Spelling, int] = {"any": 1, "usual": 2, "lower": 3}
COUNTED = 4


@dataclass(frozen=True, eq=False)
class Block:
    """States over bytes. An entry -2 - label leaves the block, by the quote that ends a string.

    An entry `PUSHES` - node goes to a node of `graph`, where an entry -2 - class returns to
    `ends[state, class]` of the state that it was left from. `labels[state]` is what a number that ends
    there is, -1 for nothing.
    """

    class_of_byte: NDArray[np.int32]  # [256]
    transitions: NDArray[np.int32]  # [states, byte classes]
    labels: NDArray[np.int32]  # [states]
    graph: NDArray[np.int32]  # [nodes, byte classes]
    ends: NDArray[np.int32]  # [states, classes of code points]
    bodies: NDArray[np.int64]
    """states to which every code point leads back"""
    kind: int
    """for each way of spelling another"""
    count: Count | None = None


@dataclass(frozen=True)
class Count:
    """A string of bounded length: `loop` is left for `tail` after `first` code points in it."""

    loop: int
    tail: int
    first: int


class _Graph:
    """The nodes between two code points for one partition of the code points."""

    def __init__(self, cuts: list[int], classes: list[int], spelling: Spelling) -> None:
        self._cuts = cuts
        self._classes = classes
        self._whole: Segment = tuple(zip(cuts, classes, strict=True))
        self._spelling = spelling
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
            self._put(top, [lead], self._continued(self._segment((lead & 0x1F) << 6, 64), 1))
        for lead in range(0xE0, 0xF0):
            holes = [(0, 0x800)] if lead == 0xE0 else [(0x800, 0x1000)] if lead == 0xED else []
            self._put(top, [lead], self._continued(self._segment((lead & 0xF) << 12, 0x1000), 2, holes))
        for lead in range(0xF0, 0xF5):
            holes = [(0, 0x10000)] if lead == 0xF0 else [(0x10000, 0x40000)] if lead == 0xF4 else []
            self._put(top, [lead], self._continued(self._segment((lead & 7) << 18, 0x40000), 3, holes))

    def _continued(self, segment: Segment, left: int, holes: Sequence[tuple[int, int]] = ()) -> int:
        """A node that reads `left` continuation bytes, over code points counted from the segment's start."""
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
            for value, spelled in enumerate(digits):
                inner = _part(segment, value * size, size)
                self._put(row, spelled, self._digits(kind, inner, left - 1, base, digits))
            self._known[key] = self._node(row) if row else DEAD
        return self._known[key]

    def _put(self, row: Row, spelled: list[int], target: int) -> None:
        if target != DEAD and target != -2 - DEAD:
            for byte in spelled:
                row[byte] = target

    def _escape(self) -> int:
        row: Row = {}
        for code, letter in _SHORT.items():
            self._put(row, [ord(letter)], -2 - self._class(code))
        if self._spelling == "any":
            self._put(row, [ord("/")], -2 - self._class(ord("/")))
        self._put(row, [ord("u")], self._hex(self._escapable(), 4, pairs=True))
        return self._node(row)

    def _escapable(self) -> Segment:
        """Classes of the first 65,536 code points, none for those that are never spelled so."""
        segment = self._segment(0, 0x10000)
        holes = [(0xD800, 0xE000)]
        if self._spelling != "any":
            holes += [(code, code + 1) for code in _SHORT] + [(0x20, 0x7F)]
        for start, end in holes:
            segment = _without(segment, start, end)
        return segment

    def _hex(self, segment: Segment, left: int, *, pairs: bool = False) -> int:
        digits = [_hex_digit(value, self._spelling) for value in range(16)]
        node = self._digits("hex", segment, left, 16, digits)
        if not pairs:
            return node
        row = dict(self.rows[node]) if node >= 0 else {}
        self._put(row, digits[0xD], self._surrogate_digit(row.get(digits[0xD][0], DEAD), digits))
        return self._node(row) if row else DEAD

    def _surrogate_digit(self, plain: int, digits: list[list[int]]) -> int:
        """After `\\ud`: what `plain` reads, and pairs of surrogates, of 1,024 code points for each first one."""
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
            for value, spelled in enumerate(digits):
                inner = _part(segment, value * size, size)
                self._put(row, spelled, self._high_surrogate(inner, left - 1, digits))
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


def _hex_digit(value: int, spelling: Spelling) -> list[int]:
    lower = ord(f"{value:x}")
    return [lower] if spelling == "lower" or value < 10 else [lower, lower - 32]


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


@lru_cache(256)
def _graph(
    cuts: tuple[int, ...], classes: tuple[int, ...], spelling: Spelling
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Class of each byte, and [nodes, byte classes] of nodes or -2 - class; the quote has class 0 alone."""
    rows = _Graph(list(cuts), list(classes), spelling).rows
    table = np.full((len(rows), 256), DEAD, np.int32)
    for node, row in enumerate(rows):
        for byte, target in row.items():
            table[node, byte] = target
    marked = np.vstack([table, np.arange(256, dtype=np.int32) == 0x22])
    columns, class_of_byte = distinct_columns(marked)
    order = np.argsort(columns != 0x22, kind="stable")  # the quote's comes first
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[class_of_byte].astype(np.int32), np.ascontiguousarray(table[:, columns[order]])


def spelled(dfa: Dfa, spelling: Spelling) -> Block | None:
    """The bytes after an opening quote, up to and with the closing one; None if there are none."""
    class_of_byte, graph = _graph(tuple(dfa.cuts.tolist()), tuple(dfa.class_of_cut.tolist()), spelling)
    dfa = _with_classes(dfa, -2 - graph[graph < -1])
    if not (dfa.labels >= 0).any():
        return None
    pruned = _Pruned(graph)
    in_graph = np.zeros(dfa.transitions.shape[1], np.bool_)
    in_graph[-2 - graph[1:][graph[1:] < -1]] = True
    first = np.where(graph[0] < -1, -2 - graph[0], 0)
    table = np.where(graph[0] < -1, dfa.transitions[:, first], DEAD).astype(np.int32)
    longer = np.flatnonzero(graph[0] >= 0)
    alive, which = np.unique((dfa.transitions >= 0) & in_graph, axis=0, return_inverse=True)
    entries = np.array([pruned.entries(graph[0, longer], classes) for classes in alive], np.int32)
    table[:, longer] = entries[which.reshape(-1)]
    table[:, 0] = np.where(dfa.labels >= 0, -2 - dfa.labels, DEAD)
    labels = np.full(len(table), -1, np.int32)
    bodies = np.flatnonzero((dfa.transitions == np.arange(len(table))[:, None]).all(axis=1))
    return Block(class_of_byte, table, labels, pruned.table(), dfa.transitions, bodies, KINDS[spelling])


def counted(least: int, most: int) -> Block:
    """Strings of `least` to `most` code points, with so many states as `least` and `TAIL` are together."""
    loop = least
    states = least + 1 + TAIL + 1
    targets = np.arange(1, states + 1, dtype=np.int32)
    targets[loop] = loop
    targets[-1] = DEAD
    labels = np.where(np.arange(states) < least, -1, 0).astype(np.int32)
    zero = np.zeros(1, np.int32)
    block = spelled(Dfa(zero, zero, targets[:, None], labels), "any")
    assert block is not None
    return replace(
        block, bodies=np.array([loop]), kind=COUNTED, count=Count(loop, loop + 1, most - least - TAIL)
    )


def _with_classes(dfa: Dfa, leaves: NDArray[np.int32]) -> Dfa:
    """Without the classes of code points that have no spelling, such as surrogates."""
    spellable = np.zeros(dfa.transitions.shape[1], np.bool_)
    spellable[leaves] = True
    if spellable.all():
        return dfa
    kept = np.where(spellable, dfa.transitions, DEAD).astype(np.int32)
    transitions, labels = minimal_table(kept, dfa.labels)
    return Dfa(dfa.cuts, dfa.class_of_cut, transitions, labels)


class _Pruned:
    """The nodes of a graph without the ways to some classes, equal ones once."""

    def __init__(self, graph: NDArray[np.int32]) -> None:
        self._graph = graph
        self._known: dict[bytes, int] = {}
        self._rows: list[NDArray[np.int32]] = []

    def entries(self, nodes: NDArray[np.int32], classes: NDArray[np.bool_]) -> NDArray[np.int32]:
        """For each node its entry in a state from which these classes lead on."""
        if not classes.any():
            return np.full(len(nodes), DEAD, np.int32)
        number = np.full(len(self._graph) + 1, DEAD, np.int32)  # the last is that of no node
        kept = np.append(classes, False)
        for node in range(1, len(self._graph)):
            row = self._graph[node]
            leaves = np.where(kept[np.clip(-2 - row, 0, len(classes))], row, DEAD)
            row = np.where(row < -1, leaves, number[np.maximum(row, DEAD)])
            if (row != DEAD).any():
                row = row.astype(np.int32)
                number[node] = self._known.setdefault(row.tobytes(), len(self._rows))
                if number[node] == len(self._rows):
                    self._rows.append(row)
        found = number[nodes]
        return np.where(found >= 0, PUSHES - found, DEAD)

    def table(self) -> NDArray[np.int32]:
        return np.array(self._rows, np.int32).reshape(len(self._rows), self._graph.shape[1])


def inlined(dfa: Dfa, spelling: Spelling) -> Block | None:
    """The same without a graph: every state has its own copy of the nodes."""
    class_of_byte, graph = _graph(tuple(dfa.cuts.tolist()), tuple(dfa.class_of_cut.tolist()), spelling)
    if len(dfa.labels) * graph.size > _MAX_CELLS:
        raise TooLargeError("a string needs too many states")
    transitions = _woven(dfa.transitions, dfa.labels, graph)
    return _without_graph(class_of_byte, transitions, np.full(len(transitions), -1, np.int32))


def _without_graph(
    class_of_byte: NDArray[np.int32], transitions: NDArray[np.int32], labels: NDArray[np.int32]
) -> Block | None:
    graph = np.empty((0, transitions.shape[1]), np.int32)
    ends = np.empty((len(transitions), 0), np.int32)
    bodies = np.empty(0, np.int64)
    return Block(class_of_byte, transitions, labels, graph, ends, bodies, 0) if len(transitions) else None


@njit(cache=True)
def _woven(transitions, labels, graph):  # type: ignore[no-untyped-def]
    """One state for each pair of a state and a node, equal ones once, numbered from the start.

    Nodes are numbered after those that they lead to, so one pass in order merges equal pairs; node 0,
    between code points, comes last and keeps every state.
    """
    states = len(labels)
    nodes, classes = graph.shape
    rows = np.full((states * nodes, classes), -1, np.int32)
    same = np.arange(states * nodes).astype(np.int32)
    seen = {np.uint64(0): np.int32(0)}
    seen.clear()
    for position in range(1, nodes + 1):
        node = position % nodes
        for state in range(states):
            here = state * nodes + node
            code = np.uint64(1469598103934665603)
            is_dead = True
            for column in range(classes):
                entry = graph[node, column]
                target = -1
                if entry >= 0:
                    target = same[state * nodes + entry]
                elif entry < -1:
                    to = transitions[state, -2 - entry]
                    target = to * nodes if to >= 0 else -1
                rows[here, column] = target
                is_dead = is_dead and target < 0
                code = (code ^ np.uint64(target + 2)) * np.uint64(0x9E3779B97F4A7C15)
                code ^= code >> np.uint64(29)
            if node == 0:
                if labels[state] >= 0:
                    rows[here, 0] = -2 - labels[state]
            elif is_dead:
                same[here] = -1
            elif code in seen:
                same[here] = seen[code]
            else:
                seen[code] = np.int32(here)
    return _trimmed(rows)


@njit(cache=True)
def _trimmed(rows):  # type: ignore[no-untyped-def]
    """Rows reached from the first, without those that lead to no exit."""
    alive = alive_states(rows, np.full(len(rows), -1, np.int32))
    number = np.full(len(rows), -1, np.int32)
    order = np.empty(len(rows), np.int64)
    found = 0
    if alive[0]:
        number[0] = 0
        order[0] = 0
        found = 1
    current = 0
    while current < found:
        for column in range(rows.shape[1]):
            target = rows[order[current], column]
            if target >= 0 and alive[target] and number[target] < 0:
                number[target] = found
                order[found] = target
                found += 1
        current += 1
    kept = np.empty((found, rows.shape[1]), np.int32)
    for current in range(found):
        for column in range(rows.shape[1]):
            target = rows[order[current], column]
            kept[current, column] = number[target] if target >= 0 else target
    return kept


def plain(dfa: Dfa) -> Block | None:
    """An automaton over ASCII texts as it stands."""
    if not (dfa.labels >= 0).any():
        return None
    interval = np.searchsorted(dfa.cuts, np.arange(256), "right") - 1
    class_of_byte = dfa.class_of_cut[interval].astype(np.int32)
    return _without_graph(class_of_byte, dfa.transitions, dfa.labels)
