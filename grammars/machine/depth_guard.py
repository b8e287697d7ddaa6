"""Makes a step dead if the stack has too few free places for the rest of the reply.

A value may *require* nested values. Where the stack has too few free places for them, the reply can't end any
more, so every step that leads there must be dead already. The *need* of a state is the smallest number of
free places with which the reply can end, whatever verdicts its values return.

States on the same *level* have the same places below them. A push leads to the level above and returns with a
verdict. A call into a code point does the same and needs no place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
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
    DROP,
    FIRST_FULL,
    FULL,
    FULL_ROWS,
    GO,
    OPEN,
    POP,
    PUSH,
    SET_WORDS,
    STACK_DEPTH,
    TARGET,
    WORDS,
)
from ...runtime.json_gaps import NO_GAP
from ..errors import TooLargeError
from ..jit import njit
from .stack_automaton import StackAutomaton, words_of

_LAST_VERDICT = 63  # the highest bit of a word; it stands for all later verdicts too


class Frames(NamedTuple):
    """Facts about the stack that an automaton's tables don't hold."""

    sizes: NDArray[np.int32]  # [returns]: number of verdicts
    """The number of verdicts of each base, at the first place of the base."""
    is_called: NDArray[np.bool_]  # [states]: whether called
    """Whether the state is inside a code point; such a state returns by verdict."""
    required: NDArray[np.int32]  # [n, 2]: pairs of states
    """An object's first state, and the first state of a value that the object must have."""
    full_names: Callable[[NDArray[np.int32]], Mapping[int, Mapping[int, int]]]
    """Finds the names whose values may not fit on the stack, from the states' needs. Returns, by an unordered
    object's first state, a dict from numbers of free places to sets of names, as bits. An object with fewer
    free places than such a number takes its names for seen, so that it can't begin members with them."""


class _Ways(NamedTuple):
    """The effects of entries. Way a is action a; way actions + s is the plain step to state s.

    Way w leads to the states `after[first[w]:first[w] + counts[w]]` on the same level, without those that are
    `DEAD`. A push or call leads to one of these states for each verdict, any other way to any of them.
    """

    first: NDArray[np.int64]
    counts: NDArray[np.int32]
    after: NDArray[np.int32]
    like: NDArray[np.int64]
    """a way with the same states after it (many calls into code points share them), or the way itself"""
    inside: NDArray[np.int32]
    """the first state of the nested value if the way pushes, else -1"""
    places: NDArray[np.int32]
    """the number of places that the push takes"""
    popped: NDArray[np.uint64]
    """the verdict as a bit if the way pops, else 0"""


class _Graph(NamedTuple):
    """The ways between states. State s has the ways `ways[first_way[s]:first_way[s + 1]]`. The states on its
    level with a way to s are `sources[first_source[s]:first_source[s + 1]]`."""

    first_way: NDArray[np.int64]
    ways: NDArray[np.int32]
    first_source: NDArray[np.int64]
    sources: NDArray[np.int32]


def with_depth_guard(automaton: StackAutomaton, frames: Frames) -> StackAutomaton:
    """The automaton without the steps after which the stack has too few free places.

    Raises TooLargeError if the start needs more places than `automaton.bottom` leaves.
    """
    ways = _ways(automaton, frames)
    needs = _needs(automaton.transitions, automaton.accepting, frames.required, ways, STACK_DEPTH)
    most = STACK_DEPTH - len(automaton.bottom)
    if needs[automaton.start] > most:
        raise TooLargeError(f"it requires more than {most} levels of nesting")
    needs_of_ways = _needs_of_ways(ways, frames.required, needs)
    reserves, rises = _guards(automaton.transitions, automaton.actions, needs, needs_of_ways)
    targets, which = np.unique(automaton.transitions[rises], return_inverse=True)
    steps = np.zeros((len(targets), ACTION_COLUMNS), np.int32)
    steps[:, 0], steps[:, 1], steps[:, 3] = GO, targets, needs[targets]
    guarded = automaton.transitions.copy()
    guarded[rises] = -2 - len(reserves) - which
    actions = np.concatenate([automaton.actions, steps])
    actions[: len(reserves), 3] = reserves
    actions = _with_full_names(actions, frames.full_names(needs))
    return replace(automaton, transitions=guarded, actions=actions)


def _with_full_names(actions: NDArray[np.int32], names: Mapping[int, Mapping[int, int]]) -> NDArray[np.int32]:
    """The actions, to which it adds the names that count as seen while too few places are free."""
    rows = [actions]
    count = len(actions)
    for number in np.flatnonzero(actions[:, 0] == OPEN).tolist():
        target, words = actions[number, [TARGET, WORDS]].tolist()
        full = [
            [FULL, 0, 0, min(1 + words + need, STACK_DEPTH + 1), NO_GAP, *words_of(lacking)]
            for need, lacking in names.get(target, {}).items()
        ]
        if full:
            actions[number, [FULL_ROWS, FIRST_FULL]] = len(full), count - number
            rows.append(np.array(full, np.int32))
            count += len(full)
    return np.concatenate(rows)


