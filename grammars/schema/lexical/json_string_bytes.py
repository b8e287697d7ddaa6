"""Automata over the bytes of JSON strings: UTF-8, and the escapes that JSON allows.

`string_block` turns an automaton over code points into one over the bytes between a string's quotes. The
bytes of one code point are a small graph of nodes, which all states of a string share. The first byte of a
longer form pushes; its last byte pops, and so the code point's class chooses the next state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....runtime.automaton_format import CALL, COUNT_CALL
from ...errors import TooLargeError
from ...jit import njit
from ...jit.arrays import distinct_rows
from ...machine.stack_automaton import TAIL
from ...regex.dfa import DEAD, Dfa, alive_states, minimize_table, spread
from .code_points import Escapes, code_point_graph, prune
from .counted import limit_length, longest, shortest

_MAX_CELLS = 4_000_000
_NOTHING = -2


PUSHES = -(1 << 20)
KINDS: dict[Escapes, int] = {"any": 1, "usual": 2, "lower": 3}
COUNTED = 4


class Pushes(NamedTuple):
    """The actions that a copy of a block needs for its entries into the graph, relative to the copy."""

    numbers: NDArray[np.int32]  # [states, byte classes]: numbers of actions
    """the action of each entry into the graph"""
    actions: NDArray[np.int64]  # [n, 3]: kind, node, and place where the action returns
    returns: list[int]
    sizes: list[int]
    """for each of `returns`: at the first return of a base the number of returns with this base, then 0"""


@dataclass(frozen=True, eq=False)
class Block:
    """States over bytes. An entry -2 - label leaves the block, by the quote that ends a string.

    An entry `PUSHES` - node enters `graph` at that node. In the graph an entry -2 - class returns to
    `ends[state, class]`, where state is the one from which the graph was entered; to `ends[state, class + 1]`
    if that entry has counted down to 0. `labels[state]` is the label of a number that ends in the state, or
    -1.
    """

    class_of_byte: NDArray[np.int32]  # [256]: the class of each byte
    transitions: NDArray[np.int32]  # [states, byte classes]: entries
    labels: NDArray[np.int32]  # [states]: label of each state, or -1
    graph: NDArray[np.int32]  # [nodes, byte classes]: entries
    ends: NDArray[np.int32]  # [states, code point classes]: states after the graph, padded with `_NOTHING`
    bodies: NDArray[np.int64]
    """the states that every code point leaves unchanged"""
    kind: int
    """a number for the escapes that the block allows"""
    count: Count | None = None

    @cached_property
    def pushes(self) -> Pushes:
        states, columns = np.nonzero(self.transitions <= PUSHES)
        nodes = PUSHES - self.transitions[states, columns]
        pairs, pair_of_entry = np.unique(states * (len(self.graph) + 1) + nodes, return_inverse=True)
        states, nodes = np.divmod(pairs, len(self.graph) + 1)
        kept, place_of_state = np.unique(states, return_inverse=True)
        first_rows, row_of_state = distinct_rows(self.ends[kept])
        rows, row = self.ends[kept[first_rows]], row_of_state[place_of_state]
        firsts, action_of_pair = distinct_rows((row * (len(self.graph) + 1) + nodes).reshape(-1, 1))
        sizes = (rows > _NOTHING).sum(axis=1)
        starts = np.cumsum(sizes) - sizes
        size_at = np.zeros(sizes.sum(), np.int32)
        size_at[starts] = sizes
        numbers = np.full(self.transitions.shape, -1, np.int32)
        numbers[np.nonzero(self.transitions <= PUSHES)] = action_of_pair[pair_of_entry]
        is_counted = (
            np.zeros(len(firsts), np.bool_) if self.count is None else self.count.after[states[firsts]] >= 0
        )
        kinds = np.where(is_counted, COUNT_CALL, CALL)
        actions = np.stack([kinds, nodes[firsts], starts[row[firsts]]], axis=1)
        return Pushes(numbers, actions, rows[rows > _NOTHING].tolist(), size_at.tolist())

    @cached_property
    def class_code(self) -> NDArray[np.uint64]:
        """A hash of the class of each byte, [256]."""
        return spread(self.class_of_byte)

    @cached_property
    def labelled(self) -> tuple[list[int], list[int]]:
        """The states that have labels, and their labels."""
        states = np.flatnonzero(self.labels >= 0)
        return states.tolist(), self.labels[states].tolist()

    @cached_property
    def graph_key(self) -> tuple[bytes, bytes]:
        """A key that is equal for blocks with equal graphs."""
        return self.class_of_byte.tobytes(), self.graph.tobytes()


@dataclass(frozen=True, eq=False)
class Count:
    """Counts a bounded string. A code point that leads from one counting state to another counts down
    from `first`; when that leaves 0, it leads to `after[state]` instead. Other states have -1 in `after`."""

    after: NDArray[np.int32]  # [states]: state at count 0, or -1
    first: int


def string_block(dfa: Dfa, escapes: Escapes, max_length: int | None = None) -> Block | None:
    """The block of the bytes from the opening quote to the closing quote, which is included; None if it
    accepts nothing. `max_length`: maximal code points of a text, if `can_count` allows to count them."""
    class_of_byte, graph = code_point_graph(
        tuple(dfa.cuts.tolist()), tuple(dfa.class_of_cut.tolist()), escapes
    )
    dfa = _with_classes(dfa, -2 - graph[graph < -1])
    if not (dfa.labels >= 0).any() or (max_length is not None and shortest(dfa) > max_length):
        return None
    bounded = limit_length(dfa, max_length) if max_length is not None and longest(dfa) > max_length else None
    if bounded is None:
        return _block(dfa, class_of_byte, graph, escapes)
    block = _block(bounded.dfa, class_of_byte, graph, escapes)
    after = np.full(len(block.transitions), DEAD, np.int32)
    after[: bounded.counting] = bounded.after
    return _counting(block, Count(after, bounded.first))


def _block(dfa: Dfa, class_of_byte: NDArray[np.int32], graph: NDArray[np.int32], escapes: Escapes) -> Block:
    in_graph = np.zeros(dfa.transitions.shape[1], np.bool_)
    in_graph[-2 - graph[1:][graph[1:] < -1]] = True
    first = np.where(graph[0] < -1, -2 - graph[0], 0)
    table = np.where(graph[0] < -1, dfa.transitions[:, first], DEAD).astype(np.int32)
    longer = np.flatnonzero(graph[0] >= 0)
    places, nodes = prune(graph, graph[0, longer], (dfa.transitions >= 0) & in_graph)
    table[:, longer] = np.where(places >= 0, PUSHES - places, DEAD)
    table[:, 0] = np.where(dfa.labels >= 0, -2 - dfa.labels, DEAD)
    labels = np.full(len(table), -1, np.int32)
    bodies = np.flatnonzero((dfa.transitions == np.arange(len(table))[:, None]).all(axis=1))
    return Block(class_of_byte, table, labels, nodes, dfa.transitions, bodies, KINDS[escapes])


def _counting(block: Block, count: Count) -> Block:
    """The block with a count. Its graph has the classes that lead on from some state, each with two places in
    `ends`: the state after it, and the state if the count has reached 0."""
    leaves = block.graph < DEAD
    used, place = np.unique(-2 - block.graph[leaves], return_inverse=True)
    graph = block.graph.copy()
    graph[leaves] = -2 - 2 * place.reshape(-1)
    ends = np.full((len(block.ends), 2 * len(used)), DEAD, np.int32)
    ends[:, ::2] = block.ends[:, used]
    counts = count.after >= 0
    ends[counts, 1::2] = np.where(ends[counts, ::2] >= 0, count.after[ends[counts, ::2]], DEAD)
    ends[~counts, -1:] = _NOTHING
    return replace(block, graph=graph, ends=ends, bodies=np.empty(0, np.int64), kind=COUNTED, count=count)


def bounded_block(min_length: int, max_length: int) -> Block:
    """The block of strings of `min_length` to `max_length` code points, with about `min_length` + `TAIL`
    states."""
    loop = min_length
    states = min_length + 1 + TAIL + 1
    targets = np.arange(1, states + 1, dtype=np.int32)
    targets[loop] = loop
    targets[-1] = DEAD
    labels = np.where(np.arange(states) < min_length, -1, 0).astype(np.int32)
    zero = np.zeros(1, np.int32)
    block = string_block(Dfa(zero, zero, targets[:, None], labels), "any")
    assert block is not None
    after = np.full(states, DEAD, np.int32)
    after[loop] = loop + 1
    return replace(_counting(block, Count(after, max_length - min_length - TAIL)), bodies=np.array([loop]))


def _with_classes(dfa: Dfa, leaves: NDArray[np.int32]) -> Dfa:
    """The automaton without the classes of code points that have no bytes, such as surrogates."""
    has_bytes = np.zeros(dfa.transitions.shape[1], np.bool_)
    has_bytes[leaves] = True
    if has_bytes.all():
        return dfa
    kept = np.where(has_bytes, dfa.transitions, DEAD).astype(np.int32)
    transitions, labels = minimize_table(kept, dfa.labels)
    return Dfa(dfa.cuts, dfa.class_of_cut, transitions, labels)


def inlined_block(dfa: Dfa, escapes: Escapes) -> Block | None:
    """As `string_block`, without a graph: every state has its own copy of the nodes."""
    class_of_byte, graph = code_point_graph(
        tuple(dfa.cuts.tolist()), tuple(dfa.class_of_cut.tolist()), escapes
    )
    if len(dfa.labels) * graph.size > _MAX_CELLS:
        raise TooLargeError("a string needs too many states")
    transitions = _product(dfa.transitions, dfa.labels, graph)
    return _without_graph(class_of_byte, transitions, np.full(len(transitions), -1, np.int32))


def _without_graph(
    class_of_byte: NDArray[np.int32], transitions: NDArray[np.int32], labels: NDArray[np.int32]
) -> Block | None:
    graph = np.empty((0, transitions.shape[1]), np.int32)
    ends = np.empty((len(transitions), 0), np.int32)
    bodies = np.empty(0, np.int64)
    return Block(class_of_byte, transitions, labels, graph, ends, bodies, 0) if len(transitions) else None


@njit(cache=True)
def _product(transitions, labels, graph):
    """The table of the product: one state for each pair of a state and a node. Equal pairs are merged.

    A node's number is higher than the numbers of the nodes to which it leads, so one pass merges equal pairs.
    Node 0, between code points, comes last and keeps every state.
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
    return _trim(rows)


@njit(cache=True)
def _trim(rows):
    """The rows that can be reached from the first one and from which an exit can be reached."""
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


def ascii_block(dfa: Dfa) -> Block | None:
    """The block of an automaton over ASCII texts; None if it accepts nothing."""
    if not (dfa.labels >= 0).any():
        return None
    interval = np.searchsorted(dfa.cuts, np.arange(256), "right") - 1
    class_of_byte = dfa.class_of_cut[interval].astype(np.int32)
    return _without_graph(class_of_byte, dfa.transitions, dfa.labels)
