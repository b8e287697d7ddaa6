"""Where bytes of one class lead by one entry of an automaton's transitions: walked once for all its states.

The mask of a state is put together of its branches, most of which other states have too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..machine.stack_automaton import DEAD
from .configurations import FULL
from .lists import code_of, longer, sum_of
from .token_trie import OTHER, PLAIN, TokenTries
from .unowned import unowned
from .walks import Machine, Roots, sort_tokens, step_of, walk_in_order

ENDS, NOTHING = 1, 2
_NO_ROOM = -1
_FIRST_BRANCHES = 1 << 10
_FIRST_TOKENS = 1 << 14
_FIRST_MET = 1 << 13


class Branches(NamedTuple):
    """What a walk by branch b found are three spans of `tokens`: what is allowed, undecided, and openers.
    They end at `ends[b, 1:]`; each begins where the one before does, and the first at `ends[b, 0]`. Branch
    `ENDS` is the ends of sequence, `NOTHING` each in the trie of other tokens that leads to none."""

    of_entry: NDArray[np.int32]  # [states + actions, ways into the tries], 0 for none so far
    looked: NDArray[np.int32]  # [room], nodes of plain tokens that a walk looks at
    ends: NDArray[np.int32]  # [room, 4]
    codes: NDArray[np.uint64]  # [room, 3], of those spans
    tokens: NDArray[np.int32]
    used: NDArray[np.int64]  # [2], how many branches and tokens there are


class Walked(NamedTuple):
    """State i has the branches `met[met_ends[i - 1]:met_ends[i]]`. `dear[i]`: there was too much among the
    plain tokens, which are left out."""

    met: NDArray[np.int32]
    met_ends: NDArray[np.int64]
    dear: NDArray[np.bool_]


def no_branches(tries: TokenTries, roots: Roots, machine: Machine) -> Branches:
    count = len(tries.eos)
    branches = Branches(
        np.zeros((len(machine.transitions) + len(machine.actions), len(roots.columns)), np.int32),
        np.zeros(_FIRST_BRANCHES, np.int32),
        np.zeros((_FIRST_BRANCHES, 4), np.int32),
        np.zeros((_FIRST_BRANCHES, 3), np.uint64),
        np.empty(_FIRST_TOKENS + count, np.int32),
        np.array([NOTHING + 1, count], np.int64),
    )
    branches.tokens[:count] = tries.eos
    branches.ends[ENDS, 1:] = count
    branches.codes[ENDS, 0] = sum_of(tries.eos)
    return branches


@njit(cache=True, nogil=True)
def walk_states(  # type: ignore[no-untyped-def]
    tries, roots, machine, configurations, branches, states, ends_here, is_dear, found, limit, few
):
    """`Walked` of states int32 [n]. Dear are those whose plain tokens take more than `limit` nodes or are
    more than `few`, and those that are so already. Where `ends_here`, ends of sequence are allowed. With
    the branches, of which there are more now, and whether there was room for all configurations, without
    which the rest is worth nothing."""
    walked = Walked(np.empty(_FIRST_MET, np.int32), np.zeros(len(states), np.int64), is_dear.copy())
    done = 0
    while 0 <= done < len(states):
        walked, branches = _with_room(walked, branches, done, 2 * len(found.allowed))
        tables = (tries, roots, machine, configurations, branches, walked, states, ends_here, found)
        done = _walk_on(*tables, done, limit, few)
    return walked, branches, done >= 0


@njit(cache=True, nogil=True)
def _with_room(walked, branches, done, tokens):  # type: ignore[no-untyped-def]
    """With room for the branches of a state and so many tokens more."""
    of_entry, looked, ends, codes, found, used = branches
    met, met_ends, dear = walked
    most = of_entry.shape[1] + 1
    count = met_ends[done - 1] if done else 0
    if count + most > len(met):
        met = longer(met, 2 * (count + most))
    if used[0] + most > len(looked):
        looked, ends, codes = _with_rows(looked, ends, codes, 2 * (used[0] + most))
    if used[1] + tokens > len(found):
        found = longer(found, 2 * (used[1] + tokens))
    return Walked(met, met_ends, dear), Branches(of_entry, looked, ends, codes, found, used)


@njit(cache=True, nogil=True)
def _with_rows(looked, ends, codes, room):  # type: ignore[no-untyped-def]
    more_looked, more_ends = np.empty(room, np.int32), np.empty((room, 4), np.int32)
    more_codes = np.empty((room, 3), np.uint64)
    more_looked[: len(looked)] = looked
    more_ends[: len(ends)] = ends
    more_codes[: len(codes)] = codes
    return more_looked, more_ends, more_codes


@njit(cache=True, nogil=True)
def _walk_on(  # type: ignore[no-untyped-def]
    tries, roots, machine, configurations, branches, walked, states, ends_here, found, done, limit, few
):
    """Walks from further states, until there is no room: how many are done then. `FULL` if there is no room
    for all configurations."""
    levels = np.empty((3, tries.max_bytes + 1), np.int32)
    tables = unowned((tries, roots, machine, configurations, branches, found, levels))
    met, met_ends, dear = unowned(walked)
    most = len(roots.columns)
    for i in range(done, len(states)):
        count = met_ends[i - 1] if i else 0
        if count + most >= len(met) or branches.used[0] + most > len(branches.looked):
            return i
        levels[0, 0] = states[i]
        count = _meet_others(*tables, met, count)  # type: ignore[call-arg]
        if count < 0:
            return i if count == _NO_ROOM else FULL
        if ends_here[i]:
            met[count] = ENDS
            count += 1
        met_ends[i] = count
        dear[i] = dear[i] or _least(*tables[1:4], states[i]) > limit  # type: ignore[call-arg]
        if not dear[i]:
            count, dear[i] = _meet_plain(*tables, met, count, limit, few)  # type: ignore[call-arg]
            if count < 0:
                return i if count == _NO_ROOM else FULL
            met_ends[i] = met_ends[i] if dear[i] else count
    return len(states)


@njit(nogil=True, forceinline=True)
def _meet_others(tries, roots, machine, configurations, branches, found, levels, met, count):  # type: ignore[no-untyped-def]
    """Notes the branches of the state `levels[0, 0]` in the trie of other tokens, with those before them:
    how many they are now, `FULL` or `_NO_ROOM`."""
    for way in range(roots.ways[OTHER], roots.ways[PLAIN]):
        row = _row(machine, levels[0, 0], roots.columns[way])
        if row < 0:
            continue
        branch = np.int64(branches.of_entry[row, way])
        if branch == 0:
            branch = _walk_others(tries, roots, machine, configurations, branches, found, levels, way)
            if branch < 0:
                return branch
            branches.of_entry[row, way] = branch
        met[count] = branch
        count += branch != NOTHING
    return count


@njit(nogil=True, forceinline=True)
def _meet_plain(  # type: ignore[no-untyped-def]
    tries, roots, machine, configurations, branches, found, levels, met, count, limit, few
):
    """The same for plain tokens; and whether there is too much."""
    looked = allowed = 0
    for way in range(roots.ways[PLAIN], roots.ways[PLAIN + 1]):
        row = _row(machine, levels[0, 0], roots.columns[way])
        if row < 0:
            continue
        branch = np.int64(branches.of_entry[row, way])
        if branch == 0:
            branch = _walk_plain(tries, roots, machine, configurations, branches, found, levels, way, limit)
            if branch < 0:
                return branch, False
            branches.of_entry[row, way] = branch
        met[count] = branch
        count += 1
        looked += branches.looked[branch]
        allowed += branches.ends[branch, 1] - branches.ends[branch, 0]
        if looked > limit:
            break
    return count, looked > limit or allowed > few


@njit(nogil=True, forceinline=True)
def _row(machine, state, column):  # type: ignore[no-untyped-def]
    """Of branches by entry, -1 where nothing leads on."""
    entry = machine.transitions[state, column]
    return entry if entry >= DEAD else len(machine.transitions) - 2 - entry


@njit(nogil=True, forceinline=True)
def _least(roots, machine, configurations, state):  # type: ignore[no-untyped-def]
    """At least so many nodes are looked at for the plain tokens of a state."""
    least = 0
    for way in range(roots.ways[PLAIN], roots.ways[PLAIN + 1]):
        entry = machine.transitions[state, roots.columns[way]]
        if entry >= 0 or (entry < DEAD and configurations.after_action[-2 - entry] >= 0):
            least += roots.looked[way]
    return least


@njit(nogil=True, forceinline=True)
def _walk_others(tries, roots, machine, configurations, branches, found, levels, way):  # type: ignore[no-untyped-def]
    """Takes nodes in their order, as most of them lead on. The branch, `FULL` or `_NO_ROOM`."""
    counts = (0, 0, 0)
    for root in range(roots.first[way], roots.first[way + 1]):
        node = roots.nodes[root]
        counts, has_room = walk_in_order(
            tries, machine, configurations, found, counts, levels[0], node, tries.ends[node]
        )
        if not has_room:
            return np.int64(FULL)
    return _kept(branches, found, counts, 0) if counts != (0, 0, 0) else np.int64(NOTHING)


@njit(nogil=True, forceinline=True)
def _walk_plain(tries, roots, machine, configurations, branches, found, levels, way, most):  # type: ignore[no-untyped-def]
    """Looks for the children of each node that lead somewhere, as most of them don't. The branch, which holds
    nothing if more than `most` nodes were looked at, `FULL` or `_NO_ROOM`."""
    counts, looked = (0, 0, 0), 0
    for root in range(roots.first[way], roots.first[way + 1]):
        counts, looked = _walk_by_child(
            tries,
            machine,
            configurations,
            found,
            counts,
            levels,
            roots.nodes[root],
            roots.columns[way],
            looked + 1,
            most,
        )
        if looked == FULL:
            return np.int64(FULL)
    return _kept(branches, found, counts if looked <= most else (0, 0, 0), looked)


@njit(nogil=True, forceinline=True)
def _walk_by_child(tries, machine, configurations, found, counts, levels, node, column, looked, most):  # type: ignore[no-untyped-def]
    """What is found, and how many nodes were looked at, or `FULL`."""
    places, at, until = levels[0], levels[1], levels[2]
    states, level = len(machine.transitions), 0
    while looked <= most:
        step = step_of(machine, configurations, places[level], column)
        if step == FULL:
            return counts, FULL
        if step != DEAD:
            counts = sort_tokens(tries, configurations.parts, states, found, counts, node, step)
        if step >= 0:
            level += 1
            places[level], at[level], until[level] = (
                step,
                tries.first_child[node],
                tries.first_child[node + 1],
            )
            looked += until[level] - at[level]
        level = _next_level(tries, machine, configurations, levels, level)
        if level == 0:
            break
        node, column = tries.child[at[level]], machine.class_of_byte[tries.child_byte[at[level]]]
        at[level] += 1
    return counts, looked


@njit(nogil=True, forceinline=True)
def _next_level(tries, machine, configurations, levels, level):  # type: ignore[no-untyped-def]
    """Where there is a child that leads somewhere, at or above a level; 0 if there is none."""
    places, at, until = levels[0], levels[1], levels[2]
    states = len(machine.transitions)
    while level > 0:
        here = places[level]
        row = machine.transitions[here] if here < states else configurations.rows[here - states]
        place = at[level]
        while place < until[level] and row[machine.class_of_byte[tries.child_byte[place]]] == DEAD:
            place += 1
        at[level] = place
        if place < until[level]:
            return level
        level -= 1
    return 0


@njit(nogil=True, forceinline=True)
def _kept(branches, found, counts, looked):  # type: ignore[no-untyped-def]
    """A new branch with what was found, `_NO_ROOM` if there is none."""
    branch, end = branches.used[0], branches.used[1]
    if end + counts[0] + counts[1] + counts[2] > len(branches.tokens):
        return np.int64(_NO_ROOM)
    branches.looked[branch] = looked
    branches.ends[branch, 0] = end
    for part in range(3):
        end, branches.codes[branch, part] = _append(branches.tokens, end, found[part], counts[part])
        branches.ends[branch, part + 1] = end
    branches.used[0], branches.used[1] = branch + 1, end
    return branch


@njit(nogil=True, forceinline=True)
def _append(tokens, end, more, count):  # type: ignore[no-untyped-def]
    """The new end, and the code of the tokens."""
    code, start = np.uint64(0), np.uint64(end)
    for i in range(np.uint64(count)):
        tokens[start + i] = more[i]
        code += code_of(more[i])
    return end + count, code
