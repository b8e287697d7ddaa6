"""Joins automata and fixed texts into one stack automaton."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import (
    ACTION_COLUMNS,
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DEAD,
    GAP,
    KIND,
    OPEN,
    OPERAND,
    POP,
    PUSH,
    STACK_DEPTH,
    TARGET,
)
from ...runtime.json_gaps import WAYS
from ..errors import GrammarError, TooLargeError
from ..machine.stack_automaton import StackAutomaton
from ..regex.dfa import distinct_columns

MAX_STATES = 100_000
MAX_CELLS = 8_000_000  # maximal cells of the transition table; they take 32 MB


class AmbiguousError(GrammarError):
    """Two alternatives begin alike, and at least one of them uses the stack."""


@dataclass(frozen=True, eq=False)
class Block:
    """A copy of `machine` with its states renumbered from `first`. `leaves`: states of the machine in which
    the text may also continue elsewhere, each with the state where it does."""

    first: int
    machine: StackAutomaton
    leaves: Mapping[int, int]


class Parts(NamedTuple):
    """`states`: the number of states of blocks and of `texts`. A state of `texts` leads to another state by
    its one byte. A state of `joined` stands for all its members at once. The text may end in state `end`."""

    states: int
    end: int
    blocks: Sequence[Block]
    texts: Mapping[int, tuple[int, int]]
    joined: Mapping[int, frozenset[int]]


class Linker:
    """Makes states, which are numbers. The states that can follow a state must be made before it, or be a
    `hole`."""

    def __init__(self) -> None:
        self._count = 0
        self._blocks: list[Block] = []
        self._texts: dict[tuple[int, int], int] = {}
        self._forks: dict[frozenset[int], int] = {}
        self._holes: dict[int, int] = {}
        self.end = self._reserve(1)

    def text(self, data: bytes, following: int) -> int:
        """The state from which exactly `data` leads to `following`."""
        for byte in reversed(data):
            if (byte, following) not in self._texts:
                self._texts[byte, following] = self._reserve(1)
            following = self._texts[byte, following]
        return following

    def fork(self, states: Iterable[int]) -> int:
        """A state that allows every text that one of these states allows."""
        members = frozenset(states)
        if len(members) == 1:
            return next(iter(members))
        if members not in self._forks:
            self._forks[members] = self._reserve(1)
        return self._forks[members]

    def hole(self) -> int:
        """A new state; `fill` defines it later."""
        return self._reserve(1)

    def fill(self, hole: int, state: int) -> None:
        self._holes[hole] = state

    def add(self, machine: StackAutomaton, following: Mapping[int, int]) -> int:
        """Adds a copy of the machine and returns its start. In a state that is a key of `following`, the
        text may also continue from the state `following[key]` if the stack is empty."""
        first = self._reserve(len(machine.transitions))
        goes_on = (machine.transitions != DEAD).any(axis=1)
        leaves = {
            state: self.fork([first + state, after]) if goes_on[state] else after
            for state, after in following.items()
        }
        self._blocks.append(Block(first, machine, leaves))
        return leaves.get(machine.start, first + machine.start)

    def link(self, start: int) -> StackAutomaton:
        """Builds the automaton. Raises AmbiguousError, TooLargeError."""
        members = {fork: states for states, fork in self._forks.items()}
        members |= {hole: frozenset([state]) for hole, state in self._holes.items()}
        texts = {state: step for step, state in self._texts.items()}
        return link_automaton(Parts(self._count, self.end, self._blocks, texts, members), start)

    def _reserve(self, count: int) -> int:
        first = self._count
        self._count += count
        if self._count > MAX_STATES:
            raise TooLargeError(f"more than {MAX_STATES} states")
        return first


def link_automaton(parts: Parts, start: int) -> StackAutomaton:
    """Builds the automaton. Raises AmbiguousError, TooLargeError."""
    tables = _Tables(parts)
    joined = _Joined(parts, tables)
    table = joined.replace_joined(np.concatenate([tables.table, *joined.rows]))
    actions = tables.actions.copy()
    going = ~np.isin(actions[:, KIND], (POP, CLOSE))
    actions[going, TARGET] = joined.replace_joined(actions[going, TARGET])
    counting = actions[:, KIND] == COUNT
    actions[counting, OPERAND] = joined.replace_joined(actions[counting, OPERAND])
    returns = joined.replace_joined(tables.returns)
    bodies = np.append(tables.bodies, np.zeros(len(joined.rows), np.int8))
    likes = np.append(tables.likes, np.arange(parts.states, len(table), dtype=np.int32))
    first = int(joined.replace_joined(np.array([start]))[0])
    kept = _find_reached(first, table, actions, returns)
    number = np.full(len(table), DEAD, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    columns, inverse = distinct_columns(table[kept])
    actions[going, TARGET] = number[actions[going, TARGET]]
    actions[counting, OPERAND] = number[actions[counting, OPERAND]]
    like = number[likes[kept]]
    return StackAutomaton(
        start=int(number[first]),
        class_of_byte=inverse[tables.class_of_byte].astype(np.uint8),
        transitions=_renumber(np.ascontiguousarray(table[np.ix_(kept, columns)]), number),
        actions=actions,
        returns=_renumber(returns, number),
        accepting=np.append(tables.accepting, np.array(joined.accepting, np.bool_))[kept],
        body_of_state=bodies[kept],
        like_state=np.where(like == DEAD, np.arange(len(kept)), like).astype(np.int32),
        max_depth=max([STACK_DEPTH, *(block.machine.max_depth for block in parts.blocks)]),
        bottom=max((block.machine.bottom for block in parts.blocks), key=len, default=()),
    )


class _Tables:
    """The tables of all states except the joined ones."""

    def __init__(self, parts: Parts) -> None:
        self.class_of_byte, self._samples = _classes(parts)
        if parts.states * len(self._samples) > MAX_CELLS:
            raise TooLargeError(f"more than {MAX_CELLS} entries in a table")
        self.table = np.full((parts.states, len(self._samples)), DEAD, np.int32)
        self.accepting = np.zeros(parts.states, np.bool_)
        self.accepting[parts.end] = True
        self.bodies = np.zeros(parts.states, np.int8)
        self.likes = np.arange(parts.states, dtype=np.int32)
        actions: list[NDArray[np.int32]] = []
        returns: list[NDArray[np.int32]] = []
        for block in parts.blocks:
            first_action, first_return = sum(map(len, actions)), sum(map(len, returns))
            own = self._copy(block, first_action)
            actions.append(_actions(block.machine, own, first_return))
            returns.append(_renumber(block.machine.returns, own))
        used = [each for each in actions if len(each)]
        self.actions = np.concatenate(used) if used else np.zeros((0, ACTION_COLUMNS), np.int32)
        self.returns = np.concatenate([*returns, np.zeros(0, np.int32)])
        for state, (byte, following) in parts.texts.items():
            self.table[state, self.class_of_byte[byte]] = following

    def _copy(self, block: Block, first_action: int) -> NDArray[np.int32]:
        """Copies a block's machine. Returns the new state for each state of the machine."""
        machine, first = block.machine, block.first
        states = len(machine.transitions)
        own = np.arange(first, first + states, dtype=np.int32)
        self.bodies[own] = machine.body_of_state
        self.likes[own] = first + machine.like_state
        self.accepting[own] = machine.accepting
        for state, leaf in block.leaves.items():
            self.accepting[first + state] = False
            own[state] = leaf
        entries = machine.transitions[:, machine.class_of_byte[self._samples]]
        self.table[first : first + states] = np.where(
            entries < DEAD, entries - first_action, _renumber(entries, own)
        )
        return own


