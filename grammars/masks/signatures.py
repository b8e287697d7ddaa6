"""Numbers that tell states apart by what plain tokens do from them, whatever automaton they belong to.

The signature of a state after n rounds says where each string of n bytes without a quote leads: round by
round, those of the states after each byte are mixed. Bytes and places are weighted at random, so that no
grammar can be made to look like another one.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..machine.stack_automaton import CALL, COUNT, COUNT_CALL, DEAD, POP
from .token_trie import PLAIN_BYTES, QUOTE
from .unowned import unowned
from .walks import Machine

_MAX_VERDICTS = 64  # kinds of code points that a pattern tells apart; with more it has signatures of its own


class Rounds(NamedTuple):
    """Signatures after each round, of the states that plain bytes lead to and of actions. Those of two
    states are equal after n rounds if no text of up to n bytes tells them apart."""

    place: NDArray[np.int32]  # [all states], -1 for those that nothing led to
    states: NDArray[np.uint64]  # [PLAIN_BYTES + 1, places]
    actions: NDArray[np.uint64]  # [PLAIN_BYTES + 1, actions], of what follows each


NO_ROUNDS = Rounds(np.empty(0, np.int32), np.empty((0, 0), np.uint64), np.empty((0, 0), np.uint64))
"""for those who know nothing of states"""


class Signatures:
    """Comparable between all automata that one instance has seen."""

    def __init__(self) -> None:
        self._weights = _random(256)
        self._places = _random(_MAX_VERDICTS + 2)

    def of(self, machine: Machine, states: NDArray[np.int32]) -> Rounds:
        """Of what plain bytes lead to from states [n]."""
        return Rounds(*_rounds(machine, states, self._weights, self._places, _random(1)[0]))


def _random(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(secrets.token_bytes(8 * count), np.uint64) | np.uint64(1)


@njit(cache=True, nogil=True)
def _rounds(machine, states, weights, places, own):  # type: ignore[no-untyped-def]
    """What depends on more than bytes and code points is told apart by `own`, which is never the same."""
    machine, weights, places = unowned((machine, weights, places))
    actions = machine.actions
    verdicts = np.full(len(actions), -1, np.int32)
    place, reached = _reached(machine, _plain_columns(machine), states, verdicts)
    steps = _steps(machine, place, reached, weights)
    signatures = np.ones((PLAIN_BYTES + 1, len(reached)), np.uint64)
    acting = np.zeros((PLAIN_BYTES + 1, len(actions)), np.uint64)
    met = np.flatnonzero(verdicts >= 0)
    bases = _bases(machine, met, verdicts)
    for length in range(PLAIN_BYTES + 1):
        if length:
            _follow(steps, signatures[length - 1], acting[length - 1], places[1], signatures[length])
        after = _after_verdicts(machine, bases, signatures[length], place, places)
        for action in met:
            if _is_call(machine, action, verdicts[action]):
                called = place[machine.actions[action, 1]]
                total = after[bases.first[action] + verdicts[action] - 1]
                acting[length, action] = _mixed(places[0] * signatures[length, called] + total)
            else:
                acting[length, action] = _of_action(
                    machine, action, verdicts[action], signatures[length], place, places, own
                )
    return place, signatures, acting


@njit(cache=True, nogil=True)
def _mixed(number):  # type: ignore[no-untyped-def]
    number ^= number >> np.uint64(32)
    number *= np.uint64(0xD6E8FEB86659FD93)
    number ^= number >> np.uint64(32)
    number *= np.uint64(0xD6E8FEB86659FD93)
    return number ^ (number >> np.uint64(32))


@njit(cache=True, nogil=True)
def _of_action(machine, action, verdicts, signatures, place, places, own):  # type: ignore[no-untyped-def]
    """Counts after which it is all one whether they came to nought are like none."""
    kind = machine.actions[action, 0]
    target = machine.actions[action, 1]
    operand = machine.actions[action, 2]
    unlike = _mixed(own + np.uint64(action))
    if machine.actions[action, 3] >= 0:
        return unlike
    if kind == POP:
        return _mixed(places[0] + np.uint64(operand))
    if kind == COUNT:
        same = signatures[place[target]] == signatures[place[operand]]
        return signatures[place[target]] if same else unlike
    if kind != COUNT_CALL or not 0 < verdicts <= _MAX_VERDICTS:
        return unlike
    total = places[0] * signatures[place[target]]
    for verdict in range(verdicts):
        state = _return_of(machine, operand, verdict)
        if state >= 0:
            total += places[2 + verdict] * signatures[place[state]]
        other = _return_of(machine, operand + 1, verdict)
        if (state >= 0) != (other >= 0):
            return unlike
        if state >= 0 and signatures[place[state]] != signatures[place[other]]:
            return unlike
    return _mixed(total)


class _Bases(NamedTuple):
    """What calls return to, once for all that push the same: `first[action]` is where a call's states by
    verdict stand among all of those of `bases`, each of which has as many as `widths`."""

    first: NDArray[np.int64]  # [actions]
    bases: NDArray[np.int32]
    widths: NDArray[np.int32]


@njit(cache=True, nogil=True)
def _is_call(machine, action, verdicts):  # type: ignore[no-untyped-def]
    is_free = machine.actions[action, 0] == CALL and machine.actions[action, 3] < 0
    return is_free and 0 < verdicts <= _MAX_VERDICTS


@njit(cache=True, nogil=True)
def _bases(machine, met, verdicts):  # type: ignore[no-untyped-def]
    width_of, place_of = np.zeros(len(machine.returns), np.int32), np.zeros(len(machine.returns), np.int64)
    for action in met:
        if _is_call(machine, action, verdicts[action]):
            base = machine.actions[action, 2]
            width_of[base] = max(width_of[base], verdicts[action])
    bases = np.flatnonzero(width_of).astype(np.int32)
    total = 0
    for base in bases:
        place_of[base] = total
        total += width_of[base]
    first = np.zeros(len(machine.actions), np.int64)
    for action in met:
        if _is_call(machine, action, verdicts[action]):
            first[action] = place_of[machine.actions[action, 2]]
    return _Bases(first, bases, width_of[bases])


@njit(cache=True, nogil=True)
def _after_verdicts(machine, bases, signatures, place, places):  # type: ignore[no-untyped-def]
    """For each base, sums over the states up to each verdict."""
    after = np.empty(bases.widths.sum(), np.uint64)
    found = 0
    for i in range(len(bases.bases)):
        total = np.uint64(0)
        for verdict in range(bases.widths[i]):
            state = _return_of(machine, bases.bases[i], verdict)
            if state >= 0:
                total += places[2 + verdict] * signatures[place[state]]
            after[found] = total
            found += 1
    return after


class _Steps(NamedTuple):
    """Where plain bytes lead from place i: to `targets[first[i]:first[i + 1]]`, each once, a place or
    -1 - action, with the sum of its bytes' weights."""

    first: NDArray[np.int64]  # [places + 1]
    targets: NDArray[np.int32]
    weights: NDArray[np.uint64]


