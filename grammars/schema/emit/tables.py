"""The states of an automaton under construction, and their tables."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....runtime.automaton_format import (
    ACTION_COLUMNS,
    CALL,
    COUNT,
    DEAD,
    DROP,
    GO,
    OPEN,
    POP,
    RESERVE,
    SET_WORDS,
    WORDS,
)
from ....runtime.json_gaps import NO_GAP
from ...errors import TooLargeError
from ...jit import njit
from ...jit.arrays import distinct_rows
from ...machine.depth_guard import Frames, with_depth_guard
from ...machine.stack_automaton import StackAutomaton, least_reserve
from ...regex.dfa import distinct_columns, spread
from ..lexical.json_string_bytes import PUSHES, Block
from .deep_members import DeepMembers
from .names import TAKEN

MAX_STATES = 40_000
MAX_CELLS = 3_000_000  # maximal cells of the transition table; they take 12 MB
_ODD = np.uint64(0x5851F42D4C957F2D)
_CODE_OF_BYTE = spread(np.arange(1, 257))
_RESERVE_OF_KIND = np.array([least_reserve(kind, 0) for kind in range(GO + 1)], np.int32)
_NO_NAMES = (0,) * SET_WORDS


class _Stamp(NamedTuple):
    """A copy of a block, in which label i leads to state `following[i]`; and the first of its graph's states,
    actions and returns."""

    first: int
    block: Block
    following: tuple[int, ...]
    graph: int
    first_action: int
    first_return: int


class Tables:
    """Collects states, which are added one by one with their entries or as copies of blocks."""

    def __init__(self) -> None:
        self.accepting: list[int] = []
        self._count = 0
        self._entries: dict[int, dict[int, int]] = {}
        self._path_states = array("i")
        """states with one entry, which leads to the next state by a byte of `_path_bytes`"""
        self._path_bytes = bytearray()
        self._stamps: list[_Stamp] = []
        self._stamped: dict[tuple[int, tuple[int, ...]], int] = {}
        self._graphs: dict[tuple[bytes, bytes], int] = {}
        self._graph_rows: list[tuple[int, Block, NDArray[np.int32]]] = []
        self._inheriting = array("i")
        self._inherited = array("i")
        self._actions: dict[tuple[int, ...], int] = {}
        """the actions outside of stamps"""
        self._action_count = 0
        self._returns: list[int] = []
        self._return_sizes: list[int] = []
        """the number of states at each base, and 0 at other places"""
        self._return_bases: dict[tuple[int, ...], int] = {}
        self._chains: dict[tuple[bytes, int], int] = {}

    def state(self, entries: dict[int, int]) -> int:
        """Adds a state with these entries by byte; an entry is a state or a result of `action`."""
        number = self._reserve(1)
        self._entries[number] = entries
        return number

    def fill(self, state: int, entries: dict[int, int]) -> None:
        self._entries[state] = entries

    def path(self, text: bytes, entries: dict[int, int]) -> int:
        """Adds states along a text; the last has these entries. Returns the first."""
        first = self._reserve(len(text) + 1)
        self._path_states.extend(range(first, first + len(text)))
        self._path_bytes += text
        self._entries[first + len(text)] = entries
        return first

    def chain(self, text: bytes, target: int) -> int:
        """The state from which exactly `text` leads to `target`."""
        if not text:
            return target
        key = (text, target)
        if key not in self._chains:
            self._chains[key] = self.state({text[0]: self.chain(text[1:], target)})
        return self._chains[key]

    def inherit(self, state: int, other: int) -> None:
        """Lets `state` take the entries that it lacks from `other`, which must not inherit itself."""
        self._inheriting.append(state)
        self._inherited.append(other)

    def inherit_all(self, states: Iterable[int], others: Iterable[int]) -> None:
        """Calls `inherit` for each pair."""
        self._inheriting.extend(states)
        self._inherited.extend(others)

    def entry(self, block: Block, following: tuple[int, ...]) -> int:
        """The entry into a copy of the block: its start, or an action that sets its count."""
        start = self.stamp(block, following)
        return start if block.count is None else self.action(CALL, start, block.count.first)

    def stamp(self, block: Block, following: tuple[int, ...]) -> int:
        """Adds a copy of the block, in which label i leads to state `following[i]`. Returns its start."""
        key = (id(block), following)
        known = self._stamped.get(key)
        if known is None:
            known = self._stamped[key] = self._reserve(len(block.transitions))
            states, labels = block.labelled
            self.inherit_all([known + state for state in states], [following[label] for label in labels])
            graph = self._graph(block) if len(block.graph) else 0
            self._stamps.append(
                _Stamp(known, block, following, graph, self._action_count, len(self._returns))
            )
            self._action_count += len(block.pushes.actions)
            self._returns += [known + state if state >= 0 else DEAD for state in block.pushes.returns]
            self._return_sizes += block.pushes.sizes
        return known

    def _graph(self, block: Block) -> int:
        """The first state of the block's graph, which is shared by all blocks with an equal one."""
        known = self._graphs.get(block.graph_key)
        if known is None:
            pops = np.array([self.action(POP, 0, number) for number in range(block.ends.shape[1])], np.int32)
            known = self._graphs[block.graph_key] = self._reserve(len(block.graph))
            self._graph_rows.append((known, block, pops))
        return known

    def states(self, count: int) -> int:
        """Adds states side by side, which `fill` defines. Returns the first."""
        return self._reserve(count)

    def action(
        self, kind: int, target: int, operand: int, more: tuple[int, ...] = (), *, gap: int = NO_GAP
    ) -> int:
        """The entry for an action. `more`: the columns of names, padded with 0."""
        key = (kind, target, operand, gap, *more, *_NO_NAMES[len(more) :])
        known = self._actions.get(key)
        if known is None:
            known = self._actions[key] = self._action_count
            self._action_count += 1
        return -2 - known

    def returns(self, following: tuple[int, ...]) -> int:
        """The base for these states on return: the state at the base plus a verdict follows the verdict."""
        if following not in self._return_bases:
            self._return_bases[following] = len(self._returns)
            self._returns += following
            self._return_sizes += [len(following), *[0] * (len(following) - 1)]
        return self._return_bases[following]

    def automaton(
        self, start: int, max_depth: int, bottom: tuple[int, ...], deep_members: DeepMembers | None
    ) -> StackAutomaton:
        """The finished automaton, with a depth guard if `deep_members` are given."""
        states, bytes_, targets = self._cells()
        class_of_byte, samples = self._classes(bytes_)
        if self._count * len(samples) > MAX_CELLS:
            raise TooLargeError(f"more than {MAX_CELLS} entries in a table")
        table = np.full((self._count, len(samples)), DEAD, np.int32)
        for stamp in self._stamps:
            self._stamp_rows(table, samples, stamp)
        for first, block, pops in self._graph_rows:
            rows, columns = table[first : first + len(block.graph)], block.class_of_byte[samples]
            counting = np.full(len(rows), DEAD, np.int32)
            _write_stamp(rows, first, block.graph, columns, pops, block.pushes.numbers, 0, counting)
        table[states, class_of_byte[bytes_]] = targets
        automaton = self._compress(start, class_of_byte, table)
        automaton = replace(automaton, max_depth=max_depth, bottom=bottom)
        return (
            with_depth_guard(automaton, self._frames(deep_members)) if deep_members is not None else automaton
        )

    def _cells(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The states, bytes and entries outside of blocks, those of paths first."""
        path = np.frombuffer(self._path_states, np.int32)
        entries = self._entries.values()
        states = np.repeat(np.fromiter(self._entries, np.int64), np.fromiter(map(len, entries), np.int64))
        bytes_ = np.fromiter(chain.from_iterable(entries), np.int64)
        targets = np.fromiter(chain.from_iterable(row.values() for row in entries), np.int64)
        return (
            np.concatenate([path, states]),
            np.concatenate([np.frombuffer(self._path_bytes, np.uint8), bytes_]),
            np.concatenate([path + 1, targets]),
        )

    def _frames(self, deep_members: DeepMembers) -> Frames:
        is_called = np.zeros(self._count, np.bool_)
        for first, block, _ in self._graph_rows:
            is_called[first : first + len(block.graph)] = True
        required = np.array(deep_members.list_required(), np.int32).reshape(-1, 2)
        return Frames(
            np.array(self._return_sizes, np.int32), is_called, required, deep_members.find_full_names
        )

    def _stamp_rows(self, table: NDArray[np.int32], samples: NDArray[np.int64], stamp: _Stamp) -> None:
        first, block, following = stamp.first, stamp.block, stamp.following
        counting = np.full(len(block.transitions), DEAD, np.int32)
        if block.count is not None:
            following = tuple(self.action(DROP, target, 0) for target in following)
            for state in np.flatnonzero(block.count.after >= 0).tolist():
                counting[state] = self.action(COUNT, first + state, first + int(block.count.after[state]))
        _write_stamp(
            table[first : first + len(block.transitions)],
            first,
            block.transitions,
            block.class_of_byte[samples],
            np.array(following, np.int32),
            block.pushes.numbers,
            stamp.first_action,
            counting,
        )

    def _compress(
        self, start: int, class_of_byte: NDArray[np.int64], table: NDArray[np.int32]
    ) -> StackAutomaton:
        """Fills in inherited entries, and puts bytes with equal entries in every state into one class."""
        accepting = np.zeros(self._count, np.bool_)
        accepting[self.accepting] = True
        bodies = np.zeros(self._count, np.int8)
        for stamp in self._stamps:
            if len(stamp.block.bodies):
                bodies[stamp.first + stamp.block.bodies] = stamp.block.kind
        states, others = np.frombuffer(self._inheriting, np.int32), np.frombuffer(self._inherited, np.int32)
        like = _inherit(table, accepting, bodies, states, others)
        columns, inverse = distinct_columns(table)
        return StackAutomaton(
            start=start,
            class_of_byte=inverse[class_of_byte].astype(np.uint8),
            transitions=np.take(table, columns, axis=1),
            actions=self._action_rows(),
            returns=np.array(self._returns or [DEAD], np.int32),
            accepting=accepting,
            body_of_state=bodies,
            like_state=like,
        )

    def _action_rows(self) -> NDArray[np.int32]:
        """All actions, each with the reserve of its kind."""
        rows = np.zeros((self._action_count, ACTION_COLUMNS), np.int32)
        single = np.fromiter(chain.from_iterable(self._actions), np.int32).reshape(-1, ACTION_COLUMNS - 1)
        numbers = np.fromiter(self._actions.values(), np.int64)
        rows[numbers, :3], rows[numbers, 4:] = single[:, :3], single[:, 3:]
        for stamp in self._stamps:
            actions = stamp.block.pushes.actions
            after = stamp.first_action + len(actions)
            rows[stamp.first_action : after, :3] = np.add(actions, (0, stamp.graph, stamp.first_return))
        rows[:, RESERVE] = _RESERVE_OF_KIND[rows[:, 0]] + np.where(rows[:, 0] == OPEN, rows[:, WORDS], 0)
        return rows

    def _classes(self, named: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The class of each byte, and one byte of each class. Bytes of a class have equal entries in every
        row. Each byte in `named` has a class of its own."""
        code = np.zeros(256, np.uint64)
        code[named] = _CODE_OF_BYTE[named]
        blocks = [stamp.block for stamp in self._stamps]
        for block in {id(block.class_of_byte): block for block in blocks}.values():
            code = code * _ODD + block.class_code
        samples, class_of_byte = distinct_rows(code.reshape(-1, 1))
        return class_of_byte, samples

    def _reserve(self, count: int) -> int:
        first = self._count
        self._count += count
        if self._count > MAX_STATES:
            raise TooLargeError(f"more than {MAX_STATES} states")
        return first


@njit(cache=True)
def _inherit(table, accepting, bodies, states, others):
    """Fills in the inherited entries, and then makes `TAKEN` entries dead.

    Returns for each state the string body from which it inherits, or the state itself.
    """
    like = np.arange(len(table)).astype(np.int32)
    for i in range(len(states)):
        state, other = states[i], others[i]
        accepting[state] |= accepting[other]
        if bodies[other]:
            like[state] = other
        for column in range(table.shape[1]):
            if table[state, column] == DEAD:
                table[state, column] = table[other, column]
    for state in range(len(table)):
        for column in range(table.shape[1]):
            if table[state, column] == TAKEN:
                table[state, column] = DEAD
    return like


@njit(cache=True)
def _write_stamp(rows, first, transitions, columns, after, push_numbers, first_action, counting):
    """Writes a copy of a block from state `first` on. An entry between two counting states is instead the
    action `counting[target]`, which is `DEAD` for other states."""
    for state in range(len(transitions)):
        for k in range(len(columns)):
            entry = transitions[state, columns[k]]
            if entry >= 0:
                is_counted = counting[state] < DEAD and counting[entry] < DEAD
                rows[state, k] = counting[entry] if is_counted else first + entry
            elif entry <= PUSHES:
                rows[state, k] = -2 - first_action - push_numbers[state, columns[k]]
            elif entry < DEAD:
                rows[state, k] = after[-2 - entry]