class _Joined:
    """Joined states. Each has the entries of all its members; where they differ, the entry is a new joined
    state."""

    def __init__(self, parts: Parts, tables: _Tables) -> None:
        self._parts = parts
        self._tables = tables
        self._numbers: dict[frozenset[int], int] = {}
        self._order: list[frozenset[int]] = []
        self.rows: list[NDArray[np.int32]] = []
        self.accepting: list[bool] = []
        self._meanings = np.arange(parts.states, dtype=np.int32)
        for state in parts.joined:
            self._meanings[state] = self._number(self._members([state]))
        for members in self._order:
            self.rows.append(self._row(members)[None])
            self.accepting.append(bool(tables.accepting[list(members)].any()))

    def replace_joined(self, states: NDArray[np.int32]) -> NDArray[np.int32]:
        """Replaces each joined state by the state that stands for it."""
        several = np.arange(len(self._meanings), len(self._meanings) + len(self._order), dtype=np.int32)
        return _renumber(states, np.append(self._meanings, several))

    def _members(self, states: Sequence[int]) -> frozenset[int]:
        """The single states for which these states stand."""
        pending, seen = list(states), set(states)
        while pending:
            inner = self._parts.joined.get(pending.pop(), frozenset()) - seen
            seen |= inner
            pending += inner
        return frozenset(seen - self._parts.joined.keys())

    def _number(self, members: frozenset[int]) -> int:
        assert members, "a joined state without members"
        if len(members) == 1:
            return next(iter(members))
        if members not in self._numbers:
            self._numbers[members] = self._parts.states + len(self._order)
            self._order.append(members)
        return self._numbers[members]

    def _row(self, members: frozenset[int]) -> NDArray[np.int32]:
        rows = self._tables.table[sorted(members)]
        row: NDArray[np.int32] = rows.max(axis=0)
        differing = (rows != DEAD).sum(axis=0) > 1
        for column in np.flatnonzero(differing | (rows < DEAD).any(axis=0)).tolist():
            entries = {entry for entry in rows[:, column].tolist() if entry != DEAD}
            row[column] = next(iter(entries)) if len(entries) == 1 else self._both(entries, column)
        return row

    def _both(self, entries: set[int], column: int) -> int:
        if min(entries) < DEAD:
            byte = int(np.flatnonzero(self._tables.class_of_byte == column)[0])
            raise AmbiguousError(
                f"two alternatives begin with {bytes([byte])!r} and can't be told apart in time; "
                "let them begin with different texts"
            )
        return self._number(self._members(sorted(entries)))


