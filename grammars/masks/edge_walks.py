"""Edge walks: the tokens found along one entry of the transition table, by the bytes of one class.

Each edge is walked once for all states that have the same entry; the mask of a state is put together from
its edges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import DEAD
from ..jit import njit
from ..jit.arrays import longer
from .configurations import CONFIGURATIONS_FULL
from .lists import code_of, sum_of
from .token_trie import OTHER, QUOTE_FREE, TokenTries
from .unowned import unowned
from .walks import Machine, RootGroups, sort_tokens, step_of, walk_in_order

END_OF_SEQUENCE, NOTHING = 1, 2
_EDGES_FULL = -1
_FIRST_EDGES = 1 << 10
_FIRST_TOKENS = 1 << 14
_FIRST_MET = 1 << 13


class Edges(NamedTuple):
    """The tokens of edge e are three adjacent spans of `tokens`: the allowed ones, the undecided ones and the
    openers (see `grammars.masks`). The first span starts at `ends[e, 0]`; the spans end at `ends[e, 1:]`.
    Edge `END_OF_SEQUENCE` has the end-of-sequence tokens. Walks of the `OTHER` trie that find no token share
    the edge `NOTHING`."""

    of_entry: NDArray[np.int32]  # [states + actions, root groups]: each entry's edge, 0 before it is walked
    visited: NDArray[np.int32]  # [capacity]: number of quote-free tokens' nodes that the edge's walk visits
    ends: NDArray[np.int32]  # [capacity, 4]: the ends of each edge's spans
    codes: NDArray[np.uint64]  # [capacity, 3]: a hash of each span
    tokens: NDArray[np.int32]
    used: NDArray[np.int64]  # [2]: number of edges and number of tokens in use


class WalkedStates(NamedTuple):
    """`states[i]` has the edges `met[met_ends[i - 1]:met_ends[i]]`. If the state is costly, these include no
    edges of quote-free tokens."""

    states: NDArray[np.int32]
    met: NDArray[np.int32]
    met_ends: NDArray[np.int64]
    costly: NDArray[np.bool_]


class Limits(NamedTuple):
    """A state is costly if its quote-free tokens exceed one of these."""

    nodes: int  # maximal number of nodes to visit
    tokens: int


def no_edges(tries: TokenTries, groups: RootGroups, machine: Machine) -> Edges:
    count = len(tries.eos)
    edges = Edges(
        np.zeros((len(machine.transitions) + len(machine.actions), len(groups.columns)), np.int32),
        np.zeros(_FIRST_EDGES, np.int32),
        np.zeros((_FIRST_EDGES, 4), np.int32),
        np.zeros((_FIRST_EDGES, 3), np.uint64),
        np.empty(_FIRST_TOKENS + count, np.int32),
        np.array([NOTHING + 1, count], np.int64),
    )
    edges.tokens[:count] = tries.eos
    edges.ends[END_OF_SEQUENCE, 1:] = count
    edges.codes[END_OF_SEQUENCE, 0] = sum_of(tries.eos)
    return edges


@njit(cache=True, nogil=True)
def walk_states(context, edges, states, may_end, is_costly, limits):
    """`WalkedStates` of int32 [n], the edges with new ones added, and False if the configurations ran out of
    capacity (the results are then invalid). `may_end` allows the end of sequence. States are costly if
    `is_costly` says so or if they exceed the limits."""
    walked = WalkedStates(
        states, np.empty(_FIRST_MET, np.int32), np.zeros(len(states), np.int64), is_costly.copy()
    )
    done = np.int64(0)  # not a literal, for which numba would compile the callee once more
    while 0 <= done < len(states):
        walked, edges = _with_capacity(walked, edges, done, 2 * len(context.buffers.allowed))
        done = _walk_from(context, edges, walked, may_end, done, limits)
    return walked, edges, done >= 0


@njit(cache=True, nogil=True)
def _with_capacity(walked, edges, done, tokens):
    """The edges with capacity for the edges of one more state and for `tokens` more tokens."""
    of_entry, visited, ends, codes, found, used = edges
    states, met, met_ends, costly = walked
    most = of_entry.shape[1] + 1
    count = met_ends[done - 1] if done else 0
    if count + most > len(met):
        met = longer(met, 2 * (count + most))
    if used[0] + most > len(visited):
        rows = 2 * (used[0] + most)
        visited, ends, codes = longer(visited, rows), longer(ends, rows), longer(codes, rows)
    if used[1] + tokens > len(found):
        found = longer(found, 2 * (used[1] + tokens))
    return WalkedStates(states, met, met_ends, costly), Edges(of_entry, visited, ends, codes, found, used)


@njit(cache=True, nogil=True)
def _walk_from(context, edges, walked, may_end, done, limits):
    """Walks from state number `done` on until the buffers of edges are full. Returns how many states are
    done, or `CONFIGURATIONS_FULL`."""
    context, edges = unowned((context, edges))
    groups, machine, levels = context.groups, context.machine, context.levels
    states, met, met_ends, costly = unowned(walked)
    most = len(groups.columns)
    for i in range(done, len(states)):
        count = met_ends[i - 1] if i else 0
        if count + most >= len(met) or edges.used[0] + most > len(edges.visited):
            return i
        levels[0, 0] = states[i]
        count = _meet_others(context, edges, met, count)
        if count < 0:
            return i if count == _EDGES_FULL else CONFIGURATIONS_FULL
        if may_end[i]:
            met[count] = END_OF_SEQUENCE
            count += 1
        met_ends[i] = count
        least = _least_visited(groups, machine, context.configurations, states[i])
        costly[i] = costly[i] or least > limits.nodes
        if not costly[i]:
            count, costly[i] = _meet_quote_free(context, edges, met, count, limits)
            if count < 0:
                return i if count == _EDGES_FULL else CONFIGURATIONS_FULL
            met_ends[i] = met_ends[i] if costly[i] else count
    return len(states)


@njit(nogil=True, forceinline=True)
def _meet_others(context, edges, met, count):
    """Appends the edges of state `levels[0, 0]` in the trie of other tokens to `met[:count]`. Returns the new
    count, `CONFIGURATIONS_FULL` or `_EDGES_FULL`."""
    groups = context.groups
    for group in range(groups.ends[OTHER], groups.ends[QUOTE_FREE]):
        row = _row(context.machine, context.levels[0, 0], groups.columns[group])
        if row < 0:
            continue
        edge = np.int64(edges.of_entry[row, group])
        if edge == 0:
            edge = _walk_others(context, edges, group)
            if edge < 0:
                return edge
            edges.of_entry[row, group] = edge
        met[count] = edge
        count += edge != NOTHING
    return count


@njit(nogil=True, forceinline=True)
def _meet_quote_free(context, edges, met, count, limits):
    """Does the same as `_meet_others` for quote-free tokens; also returns whether they exceed the limits."""
    groups = context.groups
    visited = allowed = 0
    for group in range(groups.ends[QUOTE_FREE], groups.ends[QUOTE_FREE + 1]):
        row = _row(context.machine, context.levels[0, 0], groups.columns[group])
        if row < 0:
            continue
        edge = np.int64(edges.of_entry[row, group])
        if edge == 0:
            edge = _walk_quote_free(context, edges, group, limits.nodes)
            if edge < 0:
                return edge, False
            edges.of_entry[row, group] = edge
        met[count] = edge
        count += 1
        visited += edges.visited[edge]
        allowed += edges.ends[edge, 1] - edges.ends[edge, 0]
        if visited > limits.nodes:
            break
    return count, visited > limits.nodes or allowed > limits.tokens


@njit(nogil=True, forceinline=True)
def _row(machine, state, column):
    """The row in `Edges.of_entry` of a state's transition, or -1 if it is dead."""
    entry = machine.transitions[state, column]
    return entry if entry >= DEAD else len(machine.transitions) - 2 - entry


