"""Numbers that tell states apart by what plain tokens do from them, whatever automaton they belong to.

The signature of a state after n rounds says where each string of n bytes without a quote leads: round by
round, those of the states after each byte are mixed. Bytes and places are weighted at random, so that no
grammar can be made to look like another one.
"""

from __future__ import annotations

import secrets

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .mask_walks import Machine
from .stack_automaton import CALL, COUNT, COUNT_CALL, DEAD, POP
from .token_trie import PLAIN_BYTES, QUOTE

_MAX_VERDICTS = 64  # kinds of code points that a pattern tells apart; with more it has signatures of its own


class Signatures:
    """Comparable between all automata that one instance has seen."""

    def __init__(self) -> None:
        self._weights = _random(256)
        self._places = _random(_MAX_VERDICTS + 2)

    def of(self, machine: Machine, states: NDArray[np.int32]) -> NDArray[np.uint64]:
        """One for each of states int32 [n]."""
        return _signatures(machine, states, self._weights, self._places, _random(1)[0])  # type: ignore[no-any-return]


def _random(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(secrets.token_bytes(8 * count), np.uint64) | np.uint64(1)


@njit(cache=True, nogil=True)
def _signatures(machine, states, weights, places, own):  # type: ignore[no-untyped-def]
    """What depends on more than bytes and code points is told apart by `own`, which is never the same."""
    columns, column_weights = _plain_columns(machine, weights)
    verdicts = np.full(len(machine.actions), -1, np.int32)
    reached = _reached(machine, columns, states, verdicts)
    signatures = np.ones(len(machine.transitions), np.uint64)
    acting = np.zeros(len(machine.actions), np.uint64)
    mixed = np.empty(len(reached), np.uint64)
    for _ in range(PLAIN_BYTES):
        for action in range(len(acting)):
            if verdicts[action] >= 0:
                acting[action] = _of_action(machine, action, verdicts[action], signatures, places, own)
        for i in range(len(reached)):
            total = places[1]  # so that a state from which nothing leads on is not like none
            for k in range(len(columns)):
                entry = machine.transitions[reached[i], columns[k]]
                if entry >= 0:
                    total += column_weights[k] * _mixed(signatures[entry])
                elif entry < DEAD:
                    total += column_weights[k] * acting[-2 - entry]
            mixed[i] = _mixed(total)
        for i in range(len(reached)):
            signatures[reached[i]] = mixed[i]
    return signatures[states]


@njit(cache=True, nogil=True)
def _mixed(number):  # type: ignore[no-untyped-def]
    number ^= number >> np.uint64(32)
    number *= np.uint64(0xD6E8FEB86659FD93)
    number ^= number >> np.uint64(32)
    number *= np.uint64(0xD6E8FEB86659FD93)
    return number ^ (number >> np.uint64(32))


@njit(cache=True, nogil=True)
def _of_action(machine, action, verdicts, signatures, places, own):  # type: ignore[no-untyped-def]
    kind = machine.actions[action, 0]
    target = machine.actions[action, 1]
    operand = machine.actions[action, 2]
    if kind == POP:
        return _mixed(places[0] + np.uint64(operand))
    if machine.actions[action, 3] >= 0:
        return _mixed(own + np.uint64(action))
    if kind == COUNT:
        return _mixed(places[1] * _mixed(signatures[target]) + signatures[operand] + np.uint64(kind))
    is_call = kind in (CALL, COUNT_CALL) and 0 < verdicts <= _MAX_VERDICTS
    if not is_call:
        return _mixed(own + np.uint64(action))
    total = places[0] * _mixed(signatures[target]) + np.uint64(kind)
    for verdict in range(verdicts):
        state = machine.returns[operand + verdict]
        if state >= 0:
            total += places[2 + verdict] * _mixed(signatures[state])
    return _mixed(total)


@njit(cache=True, nogil=True)
def _plain_columns(machine, weights):  # type: ignore[no-untyped-def]
    """The classes that bytes other than the quote have, and the sums of their bytes' weights."""
    sums = np.zeros(machine.transitions.shape[1], np.uint64)
    for byte in range(256):
        if byte != QUOTE:
            sums[machine.class_of_byte[byte]] += weights[byte]
    columns = np.flatnonzero(sums)
    return columns, sums[columns]


@njit(cache=True, nogil=True)
def _reached(machine, columns, states, verdicts):  # type: ignore[no-untyped-def]
    """The states that plain tokens reach from these; notes for each action met how many ends a call has."""
    known = np.zeros(len(machine.transitions), np.bool_)
    pending = np.empty(len(machine.transitions), np.int32)
    seen = np.zeros(len(machine.transitions), np.int32)
    count = 0
    done = 0
    for state in states:
        count = _noted(state, known, pending, count)
    while done < count:
        state = pending[done]
        done += 1
        for column in columns:
            entry = machine.transitions[state, column]
            if entry >= 0:
                count = _noted(entry, known, pending, count)
            elif entry < DEAD and verdicts[-2 - entry] < 0:
                action = -2 - entry
                verdicts[action] = 0
                kind = machine.actions[action, 0]
                target = machine.actions[action, 1]
                operand = machine.actions[action, 2]
                if kind in (CALL, COUNT, COUNT_CALL):
                    count = _noted(target, known, pending, count)
                if kind == COUNT:
                    count = _noted(operand, known, pending, count)
                if kind in (CALL, COUNT_CALL):
                    verdicts[action] = _ends_of(machine, columns, target, seen, action + 1)
                    for verdict in range(verdicts[action]):
                        following = machine.returns[operand + verdict]
                        if following >= 0:
                            count = _noted(following, known, pending, count)
    return pending[:count].copy()


@njit(cache=True, nogil=True)
def _noted(state, known, pending, count):  # type: ignore[no-untyped-def]
    if known[state]:
        return count
    known[state] = True
    pending[count] = state
    return count + 1


@njit(cache=True, nogil=True)
def _ends_of(machine, columns, target, seen, mark):  # type: ignore[no-untyped-def]
    """One more than the greatest verdict with which the call of `target` comes back."""
    pending = [target]
    seen[target] = mark
    most = 0
    while len(pending):
        state = pending.pop()
        for column in columns:
            entry = machine.transitions[state, column]
            if entry >= 0 and seen[entry] != mark:
                seen[entry] = mark
                pending.append(entry)
            elif entry < DEAD and machine.actions[-2 - entry, 0] == POP:
                most = max(most, machine.actions[-2 - entry, 2] + 1)
    return most