def _ways(automaton: StackAutomaton, frames: Frames) -> _Ways:
    steps = np.zeros((len(automaton.transitions), ACTION_COLUMNS), np.int32)
    steps[:, 0], steps[:, 1] = GO, np.arange(len(steps))
    actions = np.concatenate([automaton.actions, steps])
    kinds, targets, operands = actions[:, :3].T
    pushes, pops = np.isin(kinds, (PUSH, OPEN)), np.isin(kinds, (POP, CLOSE))
    calls = np.flatnonzero(np.isin(kinds, (CALL, COUNT_CALL)))
    calls = calls[frames.is_called[targets[calls]]]  # no POP returns to the other ones
    returns = pushes.copy()
    returns[calls] = True
    first = np.arange(len(automaton.returns), len(automaton.returns) + 2 * len(actions), 2)
    first[returns] = operands[returns]
    counts = np.where(pops, 0, np.where(kinds == COUNT, 2, 1)).astype(np.int32)
    counts[returns] = frames.sizes[operands[returns]]
    popped = np.zeros(len(actions), np.uint64)
    popped[pops] = np.uint64(1) << np.minimum(operands[pops], _LAST_VERDICT).astype(np.uint64)
    return _Ways(
        first,
        counts,
        after=np.concatenate([automaton.returns, actions[:, 1:3].ravel()]),
        like=_like(len(actions), calls, operands[calls]),
        inside=np.where(pushes, targets, -1).astype(np.int32),
        places=np.where(kinds == OPEN, 1 + actions[:, WORDS], 1).astype(np.int32),
        popped=popped,
    )


def _like(ways: int, calls: NDArray[np.int64], bases: NDArray[np.int32]) -> NDArray[np.int64]:
    """For each call one call with the same base; for any other way the way itself."""
    like = np.arange(ways)
    call_of_base = np.zeros(1 + bases.max(initial=0), np.int64)
    call_of_base[bases] = calls
    like[calls] = call_of_base[bases]
    return like


@njit(cache=True)
def _needs(transitions, accepting, required, ways, most):
    """The need of each state, at most `most` + 1."""
    graph = _graph(transitions, ways)
    states = len(transitions)
    needs = np.full(states, most + 1, np.int32)
    inside = np.zeros((most + 1, states), np.uint64)
    before, pushes = _alone(accepting, graph, ways)
    may_gain = np.ones(states, np.bool_)
    unchanged = 0
    for reserve in range(most + 1):
        inner = _inner_ends(ways, inside, reserve)
        ends, allowed = _settle(graph, ways, before, inner, may_gain)
        for state in range(states):
            if allowed[state] and needs[state] > reserve:
                needs[state] = reserve
        unchanged = unchanged + 1 if reserve and (ends == before).all() else 0
        if allowed.all() or unchanged == 1 + SET_WORDS:  # an opened set takes up to 1 + SET_WORDS places
            break
        inside[reserve] = ends
        for pair in range(len(required)):
            if ends[required[pair, 1]] == 0:
                inside[reserve, required[pair, 0]] = 0
        before, may_gain = ends, pushes | (ends == 0)
    return needs


@njit(cache=True)
def _alone(accepting, graph, ways):
    """The verdicts, as bits, with which each state can end its level in one step, and whether each state
    pushes."""
    ends = accepting.astype(np.uint64)
    pushes = np.zeros(len(ends), np.bool_)
    for state in range(len(ends)):
        for number in range(graph.first_way[state], graph.first_way[state + 1]):
            way = graph.ways[number]
            ends[state] |= ways.popped[way]
            pushes[state] |= ways.inside[way] >= 0
    return ends, pushes


@njit(cache=True)
def _inner_ends(ways, inside, reserve):
    """The verdicts with which each way may return; none if too few places are free for its push."""
    inner = np.full(len(ways.inside), ~np.uint64(0))
    for way in range(len(inner)):
        if ways.inside[way] >= 0:
            left = reserve - ways.places[way]
            inner[way] = inside[left, ways.inside[way]] if left >= 0 else np.uint64(0)
    return inner


@njit(cache=True)
def _settle(graph, ways, before, inner, may_gain):
    """The verdicts with which each state's level can end, and which states are allowed.

    `before`: the verdicts with one free place less; `may_gain`: the states that may have more now.
    """
    allowed = np.ones(len(before), np.bool_)
    while True:
        ends = before.copy()
        _find_ends(graph, ways, ends, inner, allowed, may_gain)
        lost = allowed & (ends == 0)
        if not lost.any():
            return ends, allowed
        allowed &= ~lost