@njit(nogil=True, forceinline=True)
def _least_visited(groups, machine, configurations, state):
    """A lower bound of the number of nodes that a state's walk of the quote-free tokens visits."""
    least = 0
    for group in range(groups.ends[QUOTE_FREE], groups.ends[QUOTE_FREE + 1]):
        entry = machine.transitions[state, groups.columns[group]]
        if entry >= 0 or (entry < DEAD and configurations.after_action[-2 - entry] >= 0):
            least += groups.sizes[group]
    return least


@njit(nogil=True, forceinline=True)
def _walk_others(context, edges, group):
    """Walks in preorder, as most nodes are allowed. Returns the edge, `CONFIGURATIONS_FULL` or
    `_EDGES_FULL`."""
    groups, counts = context.groups, (0, 0, 0)
    for root in range(groups.first[group], groups.first[group + 1]):
        node = groups.nodes[root]
        counts, has_capacity = walk_in_order(context, counts, node, context.tries.ends[node])
        if not has_capacity:
            return np.int64(CONFIGURATIONS_FULL)
    return _keep(edges, context.buffers, counts, 0) if counts != (0, 0, 0) else np.int64(NOTHING)


@njit(nogil=True, forceinline=True)
def _walk_quote_free(context, edges, group, max_nodes):
    """Tests the children of each node before visiting them, as most are dead. Returns the edge, which is
    empty if the walk visits more than `max_nodes`, `CONFIGURATIONS_FULL` or `_EDGES_FULL`."""
    groups, counts, visited = context.groups, (0, 0, 0), 0
    for root in range(groups.first[group], groups.first[group + 1]):
        node, column = groups.nodes[root], groups.columns[group]
        counts, visited = _walk_by_child(context, counts, node, column, visited + 1, max_nodes)
        if visited == CONFIGURATIONS_FULL:
            return np.int64(CONFIGURATIONS_FULL)
    return _keep(edges, context.buffers, counts if visited <= max_nodes else (0, 0, 0), visited)


