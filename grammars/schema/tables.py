"""The states of an automaton under construction, and their tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import TooLargeError
from ..stack_automaton import CALL, COUNT, COUNT_CALL, DEAD, DROP, NO_ROOM, POP, ROOM, StackAutomaton
from ..stack_room import Frames, with_room
from .dfa import distinct_columns
from .names import TAKEN
from .spelling import PUSHES, Block

MAX_STATES = 40_000
MAX_CELLS = 2_000_000  # 8 MB


class Tables:
    """States come one by one with their entries, or as a block of many with a common way out."""

    def __init__(self) -> None:
        self.accepting: list[int] = []
        self._count = 0
        self._entries: dict[int, dict[int, int]] = {}
        self._stamps: list[tuple[int, Block, tuple[int, ...]]] = []
        self._stamped: dict[tuple[int, tuple[int, ...]], int] = {}
        self._graphs: dict[tuple[bytes, bytes], int] = {}
        self._graph_rows: list[tuple[int, Block, NDArray[np.int32]]] = []
        self._pushes: dict[int, NDArray[np.int32]] = {}
        """entries of a block's pushes, by the block's first state"""
        self._inherits: list[tuple[int, int]] = []
        self._actions: dict[tuple[int, int, int], int] = {}
        self._returns: list[int] = []
        self._return_bases: dict[tuple[int, ...], int] = {}
        self._chains: dict[tuple[bytes, int], int] = {}
        self.required: list[tuple[int, int]] = []
        """where an object begins whose order is free, and where a value begins that it must have"""

    def state(self, entries: dict[int, int]) -> int:
        """A state with these entries by byte: states, or actions as `action` gives them."""
        number = self._reserved(1)
        self._entries[number] = entries
        return number

    def fill(self, state: int, entries: dict[int, int]) -> None:
        self._entries[state] = entries

    def chain(self, text: bytes, target: int) -> int:
        """The state from which exactly `text` leads to `target`."""
        if not text:
            return target
        key = (text, target)
        if key not in self._chains:
            self._chains[key] = self.state({text[0]: self.chain(text[1:], target)})
        return self._chains[key]

    def inherit(self, state: int, other: int) -> None:
        """Where `state` has no entry it takes the one of `other`, which must not inherit itself."""
        self._inherits.append((state, other))

    def entry(self, block: Block, following: tuple[int, ...]) -> int:
        """What leads into a copy of the block: its start, or an action that sets its count."""
        start = self.stamp(block, following)
        return start if block.count is None else self.action(CALL, start, block.count.first)

    def stamp(self, block: Block, following: tuple[int, ...]) -> int:
        """A copy of the block that is left to `following[label]`. Returns its start."""
        key = (id(block), following)
        known = self._stamped.get(key)
        if known is None:
            known = self._stamped[key] = self._reserved(len(block.transitions))
            self._stamps.append((known, block, following))
            for state, label in block.labelled:
                self.inherit(known + state, following[label])
            if len(block.graph):
                self._push_entries(known, block)
        return known

    def _push_entries(self, first: int, block: Block) -> None:
        graph = self._graph(block)
        ends = np.where(block.ends >= 0, block.ends + first, DEAD).tolist()
        bases: dict[int, int] = {}
        loop = -1
        if block.count is not None:
            loop = block.count.loop
            bases[loop] = self.returns((first + loop, first + block.count.tail))
        entries = []
        for state, node in block.pushes:
            if state not in bases:
                bases[state] = self.returns(tuple(ends[state]))
            kind = COUNT_CALL if state == loop else CALL
            entries.append(self.action(kind, graph + node, bases[state]))
        self._pushes[first] = np.array(entries, np.int32)

    def _graph(self, block: Block) -> int:
        """The states of the block's nodes, shared by all blocks with the same ones."""
        known = self._graphs.get(block.graph_key)
        if known is None:
            pops = np.array([self.action(POP, 0, number) for number in range(block.ends.shape[1])], np.int32)
            known = self._graphs[block.graph_key] = self._reserved(len(block.graph))
            self._graph_rows.append((known, block, pops))
        return known

    def action(self, kind: int, target: int, operand: int) -> int:
        return -2 - self._actions.setdefault((kind, target, operand), len(self._actions))

    def returns(self, following: tuple[int, ...]) -> int:
        """The base at which the states after each verdict stand."""
        if following not in self._return_bases:
            self._return_bases[following] = len(self._returns)
            self._returns += following
        return self._return_bases[following]

    def automaton(self, start: int, max_depth: int, *, guarded: bool) -> StackAutomaton:
        """`guarded`: steps into what is nested too deep to come to an end are dead."""
        class_of_byte, samples = self._classes()
        if self._count * len(samples) > MAX_CELLS:
            raise TooLargeError(f"more than {MAX_CELLS} entries in a table")
        table = np.full((self._count, len(samples)), DEAD, np.int32)
        for first, block, following in self._stamps:
            table[first : first + len(block.transitions)] = self._block_rows(first, block, following, samples)
        for first, block, pops in self._graph_rows:
            rows = block.graph[:, block.class_of_byte[samples]]
            leaves = pops[np.where(rows < -1, -2 - rows, 0)]
            table[first : first + len(rows)] = np.where(
                rows >= 0, rows + first, np.where(rows < -1, leaves, DEAD)
            )
        cells = [
            (state, byte, target) for state, row in self._entries.items() for byte, target in row.items()
        ]
        if cells:
            states, bytes_, targets = np.array(cells, np.int64).T
            table[states, class_of_byte[bytes_]] = targets
        accepting = np.zeros(self._count, np.bool_)
        accepting[self.accepting] = True
        if self._inherits:
            states, others = np.array(self._inherits, np.int64).T
            table[states] = np.where(table[states] == DEAD, table[others], table[states])
            accepting[states] |= accepting[others]
        table[table == TAKEN] = DEAD
        automaton = replace(self._compressed(start, class_of_byte, table, accepting), max_depth=max_depth)
        return with_room(automaton, self._frames()) if guarded else automaton

    def _frames(self) -> Frames:
        sizes = np.zeros(len(self._returns), np.int32)
        for following, base in self._return_bases.items():
            sizes[base] = len(following)
        is_called = np.zeros(self._count, np.bool_)
        for first, block, _ in self._graph_rows:
            is_called[first : first + len(block.graph)] = True
        return Frames(sizes, is_called, np.array(self.required, np.int32).reshape(-1, 2))

    def _block_rows(
        self, first: int, block: Block, following: tuple[int, ...], samples: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        columns = block.class_of_byte[samples]
        table = np.where(block.transitions >= 0, block.transitions + first, block.transitions)
        is_exit = (table < -1) & (table > PUSHES)
        after = np.array(following, np.int32)
        if block.count is not None:
            after = np.array([self.action(DROP, target, 0) for target in following], np.int32)
            loop = table[block.count.loop]
            counting = self.action(COUNT, first + block.count.loop, first + block.count.tail)
            table[block.count.loop] = np.where(loop == first + block.count.loop, counting, loop)
            is_exit[block.count.loop] &= loop < 0
        table = np.where(is_exit, after[np.where(is_exit, -2 - table, 0)], table)
        pushes = self._pushes.get(first)
        if pushes is not None:
            table[table <= PUSHES] = pushes
        return table[:, columns]

    def _compressed(
        self,
        start: int,
        class_of_byte: NDArray[np.int64],
        table: NDArray[np.int32],
        accepting: NDArray[np.bool_],
    ) -> StackAutomaton:
        """Bytes that no state tells apart become one class."""
        columns, inverse = distinct_columns(table)
        bodies = np.zeros(len(table), np.int8)
        for first, block, _ in self._stamps:
            bodies[first + block.bodies] = block.kind
        like = np.arange(len(table), dtype=np.int32)
        for state, other in self._inherits:
            if bodies[other]:
                like[state] = other
        actions = [(*action, ROOM.get(action[0], NO_ROOM)) for action in self._actions]
        return StackAutomaton(
            start=start,
            class_of_byte=inverse[class_of_byte].astype(np.uint8),
            transitions=np.ascontiguousarray(table[:, columns]),
            actions=np.array(actions, np.int32).reshape(-1, 4),
            returns=np.array(self._returns or [DEAD], np.int32),
            accepting=accepting,
            body_of_state=bodies,
            like_state=like,
        )

    def _classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A class for each byte, such that every row is constant on it, and a byte of each class."""
        code = np.zeros(256, np.int64)
        named = sorted({byte for row in self._entries.values() for byte in row})
        code[named] = np.arange(1, len(named) + 1)
        for block in {id(block.class_of_byte): block for _, block, _ in self._stamps}.values():
            code = code * (int(block.class_of_byte.max()) + 1) + block.class_of_byte
            code = np.unique(code, return_inverse=True)[1].reshape(256)
        _, samples, class_of_byte = np.unique(code, return_index=True, return_inverse=True)
        return class_of_byte.reshape(256), samples

    def _reserved(self, count: int) -> int:
        first = self._count
        self._count += count
        if self._count > MAX_STATES:
            raise TooLargeError(f"more than {MAX_STATES} states")
        return first
