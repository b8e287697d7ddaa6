"""How many places of the stack a reply still needs to come to an end.

A nested value may *require* others inside of it. Where the stack has too few places for them its end can't
be reached any more, so that every step that leads there must be dead already. The *need* of a state is the
least number of places, beside those that are taken, with which an end is reached whatever verdicts come.

States on the same *level* have the same places below them. A push leads to the level above and comes back
with a verdict; so does a call into a code point, which needs no place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .errors import TooLargeError
from .stack_automaton import (
    ACTION_COLUMNS,
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DEAD,
    DROP,
    FULL,
    GO,
    MAX_DEPTH,
    OPEN,
    POP,
    PUSH,
    SET_WORDS,
    StackAutomaton,
    words_of,
)

_LAST_VERDICT = 63  # bits of a word; later verdicts count as the last


class Frames(NamedTuple):
    """What the tables of an automaton don't tell of its stack."""

    sizes: NDArray[np.int32]  # [returns]
    """how many verdicts a base has, at its first place"""
    is_called: NDArray[np.bool_]  # [states]
    """states inside a code point, which return by verdict"""
    required: NDArray[np.int32]  # [n, 2]
    """pairs of where an object begins and where a value begins that it must have"""
    full_names: Callable[[NDArray[np.int32]], Mapping[int, Mapping[int, int]]]
    """from the needs of states to the names that count as seen, as bits, where room is lacking: by where an
    object begins whose order is free, and the least room with which they don't"""


class _Machine(NamedTuple):
    transitions: NDArray[np.int32]
    actions: NDArray[np.int32]
    returns: NDArray[np.int32]
    accepting: NDArray[np.bool_]
    sizes: NDArray[np.int32]
    is_called: NDArray[np.bool_]
    required: NDArray[np.int32]


class _Graph(NamedTuple):
    """The entries of state s are `entries[first_entry[s]:first_entry[s + 1]]`, those that return to the
    same places once; the states on its level with an entry to it are found likewise in `sources`."""

    first_entry: NDArray[np.int64]
    entries: NDArray[np.int32]
    first_source: NDArray[np.int64]
    sources: NDArray[np.int32]


def with_room(automaton: StackAutomaton, frames: Frames) -> StackAutomaton:
    """Makes steps dead after which the stack has too few places left.

    Raises TooLargeError if the start needs more than `MAX_DEPTH`.
    """
    tables = (automaton.transitions, automaton.actions, automaton.returns, automaton.accepting)
    machine = _Machine(*tables, frames.sizes, frames.is_called, frames.required)
    needs = _needs(machine, MAX_DEPTH)
    if needs[automaton.start] > MAX_DEPTH:
        raise TooLargeError(f"it requires more than {MAX_DEPTH} levels of nesting")
    rooms, rises = _guards(machine, needs)
    targets, which = np.unique(automaton.transitions[rises], return_inverse=True)
    steps = np.zeros((len(targets), ACTION_COLUMNS), np.int32)
    steps[:, 0], steps[:, 1], steps[:, 3] = GO, targets, needs[targets]
    guarded = automaton.transitions.copy()
    guarded[rises] = -2 - len(rooms) - which
    actions = np.concatenate([automaton.actions, steps])
    actions[: len(rooms), 3] = rooms
    actions = _with_full_names(actions, frames.full_names(needs))
    return replace(automaton, transitions=guarded, actions=actions)


def _with_full_names(actions: NDArray[np.int32], names: Mapping[int, Mapping[int, int]]) -> NDArray[np.int32]:
    """With rows of the names that count as seen where room is lacking."""
    rows = [actions]
    count = len(actions)
    for number in np.flatnonzero(actions[:, 0] == OPEN).tolist():
        _, target, _, _, words, *_ = actions[number].tolist()
        full = [
            [FULL, 0, 0, min(1 + words + need, MAX_DEPTH + 1), *words_of(lacking)]
            for need, lacking in names.get(target, {}).items()
        ]
        if full:
            actions[number, 5:7] = len(full), count - number
            rows.append(np.array(full, np.int32))
            count += len(full)
    return np.concatenate(rows)