@njit(cache=True, nogil=True)
def _follow(steps, signatures, acting, nowhere, after):  # type: ignore[no-untyped-def]
    """Writes the signatures after one byte more. `nowhere` is there so that a state from which nothing
    leads on is not like none."""
    for place in range(len(after)):
        total = nowhere
        for step in range(steps.first[place], steps.first[place + 1]):
            target = steps.targets[step]
            total += steps.weights[step] * (signatures[target] if target >= 0 else acting[-1 - target])
        after[place] = _mixed(total)


@njit(cache=True, nogil=True)
def _steps(machine, place, reached, weights):  # type: ignore[no-untyped-def]
    columns, sums = _plain_columns(machine), np.zeros(machine.transitions.shape[1], np.uint64)
    for byte in range(256):
        if byte != QUOTE:
            sums[machine.class_of_byte[byte]] += weights[byte]
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
                targets[found] = place[entry] if entry >= 0 else 1 + entry
                found += 1
            totals[step_of[key]] += sums[column]
        first[i + 1] = found
    return _Steps(first, targets[:found], totals[:found])


@njit(cache=True, nogil=True)
def _plain_columns(machine):  # type: ignore[no-untyped-def]
    """The classes of bytes other than the quote."""
    is_plain = np.zeros(machine.transitions.shape[1], np.bool_)
    for byte in range(256):
        if byte != QUOTE:
            is_plain[machine.class_of_byte[byte]] = True
    return np.flatnonzero(is_plain)


@njit(cache=True, nogil=True)
def _reached(machine, columns, states, verdicts):  # type: ignore[no-untyped-def]
    """The place of each state, and the states that plain tokens reach from these; notes for each action
    met how many ends a call has."""
    place = np.full(len(machine.transitions), -1, np.int32)
    pending = np.empty(len(machine.transitions), np.int32)
    ends = np.full(len(machine.transitions), -1, np.int32)
    count = 0
    done = 0
    for state in states:
        count = _noted(state, place, pending, count)
    while done < count:
        state = pending[done]
        done += 1
        for column in columns:
            entry = machine.transitions[state, column]
            if entry >= 0:
                count = _noted(entry, place, pending, count)
            elif entry < DEAD and verdicts[-2 - entry] < 0:
                action = -2 - entry
                verdicts[action] = 0
                kind = machine.actions[action, 0]
                target = machine.actions[action, 1]
                operand = machine.actions[action, 2]
                if kind in (CALL, COUNT, COUNT_CALL):
                    count = _noted(target, place, pending, count)
                if kind == COUNT:
                    count = _noted(operand, place, pending, count)
                if kind in (CALL, COUNT_CALL):
                    if ends[target] < 0:
                        ends[target] = _ends_of(machine, target)
                    verdicts[action] = ends[target]
                    for verdict in range(verdicts[action] + (1 if kind == COUNT_CALL else 0)):
                        following = _return_of(machine, operand, verdict)
                        if following >= 0:
                            count = _noted(following, place, pending, count)
    return place, pending[:count].copy()


@njit(cache=True, nogil=True)
def _noted(state, place, pending, count):  # type: ignore[no-untyped-def]
    if place[state] >= 0:
        return count
    place[state] = count
    pending[count] = state
    return count + 1


@njit(cache=True, nogil=True)
def _ends_of(machine, target):  # type: ignore[no-untyped-def]
    """One more than the greatest verdict with which the call of `target` comes back."""
    pending = [target]
    seen = np.zeros(len(machine.transitions), np.bool_)
    seen[target] = True
    most = 0
    while len(pending):
        for entry in machine.transitions[pending.pop()]:
            if entry >= 0 and not seen[entry]:
                seen[entry] = True
                pending.append(entry)
            elif entry < DEAD and machine.actions[-2 - entry, 0] == POP:
                most = max(most, machine.actions[-2 - entry, 2] + 1)
    return most


@njit(cache=True, nogil=True)
def _return_of(machine, base, verdict):  # type: ignore[no-untyped-def]
    """The state after a call that pushed `base`."""
    place = base + verdict
    return machine.returns[place] if place < len(machine.returns) else DEAD
