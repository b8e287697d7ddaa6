"""A byte automaton with a stack of return addresses: what nested JSON needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import (
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DEAD,
    DROP,
    GAP,
    GO,
    HAVE,
    LINES,
    NAMES,
    NEED,
    OPEN,
    POP,
    PUSH,
    SEE,
    SET_WORDS,
    STACK_DEPTH,
    STACK_PLACES,
    STYLE,
    WORD_NAMES,
)
from ...runtime.json_gaps import DEAD_WAY, NO_GAP, pass_gap

CHOICE, END, BY_GAP = -1, 256, 257
TAIL = 32  # code points of a counted string that still have states after the count has reached 0
MAX_SEEN = WORD_NAMES * SET_WORDS - 1
"""maximal number of declared names in an unordered object; one more bit stands for all other names"""
NO_RESERVE = STACK_DEPTH - STACK_PLACES
"""reserve of actions inside a code point, where the last two places may be taken"""
MAX_GAP_CHOICES = 4  # maximal number of a state's next bytes that are tried one by one
_RESERVE = {PUSH: 1, CALL: -1, COUNT_CALL: -1}


def least_reserve(kind: int, words: int) -> int:
    """Returns the smallest reserve that an action may have (see `AutomatonTables`). words: the number of
    places of the set that it opens, if any."""
    return 1 + words if kind == OPEN else _RESERVE.get(kind, NO_RESERVE)


def words_of(names: int) -> tuple[int, ...]:
    """The words of a set of names, in which bit i stands for name i."""
    return tuple(names >> WORD_NAMES * word & (1 << WORD_NAMES) - 1 for word in range(SET_WORDS))


def names_of(words: Sequence[int]) -> int:
    """The set of names that has these words, or begins with them."""
    return sum(part << WORD_NAMES * word for word, part in enumerate(words))


@dataclass(frozen=True, eq=False)
class StackAutomaton:
    """An automaton as the compiler makes it and the host steps it: `step` defines what the kernels compute.

    `transitions[state, class_of_byte[byte]]` is an entry; `AutomatonTables` describes entries, actions and
    returns. A text begins with the stack `bottom` and may end in an accepting state, where the stack has no
    more places than `bottom`.

    For shared masks: `body_of_state[s]` is not 0 if every further code point of a string leads back to `s`.
    It is the same for equal byte forms of code points. `like_state[s]` is such a state that differs from `s`
    in few bytes, or `s` itself.
    """

    start: int
    class_of_byte: NDArray[np.uint8]  # [256]: the class of each byte
    transitions: NDArray[np.int32]  # [states, classes]: entries
    actions: NDArray[np.int32]  # [actions, ACTION_COLUMNS]: one row per action
    returns: NDArray[np.int32]
    accepting: NDArray[np.bool_]  # [states]: whether the text may end
    body_of_state: NDArray[np.int8]  # [states]: kind of string body, or 0
    like_state: NDArray[np.int32]  # [states]: a similar state
    max_depth: int = STACK_DEPTH
    bottom: tuple[int, ...] = ()
    """style and lines (see `runtime.json_gaps`) if the reply chooses its white space"""

    def without_gaps(self) -> StackAutomaton:
        """The automaton of the same texts in which the reply chooses no white space."""
        actions = self.actions.copy()
        actions[:, GAP] = NO_GAP
        return replace(self, actions=actions, bottom=())

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that `AutomatonTables` does not share."""
        own = (self.transitions, self.accepting, self.body_of_state, self.like_state)
        return sum(array.nbytes for array in own)

    def forced(self) -> NDArray[np.int16]:
        """For each state its only next byte, `END` if nothing may follow, `BY_GAP` if the earlier white space
        may leave only one, else `CHOICE`; int16 [states]."""
        live = self.transitions != DEAD
        byte_of_class = np.zeros(live.shape[1], np.int16)
        byte_of_class[self.class_of_byte] = np.arange(256)
        choices = live @ np.bincount(self.class_of_byte, minlength=live.shape[1]) + self.accepting
        forced = np.where(live.any(axis=1), byte_of_class[live.argmax(axis=1)], END)
        by_gap = self._entries_by_gap() & ~self.accepting & (choices <= MAX_GAP_CHOICES)
        return np.where(choices == 1, forced, np.where(by_gap, BY_GAP, CHOICE)).astype(np.int16)

    def _entries_by_gap(self) -> NDArray[np.bool_]:
        """The states of whose entries at most one does not depend on earlier white space; bool [states]."""
        has_gap = np.append(self.actions[:, GAP] != 0, False)
        number = np.where(self.transitions < DEAD, -2 - self.transitions, len(self.actions))
        free = (self.transitions != DEAD) & ~has_gap[number]
        found: NDArray[np.bool_] = has_gap[number].any(axis=1) & (free.sum(axis=1) <= 1)
        return found

    def following(self, state: int) -> bytes:
        """The bytes that may come next, in rising order, as far as the state alone decides."""
        live = self.transitions[state, self.class_of_byte] != DEAD
        return np.flatnonzero(live).astype(np.uint8).tobytes()

    def step(self, state: int, stack: list[int], byte: int) -> int:
        """Steps over a byte: returns the next state or `DEAD`, and changes the stack."""
        entry = int(self.transitions[state, self.class_of_byte[byte]])
        if entry >= DEAD:
            return entry
        number = -2 - entry
        kind, target, operand, reserve, gap, *names = self.actions[number].tolist()
        if len(stack) + reserve > self.max_depth:
            return DEAD
        if gap:
            way, stack[STYLE], stack[LINES] = pass_gap(gap, stack[STYLE], stack[LINES])
            if way == DEAD_WAY:
                return DEAD
            target += 0 if kind in (POP, CLOSE) else way
        if kind == POP:
            return int(self.returns[stack.pop() + operand]) if stack else DEAD
        if kind == OPEN:
            stack += [operand, *self._open_set(number, len(stack))[::-1]]
            return int(target)
        if kind in (CLOSE, SEE, NEED, HAVE):
            return self._step_set(kind, target, operand, names, stack)
        if kind in (COUNT, COUNT_CALL):
            stack[-1] -= 1
            if kind == COUNT:
                return int(target if stack[-1] else operand)
            operand += stack[-1] == 0
        if kind == DROP:
            stack.pop()
        elif kind != GO:
            stack.append(operand)
        return int(target)

    def _open_set(self, number: int, depth: int) -> list[int]:
        """The words of a new set: the names whose values need more places than are free above `depth`."""
        words, full, first = self.actions[number, NAMES : NAMES + 3].tolist()
        opened = [0] * words
        for _, _, _, reserve, _, *names in self.actions[number + first : number + first + full].tolist():
            if depth + reserve > self.max_depth:
                opened = [had | lacking for had, lacking in zip(opened, names, strict=False)]
        return opened

    def _step_set(self, kind: int, target: int, operand: int, names: list[int], stack: list[int]) -> int:
        if kind == SEE:
            word, bit = divmod(operand, WORD_NAMES)
            is_seen = stack[-1 - word] >> bit & 1
            stack[-1 - word] |= 1 << bit
            return DEAD if is_seen else target
        holds_all = all(stack[-1 - word] & part == part for word, part in enumerate(names) if part)
        if kind == NEED:
            return DEAD if holds_all else target
        if not holds_all:
            return DEAD
        if kind == HAVE:
            return target
        del stack[-target:]
        return int(self.returns[stack.pop() + operand])

    def walk(self, state: int, stack: list[int], text: bytes) -> int:
        """Steps over `text`: returns the state after it or `DEAD`, and changes the stack."""
        for byte in text:
            if state == DEAD:
                break
            state = self.step(state, stack, byte)
        return state

    def accepts(self, text: bytes) -> bool:
        stack = list(self.bottom)
        state = self.walk(self.start, stack, text)
        return state != DEAD and bool(self.accepting[state]) and len(stack) == len(self.bottom)