@njit(cache=True)
def _needs(machine, most):  # type: ignore[no-untyped-def]
    """The need of each state, `most` + 1 where it is more than `most`."""
    graph = _graph(machine)
    states = len(machine.transitions)
    needs = np.full(states, most + 1, np.int32)
    ends = np.zeros((most + 1, states), np.uint64)
    unchanged = 0
    for room in range(most + 1):
        allowed = np.ones(states, np.bool_)
        lost = True
        while lost:
            ends[room] = 0
            if room:
                ends[room] = ends[room - 1]
            _find_ends(machine, graph, ends, room, allowed)
            lost = False
            for state in range(states):
                if allowed[state] and ends[room, state] == 0:
                    allowed[state] = False
                    lost = True
        for state in range(states):
            if allowed[state] and needs[state] > room:
                needs[state] = room
        unchanged = unchanged + 1 if room and (ends[room] == ends[room - 1]).all() else 0
        if allowed.all() or unchanged == 1 + SET_WORDS:  # an object that is opened looks so far down
            break
    return needs


@njit(cache=True)
def _find_ends(machine, graph, ends, room, allowed):  # type: ignore[no-untyped-def]
    """Sets ends[room, state] to the verdicts with which a state's level can end, a bit for each."""
    states = len(allowed)
    pending = np.empty(states, np.int32)
    waits = np.zeros(states, np.bool_)
    count = 0
    for state in range(states - 1, -1, -1):
        if ends[room, state] == 0 or _pushes(machine, graph, state):
            pending[count] = state
            waits[state] = True
            count += 1
    while count:
        count -= 1
        state = pending[count]
        waits[state] = False
        if not allowed[state]:
            continue
        found = ends[room, state]
        if machine.accepting[state]:
            found |= np.uint64(1)
        for number in range(graph.first_entry[state], graph.first_entry[state + 1]):
            found |= _ends_through(machine, graph.entries[number], ends, room, allowed)
        if found == ends[room, state]:
            continue
        ends[room, state] = found
        for number in range(graph.first_source[state], graph.first_source[state + 1]):
            source = graph.sources[number]
            if not waits[source]:
                waits[source] = True
                pending[count] = source
                count += 1


@njit(cache=True, forceinline=True)
def _pushes(machine, graph, state):  # type: ignore[no-untyped-def]
    for number in range(graph.first_entry[state], graph.first_entry[state + 1]):
        entry = graph.entries[number]
        if entry < DEAD and _action(machine, entry)[0] in (PUSH, OPEN):
            return True
    return False


@njit(cache=True, forceinline=True)
def _ends_through(machine, entry, ends, room, allowed):  # type: ignore[no-untyped-def]
    """The verdicts that are left to a state whose entry is taken."""
    if entry >= 0:
        return ends[room, entry]
    nothing = np.uint64(0)
    kind, target, operand = _action(machine, entry)
    if kind in (POP, CLOSE):
        return np.uint64(1) << np.uint64(min(operand, _LAST_VERDICT))
    if kind == COUNT:
        both = allowed[target] and allowed[operand]
        return ends[room, target] | ends[room, operand] if both else nothing
    inner = ~nothing
    if kind in (PUSH, OPEN):
        inner = _ends_inside(machine, target, ends, room - _places(machine, entry))
    elif not _is_call(machine, entry):
        return ends[room, target]
    found = nothing
    for verdict in range(machine.sizes[operand]):
        after = machine.returns[operand + verdict]
        if after >= 0 and not allowed[after]:
            return nothing
        if after >= 0 and inner >> np.uint64(min(verdict, _LAST_VERDICT)) & np.uint64(1):
            found |= ends[room, after]
    return found


@njit(cache=True, forceinline=True)
def _ends_inside(machine, start, ends, room):  # type: ignore[no-untyped-def]
    """The verdicts of a container that begins at `start`, none if it has no room for what it must have."""
    if room < 0:
        return np.uint64(0)
    for pair in range(len(machine.required)):
        if machine.required[pair, 0] == start and ends[room, machine.required[pair, 1]] == 0:
            return np.uint64(0)
    return ends[room, start]


@njit(cache=True, forceinline=True)
def _action(machine, entry):  # type: ignore[no-untyped-def]
    actions, number = machine.actions, -2 - entry
    return actions[number, 0], actions[number, 1], actions[number, 2]


@njit(cache=True, forceinline=True)
def _places(machine, entry):  # type: ignore[no-untyped-def]
    """That a push or an opened object takes."""
    action = machine.actions[-2 - entry]
    return 1 + action[4] if action[0] == OPEN else 1


