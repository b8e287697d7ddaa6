"""Fingerprints of states: equal where quote-free tokens do the same from both, whatever automata they belong
to.

The fingerprint of a state after n rounds represents the states to which all texts of n bytes without a quote
lead: each round mixes the fingerprints of the states after each byte. Bytes and positions have random
weights, so that nobody can craft a grammar whose states collide with another grammar's.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import (
    CALL,
    COUNT,
    COUNT_CALL,
    DEAD,
    GAP,
    KIND,
    OPERAND,
    POP,
    RESERVE,
    TARGET,
)
from ..jit import njit
from .token_trie import MAX_QUOTE_FREE_BYTES, QUOTE
from .unowned import unowned
from .walks import Machine

_MAX_VERDICTS = 64  # maximal number of a call's verdicts; a call with more gets a fingerprint of its own


class Weights(NamedTuple):
    bytes: NDArray[np.uint64]  # [256]: the weight of each byte
    roles: NDArray[np.uint64]  # weights. 0: what follows an action; 1: any state; 2 + v: return by verdict v


class Fingerprinter:
    """Computes fingerprints, which are comparable across all automata if one instance computes them."""

    def __init__(self) -> None:
        self._weights = Weights(_random(256), _random(_MAX_VERDICTS + 2))

    def fingerprint(self, machine: Machine, states: NDArray[np.int32]) -> NDArray[np.uint64]:
        """The fingerprints of states [n]: equal if no quote-free token distinguishes the states."""
        found: NDArray[np.uint64] = _fingerprint(machine, states, self._weights, _random(1)[0])
        return found


def _random(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(secrets.token_bytes(8 * count), np.uint64) | np.uint64(1)


@njit(cache=True, nogil=True)
def _fingerprint(machine, states, weights, salt):
    """Computes `Fingerprinter.fingerprint`. `salt`, new each time, marks what depends on more than bytes and
    code points, so that it equals nothing of another automaton.
    """
    machine, weights = unowned((machine, weights))
    actions = machine.actions
    verdicts = np.full(len(actions), -1, np.int32)
    row, reached = _find_reached(machine, _quote_free_columns(machine), states, verdicts)
    steps = _steps(machine, row, reached, weights.bytes)
    of_states = np.ones(len(reached), np.uint64)
    of_actions = np.zeros(len(actions), np.uint64)
    met = np.flatnonzero(verdicts >= 0)
    calls = _calls(machine, met, verdicts)
    for _ in range(MAX_QUOTE_FREE_BYTES):
        after = _after_verdicts(machine, calls, of_states, row, weights.roles)
        for action in met:
            if _is_call(machine, action, verdicts[action]):
                called = row[machine.actions[action, TARGET]]
                total = after[calls.first[action] + verdicts[action] - 1]
                of_actions[action] = _mix(weights.roles[0] * of_states[called] + total)
            else:
                of_actions[action] = _of_action(
                    machine, action, verdicts[action], of_states, row, weights.roles, salt
                )
        of_states = _follow(steps, of_states, of_actions, weights.roles[1])
    return of_states[row[states]]


@njit(cache=True, nogil=True)
def _mix(number):
    number ^= number >> np.uint64(32)
    number *= np.uint64(0xD6E8FEB86659FD93)
    number ^= number >> np.uint64(32)
    number *= np.uint64(0xD6E8FEB86659FD93)
    return number ^ (number >> np.uint64(32))


@njit(cache=True, nogil=True)
def _of_action(machine, action, verdicts, of_states, row, roles, salt):
    """The fingerprint of an action. A counter whose outcome cannot matter is ignored."""
    kind = machine.actions[action, KIND]
    target = machine.actions[action, TARGET]
    operand = machine.actions[action, OPERAND]
    unique = _mix(salt + np.uint64(action))
    if machine.actions[action, RESERVE] >= 0 or machine.actions[action, GAP]:
        return unique
    if kind == POP:
        return _mix(roles[0] + np.uint64(operand))
    if kind == COUNT:
        same = of_states[row[target]] == of_states[row[operand]]
        return of_states[row[target]] if same else unique
    if kind != COUNT_CALL or not 0 < verdicts <= _MAX_VERDICTS:
        return unique
    total = roles[0] * of_states[row[target]]
    for verdict in range(verdicts):
        state = _return_of(machine, operand, verdict)
        if state >= 0:
            total += roles[2 + verdict] * of_states[row[state]]
        other = _return_of(machine, operand + 1, verdict)
        if (state >= 0) != (other >= 0):
            return unique
        if state >= 0 and of_states[row[state]] != of_states[row[other]]:
            return unique
    return _mix(total)


class _Calls(NamedTuple):
    """The return states of calls, once for all calls that push the same base. `first[action]` is where the
    return states of a call start among those of all bases, one for each verdict."""

    first: NDArray[np.int64]  # [actions]: first return state of each call
    bases: NDArray[np.int32]
    widths: NDArray[np.int32]  # [bases]: number of verdicts


@njit(cache=True, nogil=True)
def _is_call(machine, action, verdicts):
    needs_nothing = machine.actions[action, RESERVE] < 0
    return machine.actions[action, KIND] == CALL and needs_nothing and 0 < verdicts <= _MAX_VERDICTS


@njit(cache=True, nogil=True)
def _calls(machine, met, verdicts):
    width_of, first_of = np.zeros(len(machine.returns), np.int32), np.zeros(len(machine.returns), np.int64)
    for action in met:
        if _is_call(machine, action, verdicts[action]):
            base = machine.actions[action, OPERAND]
            width_of[base] = max(width_of[base], verdicts[action])
    bases = np.flatnonzero(width_of).astype(np.int32)
    total = 0
    for base in bases:
        first_of[base] = total
        total += width_of[base]
    first = np.zeros(len(machine.actions), np.int64)
    for action in met:
        if _is_call(machine, action, verdicts[action]):
            first[action] = first_of[machine.actions[action, OPERAND]]
    return _Calls(first, bases, width_of[bases])


@njit(cache=True, nogil=True)
def _after_verdicts(machine, calls, of_states, row, roles):
    """For each base and verdict, the sum over the return states up to that verdict."""
    after = np.empty(calls.widths.sum(), np.uint64)
    found = 0
    for i in range(len(calls.bases)):
        total = np.uint64(0)
        for verdict in range(calls.widths[i]):
            state = _return_of(machine, calls.bases[i], verdict)
            if state >= 0:
                total += roles[2 + verdict] * of_states[row[state]]
            after[found] = total
            found += 1
    return after


class _Steps(NamedTuple):
    """Steps by quote-free bytes: row i leads to `targets[first[i]:first[i + 1]]`, each listed once as a row
    or -1 - action. A step's weight is the sum of the weights of its bytes."""

    first: NDArray[np.int64]  # [rows + 1]: index of each row's first step
    targets: NDArray[np.int32]
    weights: NDArray[np.uint64]