def _classes(parts: Parts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The class of each byte, and one byte of each class. Bytes of a class have equal entries in every
    part."""
    code = np.zeros(256, np.int64)
    named = sorted({byte for byte, _ in parts.texts.values()})
    code[named] = np.arange(1, len(named) + 1)
    for block in parts.blocks:
        code = code * 256 + block.machine.class_of_byte
        code = np.unique(code, return_inverse=True)[1].reshape(256)
    _, samples, class_of_byte = np.unique(code, return_index=True, return_inverse=True)
    return class_of_byte.reshape(256), samples


def _actions(machine: StackAutomaton, own: NDArray[np.int32], first_return: int) -> NDArray[np.int32]:
    """The machine's actions, renumbered. Its returns follow those of the earlier machines."""
    actions = machine.actions.copy()
    kinds, targets = actions[:, KIND], machine.actions[:, TARGET]
    returning = np.isin(kinds, (POP, CLOSE))
    pushing = np.isin(kinds, (PUSH, OPEN, COUNT_CALL))
    calls = kinds == CALL
    pushing[calls] = _pops(machine)[targets[calls]]
    actions[pushing, OPERAND] += first_return
    actions[~returning, TARGET] = own[targets[~returning]]
    counting = kinds == COUNT
    actions[counting, OPERAND] = own[actions[counting, OPERAND]]
    return actions


def _pops(machine: StackAutomaton) -> NDArray[np.bool_]:
    """The states from which a pop can be reached on their own level, not counting calls into code points."""
    entries = machine.transitions
    acts = np.flatnonzero(machine.actions[:, KIND] == POP)
    pops: NDArray[np.bool_] = np.logical_or.reduce(np.isin(-2 - entries, acts), axis=1)
    while True:
        leading = (entries >= 0) & pops[np.maximum(entries, 0)]
        reaching = pops | np.logical_or.reduce(leading, axis=1)
        if np.array_equal(reaching, pops):
            return pops
        pops = reaching


def _renumber(states: NDArray[np.int32], number: NDArray[np.int32]) -> NDArray[np.int32]:
    """Renumbers states; `DEAD` and actions stay."""
    return np.where(states >= 0, number[np.maximum(states, 0)], states).astype(np.int32)


def _find_reached(
    start: int, table: NDArray[np.int32], actions: NDArray[np.int32], returns: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The states that can be reached from the start, including those to which a push may return."""
    reached = np.zeros(len(table), np.bool_)
    frontier = np.unique(np.append(returns[returns >= 0], start))
    going = ~np.isin(actions[:, KIND], (POP, CLOSE))
    counting = actions[:, KIND] == COUNT
    while len(frontier):
        reached[frontier] = True
        entries = np.unique(table[frontier])
        used = np.zeros(len(actions), np.bool_)
        used[-2 - entries[entries < DEAD]] = True
        gone = actions[used & going]
        ways = [gone[:, TARGET] + way for way in range(WAYS.max())]
        ways = [each[way < WAYS[gone[:, GAP]]] for way, each in enumerate(ways)]
        targets = [entries[entries >= 0], *ways, actions[used & counting, OPERAND]]
        found = np.unique(np.concatenate(targets))
        frontier = found[~reached[found]]
    return np.flatnonzero(reached)