@njit(cache=True, forceinline=True)
def _is_call(machine, entry):  # type: ignore[no-untyped-def]
    """Into a code point, from which it comes back."""
    kind, target, _ = _action(machine, entry)
    return (kind in (CALL, COUNT_CALL)) and machine.is_called[target]


@njit(cache=True)
def _graph(machine):  # type: ignore[no-untyped-def]
    first, entries = _entries(machine)
    states = len(first) - 1
    longest = 2
    for size in machine.sizes:
        longest = max(longest, size)
    after = np.empty(longest, np.int32)
    starts = np.zeros(states + 1, np.int64)
    for entry in entries:
        for place in range(_write_after(machine, entry, after)):
            starts[after[place] + 1] += 1
    starts = np.cumsum(starts)
    filled = starts[:-1].copy()
    sources = np.empty(starts[-1], np.int32)
    for state in range(states):
        for number in range(first[state], first[state + 1]):
            for place in range(_write_after(machine, entries[number], after)):
                sources[filled[after[place]]] = state
                filled[after[place]] += 1
    return _Graph(first, entries, starts, sources)


@njit(cache=True)
def _entries(machine):  # type: ignore[no-untyped-def]
    """[states + 1], and the entries of all states."""
    states, classes = machine.transitions.shape
    first = np.zeros(states + 1, np.int64)
    entries = np.empty(states * classes, np.int32)
    entry_of = np.full(states + len(machine.actions), -1, np.int32)
    base_of = np.full(len(machine.returns), -1, np.int32)
    found = 0
    for state in range(states):
        for column in range(classes):
            entry = machine.transitions[state, column]
            place = entry if entry >= 0 else states - 2 - entry
            if entry == DEAD or entry_of[place] == state:
                continue
            entry_of[place] = state
            if entry < DEAD and _is_call(machine, entry):
                base = machine.actions[-2 - entry, 2]
                if base_of[base] == state:
                    continue
                base_of[base] = state
            entries[found] = entry
            found += 1
        first[state + 1] = found
    return first, entries[:found].copy()


@njit(cache=True, forceinline=True)
def _write_after(machine, entry, after):  # type: ignore[no-untyped-def]
    """Writes the states on the same level that an entry leads to; returns how many there are."""
    if entry >= 0:
        after[0] = entry
        return 1
    kind, target, operand = _action(machine, entry)
    if kind in (POP, CLOSE):
        return 0
    if kind in (PUSH, OPEN) or _is_call(machine, entry):
        count = 0
        for verdict in range(machine.sizes[operand]):
            if machine.returns[operand + verdict] >= 0:
                after[count] = machine.returns[operand + verdict]
                count += 1
        return count
    after[0] = target
    after[1] = operand
    return 2 if kind == COUNT else 1


@njit(cache=True)
def _guards(machine, needs):  # type: ignore[no-untyped-def]
    """The room of each action, and which plain steps lead from less need to more: [states, classes]."""
    states, classes = machine.transitions.shape
    rooms = machine.actions[:, 3].copy()
    rises = np.zeros((states, classes), np.bool_)
    needs_of_action = np.empty(len(rooms), np.int32)
    for action in range(len(rooms)):
        needs_of_action[action] = _need_of(machine, -2 - action, needs)
    for state in range(states):
        for column in range(classes):
            entry = machine.transitions[state, column]
            if entry >= 0:
                rises[state, column] = needs[entry] > needs[state]
            elif entry < DEAD:
                action = -2 - entry
                kind = machine.actions[action, 0]
                need = needs_of_action[action]
                if kind in (PUSH, OPEN) or need > needs[state]:
                    # a drop happens with a count on the stack
                    rooms[action] = max(rooms[action], need - 1 if kind == DROP else need)
    return rooms, rises


@njit(cache=True)
def _need_of(machine, entry, needs):  # type: ignore[no-untyped-def]
    """Of an action."""
    kind, target, operand = _action(machine, entry)
    if kind in (POP, CLOSE):
        return 0  # who pushed has seen to it
    if kind == COUNT:
        return max(needs[target], needs[operand])
    need = np.int32(0)
    if kind in (PUSH, OPEN):
        need = needs[target]
        for pair in range(len(machine.required)):
            if machine.required[pair, 0] == target:
                need = max(need, needs[machine.required[pair, 1]])
        need += _places(machine, entry)
    elif not _is_call(machine, entry):
        return needs[target]
    for verdict in range(machine.sizes[operand]):
        after = machine.returns[operand + verdict]
        if after >= 0:
            need = max(need, needs[after])
    return need