@njit(nogil=True, forceinline=True)
def _walk_by_child(context, counts, node, column, visited, max_nodes):
    """Returns the new counts of the buffers, and the number of visited nodes or `CONFIGURATIONS_FULL`."""
    tries, machine, levels = context.tries, context.machine, context.levels
    places, at, until = levels[0], levels[1], levels[2]
    level = 0
    while visited <= max_nodes:
        step = step_of(machine, context.configurations, places[level], column)
        if step == CONFIGURATIONS_FULL:
            return counts, CONFIGURATIONS_FULL
        if step != DEAD:
            counts = sort_tokens(context, counts, node, step)
        if step >= 0:
            level += 1
            places[level], at[level], until[level] = (
                step,
                tries.first_child[node],
                tries.first_child[node + 1],
            )
            visited += until[level] - at[level]
        level = _next_level(context, level)
        if level == 0:
            break
        node, column = tries.child[at[level]], machine.class_of_byte[tries.child_byte[at[level]]]
        at[level] += 1
    return counts, visited


@njit(nogil=True, forceinline=True)
def _next_level(context, level):
    """The deepest level, up to this one, with a child left that is not dead; 0 if there is none."""
    tries, machine, levels = context.tries, context.machine, context.levels
    places, at, until = levels[0], levels[1], levels[2]
    states = len(machine.transitions)
    while level > 0:
        here = places[level]
        row = machine.transitions[here] if here < states else context.configurations.rows[here - states]
        place = at[level]
        while place < until[level] and row[machine.class_of_byte[tries.child_byte[place]]] == DEAD:
            place += 1
        at[level] = place
        if place < until[level]:
            return level
        level -= 1
    return 0


@njit(nogil=True, forceinline=True)
def _keep(edges, found, counts, visited):
    """Adds an edge with the contents of the buffers. Returns its number, or `_EDGES_FULL`."""
    edge, end = edges.used[0], edges.used[1]
    if end + counts[0] + counts[1] + counts[2] > len(edges.tokens):
        return np.int64(_EDGES_FULL)
    edges.visited[edge] = visited
    edges.ends[edge, 0] = end
    for part in range(3):
        end, edges.codes[edge, part] = _append(edges.tokens, end, found[part], counts[part])
        edges.ends[edge, part + 1] = end
    edges.used[0], edges.used[1] = edge + 1, end
    return edge


@njit(nogil=True, forceinline=True)
def _append(tokens, end, more, count):
    """Appends tokens. Returns the new end, and a hash of the added tokens."""
    code, start = np.uint64(0), np.uint64(end)
    for i in range(np.uint64(count)):
        tokens[start + i] = more[i]
        code += code_of(more[i])
    return end + count, code
