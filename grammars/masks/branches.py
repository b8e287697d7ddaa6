"""Where bytes of one class lead by one entry of an automaton's transitions: walked once for all its states.

The mask of a state is put together of its branches, most of which other states have too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..stack_automaton import DEAD
from .configurations import ASKED, FULL, NOT_YET, OPENS, UNDECIDED, follow
from .lists import code_of, longer, sum_of
from .token_trie import OTHER, PLAIN, TokenTries
from .unowned import unowned
from .walks import NO_LIMIT, Machine, add

_FIRST_BRANCHES = 1 << 10
_FIRST_TOKENS = 1 << 14
_FIRST_MET = 1 << 13


class Branches(NamedTuple):
    """What a walk of trie t by branch b found are three spans of `tokens`: what is allowed, undecided, and
    openers. They end at `ends[b, t, 1:]`; each begins where the one before does, and the first at
    `ends[b, t, 0]`. Branch 0 is the ends of sequence."""

    of_entry: NDArray[np.int32]  # [states + actions, classes], 0 for none so far
    looked: NDArray[np.int32]  # [room, 2], nodes that a walk looks at; before it ~(at least so many)
    ends: NDArray[np.int32]  # [room, 2, 4]
    codes: NDArray[np.uint64]  # [room, 2, 3], of those spans
    tokens: NDArray[np.int32]
    used: NDArray[np.int64]  # [2], how many branches and tokens there are


class Walked(NamedTuple):
    """State i has the branches `met[met_ends[i - 1]:met_ends[i]]`. `dear[i]`: there was too much among the
    plain tokens, which are left out."""

    met: NDArray[np.int32]
    met_ends: NDArray[np.int64]
    dear: NDArray[np.bool_]


def no_branches(tries: TokenTries, machine: Machine) -> Branches:
    states, classes = machine.transitions.shape
    count = len(tries.eos)
    branches = Branches(
        np.zeros((states + len(machine.actions), classes), np.int32),
        np.zeros((_FIRST_BRANCHES, 2), np.int32),
        np.empty((_FIRST_BRANCHES, 2, 4), np.int32),
        np.zeros((_FIRST_BRANCHES, 2, 3), np.uint64),
        np.empty(_FIRST_TOKENS + count, np.int32),
        np.array([1, count], np.int64),
    )
    branches.tokens[:count] = tries.eos
    branches.ends[0] = [[0, count, count, count], [count] * 4]
    branches.codes[0, OTHER, 0] = sum_of(tries.eos)
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
        done = _walk_on(*unowned(tables), done, limit, few)  # type: ignore[call-arg]
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
def _walk_on(  # type: ignore[no-untyped-def]
    tries, roots, machine, configurations, branches, walked, states, ends_here, found, done, limit, few
):
    """Walks from further states, until there is no room: how many are done then. `FULL` if there is no room
    for all configurations. Of the trie of plain tokens it looks for the children of each node that lead
    somewhere, as most of them don't; of the other one it takes nodes in their order, as most of them do."""
    child_ends, token_starts, trie_tokens = tries.ends, tries.token_starts, tries.tokens
    first_child, child, child_byte = tries.first_child, tries.child, tries.child_byte
    depth, byte = tries.depth, tries.byte
    transitions, class_of_byte = machine.transitions, machine.class_of_byte
    after_action, rows, parts = configurations.after_action, configurations.rows, configurations.parts
    allowed, undecided, openers = found
    root_nodes, first_root, below = roots.nodes, roots.first, roots.looked
    places = np.empty(tries.max_bytes + 1, np.int32)
    at, until = np.empty_like(places), np.empty_like(places)
    of_entry, looked_by, ends, codes, tokens, used = branches
    met, met_ends, dear = walked
    known, classes = transitions.shape
    columns = np.empty(classes, np.int32)
    for i in range(done, len(states)):
        met_end = met_ends[i - 1] if i else 0
        if met_end + classes >= len(met) or used[0] + classes > len(looked_by):
            return i
        state, met_start, least = states[i], met_end, 0
        for column in range(classes):
            entry = transitions[state, column]
            if entry == DEAD:
                continue
            row = entry if entry >= 0 else known - 2 - entry
            if of_entry[row, column] == 0:
                of_entry[row, column] = used[0]
                step = entry if entry >= 0 else after_action[-2 - entry]
                looked_by[used[0], OTHER] = ~0
                looked_by[used[0], PLAIN] = ~(below[PLAIN, column] if step >= 0 else 0)
                used[0] += 1
            columns[met_end - met_start] = column
            met[met_end] = of_entry[row, column]
            looked = looked_by[met[met_end], PLAIN]
            least += looked if looked >= 0 else ~looked
            met_end += 1
        if ends_here[i]:
            met[met_end] = 0
            met_end += 1
        met_ends[i] = met_end
        dear[i] |= least > limit
        for trie in (OTHER, PLAIN):
            if trie == PLAIN and dear[i]:
                break
            most = limit if trie == PLAIN else NO_LIMIT
            total = total_allowed = 0
            for number in range(met_start, met_end):
                branch = met[number]
                if looked_by[branch, trie] < 0:
                    root_column = columns[number - met_start]
                    alive = open_questions = opening = looked = 0
                    for root in range(first_root[trie, root_column], first_root[trie, root_column + 1]):
                        node, column, here, level = root_nodes[root], root_column, state, 0
                        looked += 1
                        if trie == OTHER:
                            places[0] = state
                            stop = child_ends[node]
                            while node < stop:
                                level = depth[node]
                                here, column = places[level], class_of_byte[byte[node]]
                                if here < known:
                                    step = transitions[here, column]
                                    if step < DEAD:
                                        step = after_action[-2 - step]
                                else:
                                    step = rows[here - known, column]
                                if step == NOT_YET:
                                    step = follow(machine, configurations, here, column)
                                    if step == FULL:
                                        return FULL
                                if step < 0:
                                    if step == UNDECIDED:
                                        first, last = token_starts[node], token_starts[child_ends[node]]
                                        open_questions = add(
                                            undecided, open_questions, trie_tokens, first, last
                                        )
                                    node = child_ends[node]
                                    continue
                                places[level + 1] = step
                                first, last = token_starts[node], token_starts[node + 1]
                                marks = parts[step - known, 2] if step >= known else 0
                                if marks & ASKED:
                                    open_questions = add(undecided, open_questions, trie_tokens, first, last)
                                else:
                                    alive = add(allowed, alive, trie_tokens, first, last)
                                    if marks & OPENS:
                                        opening = add(openers, opening, trie_tokens, first, last)
                                node += 1
                            continue
                        while looked <= most:
                            if here < known:
                                step = transitions[here, column]
                                if step < DEAD:
                                    step = after_action[-2 - step]
                            else:
                                step = rows[here - known, column]
                            if step == NOT_YET:
                                step = follow(machine, configurations, here, column)
                                if step == FULL:
                                    return FULL
                            if step == UNDECIDED:
                                first, last = token_starts[node], token_starts[child_ends[node]]
                                open_questions = add(undecided, open_questions, trie_tokens, first, last)
                            elif step >= 0:
                                first, last = token_starts[node], token_starts[node + 1]
                                marks = parts[step - known, 2] if step >= known else 0
                                if marks & ASKED:
                                    open_questions = add(undecided, open_questions, trie_tokens, first, last)
                                else:
                                    alive = add(allowed, alive, trie_tokens, first, last)
                                    if marks & OPENS:
                                        opening = add(openers, opening, trie_tokens, first, last)
                                level += 1
                                places[level], at[level], until[level] = (
                                    step,
                                    first_child[node],
                                    first_child[node + 1],
                                )
                                looked += until[level] - at[level]
                            while level > 0:
                                here, place, last_child = places[level], at[level], until[level]
                                if here < known:
                                    while (
                                        place < last_child
                                        and transitions[here, class_of_byte[child_byte[place]]] == DEAD
                                    ):
                                        place += 1
                                else:
                                    while (
                                        place < last_child
                                        and rows[here - known, class_of_byte[child_byte[place]]] == DEAD
                                    ):
                                        place += 1
                                at[level] = place + 1
                                if place < last_child:
                                    node, column = child[place], class_of_byte[child_byte[place]]
                                    break
                                level -= 1
                            if level == 0:
                                break
                    if looked <= most:
                        end = used[1]
                        if end + alive + open_questions + opening > len(tokens):
                            return i
                        ends[branch, trie, 0] = end
                        end, codes[branch, trie, 0] = _append(tokens, end, allowed, alive)
                        ends[branch, trie, 1] = end
                        end, codes[branch, trie, 1] = _append(tokens, end, undecided, open_questions)
                        ends[branch, trie, 2] = end
                        end, codes[branch, trie, 2] = _append(tokens, end, openers, opening)
                        ends[branch, trie, 3] = end
                        used[1] = end
                    looked_by[branch, trie] = looked
                total += looked_by[branch, trie]
                if total > most:
                    break
                if trie == PLAIN:
                    total_allowed += ends[branch, PLAIN, 1] - ends[branch, PLAIN, 0]
            if trie == PLAIN and (total > limit or total_allowed > few):
                dear[i] = True
    return len(states)


@njit(cache=True, nogil=True)
def _with_rows(looked, ends, codes, room):  # type: ignore[no-untyped-def]
    more_looked, more_ends = np.empty((room, 2), np.int32), np.empty((room, 2, 4), np.int32)
    more_codes = np.empty((room, 2, 3), np.uint64)
    more_looked[: len(looked)] = looked
    more_ends[: len(ends)] = ends
    more_codes[: len(codes)] = codes
    return more_looked, more_ends, more_codes


@njit(nogil=True, forceinline=True)
def _append(tokens, end, more, count):  # type: ignore[no-untyped-def]
    """The new end, and the code of the tokens."""
    code, start = np.uint64(0), np.uint64(end)
    for i in range(np.uint64(count)):
        tokens[start + i] = more[i]
        code += code_of(more[i])
    return end + count, code