@njit(cache=True, nogil=True)
def _follow(steps, of_states, of_actions, offset):
    """The fingerprints of states after one more byte. The offset distinguishes a state without steps from a
    dead one."""
    after = np.empty_like(of_states)
    for row in range(len(after)):
        total = offset
        for step in range(steps.first[row], steps.first[row + 1]):
            target = steps.targets[step]
            total += steps.weights[step] * (of_states[target] if target >= 0 else of_actions[-1 - target])
        after[row] = _mix(total)
    return after


@njit(cache=True, nogil=True)
def _steps(machine, row, reached, byte_weights):
    columns, sums = _quote_free_columns(machine), np.zeros(machine.transitions.shape[1], np.uint64)
    for byte in range(256):
        if byte != QUOTE:
            sums[machine.class_of_byte[byte]] += byte_weights[byte]
    states = len(machine.transitions)
    step_of = np.full(states + len(machine.actions), -1, np.int64)
    first = np.zeros(len(reached) + 1, np.int64)
    targets = np.empty(len(reached) * len(columns), np.int32)
    totals = np.zeros(len(targets), np.uint64)
    found = 0
    for i in range(len(reached)):
        for column in columns:
            entry = machine.transitions[reached[i], column]
            if entry == DEAD:
                continue
            key = entry if entry >= 0 else states - 2 - entry
            if step_of[key] < first[i]:
                step_of[key] = found
                targets[found] = row[entry] if entry >= 0 else 1 + entry
                found += 1
            totals[step_of[key]] += sums[column]
        first[i + 1] = found
    return _Steps(first, targets[:found], totals[:found])


@njit(cache=True, nogil=True)
def _quote_free_columns(machine):
    """The byte classes of all bytes except the quote, int64 [classes]."""
    is_quote_free = np.zeros(machine.transitions.shape[1], np.bool_)
    for byte in range(256):
        if byte != QUOTE:
            is_quote_free[machine.class_of_byte[byte]] = True
    return np.flatnonzero(is_quote_free)


@njit(cache=True, nogil=True)
def _find_reached(machine, columns, states, verdicts):
    """The row of each state, and the states that quote-free tokens reach from `states`. Writes into
    `verdicts` the number of verdicts of each action that was met."""
    row = np.full(len(machine.transitions), -1, np.int32)
    pending = np.empty(len(machine.transitions), np.int32)
    verdicts_of = np.full(len(machine.transitions), -1, np.int32)
    count = 0
    done = 0
    for state in states:
        count = _note(state, row, pending, count)
    while done < count:
        state = pending[done]
        done += 1
        for column in columns:
            entry = machine.transitions[state, column]
            if entry >= 0:
                count = _note(entry, row, pending, count)
            elif entry < DEAD and verdicts[-2 - entry] < 0:
                action = -2 - entry
                verdicts[action] = 0
                kind = machine.actions[action, KIND]
                target = machine.actions[action, TARGET]
                operand = machine.actions[action, OPERAND]
                if kind in (CALL, COUNT, COUNT_CALL):
                    count = _note(target, row, pending, count)
                if kind == COUNT:
                    count = _note(operand, row, pending, count)
                if kind in (CALL, COUNT_CALL):
                    if verdicts_of[target] < 0:
                        verdicts_of[target] = _verdicts_of(machine, target)
                    verdicts[action] = verdicts_of[target]
                    for verdict in range(verdicts[action] + (1 if kind == COUNT_CALL else 0)):
                        following = _return_of(machine, operand, verdict)
                        if following >= 0:
                            count = _note(following, row, pending, count)
    return row, pending[:count].copy()


@njit(cache=True, nogil=True)
def _note(state, row, pending, count):
    if row[state] >= 0:
        return count
    row[state] = count
    pending[count] = state
    return count + 1


@njit(cache=True, nogil=True)
def _verdicts_of(machine, target):
    """The number of verdicts with which a call of `target` may return: one more than the greatest."""
    pending = [target]
    seen = np.zeros(len(machine.transitions), np.bool_)
    seen[target] = True
    most = 0
    while len(pending):
        for entry in machine.transitions[pending.pop()]:
            if entry >= 0 and not seen[entry]:
                seen[entry] = True
                pending.append(entry)
            elif entry < DEAD and machine.actions[-2 - entry, KIND] == POP:
                most = max(most, machine.actions[-2 - entry, OPERAND] + 1)
    return most


@njit(cache=True, nogil=True)
def _return_of(machine, base, verdict):
    """The state after a call that pushed `base`, or `DEAD`."""
    place = base + verdict
    return machine.returns[place] if place < len(machine.returns) else DEAD