@njit(cache=True)
def _find_ends(graph, ways, ends, inner, allowed, to_begin):
    """Adds the verdicts that states get from those they lead to, beginning with the states `to_begin`."""
    first_way, ways_of, first_source, sources = graph
    # Taken out of `ways` here, because indexing it in the loop takes longer than all else.
    first, counts, after = ways.first, ways.counts, ways.after
    waits = to_begin.copy()
    pending = np.empty(len(ends), np.int32)
    count = 0
    for state in range(len(ends) - 1, -1, -1):
        if waits[state]:
            pending[count] = state
            count += 1
    while count:
        count -= 1
        state = pending[count]
        waits[state] = False
        if not allowed[state]:
            continue
        found = ends[state]
        for number in range(first_way[state], first_way[state + 1]):
            way = ways_of[number]
            found |= _ends_after(after, first[way], counts[way], inner[way], ends, allowed)
        if found == ends[state]:
            continue
        ends[state] = found
        for number in range(first_source[state], first_source[state + 1]):
            source = sources[number]
            if not waits[source]:
                waits[source] = True
                pending[count] = source
                count += 1


@njit(cache=True, forceinline=True)
def _ends_after(after, first, count, inner, ends, allowed):
    """The verdicts with which a state's level can end if it takes a way."""
    found = np.uint64(0)
    for verdict in range(count):
        state = after[first + verdict]
        if state >= 0 and not allowed[state]:
            return np.uint64(0)
        if state >= 0 and inner >> np.uint64(min(verdict, _LAST_VERDICT)) & np.uint64(1):
            found |= ends[state]
    return found


@njit(cache=True)
def _graph(transitions, ways):
    first_way, ways_of = _ways_of_states(transitions, ways)
    first, counts, after = ways.first, ways.counts, ways.after
    states = len(transitions)
    starts = np.zeros(states + 1, np.int64)
    for way in ways_of:
        for place in range(first[way], first[way] + counts[way]):
            if after[place] >= 0:
                starts[after[place] + 1] += 1
    starts = np.cumsum(starts)
    filled = starts[:-1].copy()
    sources = np.empty(starts[-1], np.int32)
    for state in range(states):
        for way in ways_of[first_way[state] : first_way[state + 1]]:
            for place in range(first[way], first[way] + counts[way]):
                if after[place] >= 0:
                    sources[filled[after[place]]] = state
                    filled[after[place]] += 1
    return _Graph(first_way, ways_of, starts, sources)


@njit(cache=True)
def _ways_of_states(transitions, ways):
    """Where each state's ways begin [states + 1], and the ways of all states."""
    states, classes = transitions.shape
    like = ways.like
    actions = len(like) - states
    first = np.zeros(states + 1, np.int64)
    ways_of = np.empty(states * classes, np.int32)
    state_of = np.full(len(like), -1, np.int32)
    found = 0
    for state in range(states):
        for column in range(classes):
            entry = transitions[state, column]
            if entry == DEAD:
                continue
            way = like[actions + entry if entry >= 0 else -2 - entry]
            if state_of[way] != state:
                state_of[way] = state
                ways_of[found] = way
                found += 1
        first[state + 1] = found
    return first, ways_of[:found].copy()


@njit(cache=True)
def _needs_of_ways(ways, required, needs):
    inside = needs.copy()
    for pair in range(len(required)):
        start, value = required[pair]
        inside[start] = max(inside[start], needs[value])
    found = np.zeros(len(ways.first), np.int32)  # 0 for a pop: the push has reserved its places
    for way in range(len(found)):
        if ways.inside[way] >= 0:
            found[way] = inside[ways.inside[way]] + ways.places[way]
        for place in range(ways.first[way], ways.first[way] + ways.counts[way]):
            if ways.after[place] >= 0:
                found[way] = max(found[way], needs[ways.after[place]])
    return found


@njit(cache=True)
def _guards(transitions, actions, needs, needs_of_ways):
    """The reserve of each action; which plain steps lead to a state with a greater need, [states,
    classes]."""
    states, classes = transitions.shape
    reserves = actions[:, 3].copy()
    rises = np.zeros((states, classes), np.bool_)
    for state in range(states):
        for column in range(classes):
            entry = transitions[state, column]
            if entry >= 0:
                rises[state, column] = needs[entry] > needs[state]
            elif entry < DEAD:
                action = -2 - entry
                kind = actions[action, 0]
                need = needs_of_ways[action]
                if kind in (PUSH, OPEN) or need > needs[state]:
                    # DROP removes a count from the stack first, so it needs one free place less
                    reserves[action] = max(reserves[action], need - 1 if kind == DROP else need)
    return reserves, rises
