"""A byte automaton with a stack of return addresses: what nested JSON needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DEAD = -1
CHOICE, END = -1, 256
PUSH, POP, CALL, COUNT, COUNT_CALL, DROP, OPEN, CLOSE, SEE, NEED, GO, FULL = range(12)
TAIL = 32  # code points of a counted string that are states, after the count has reached 0
MAX_DEPTH = 30  # the kernels keep two more places for each row
WORD_NAMES = 31  # names of a set in one place of the stack, a bit for each
SET_WORDS = 4
MAX_SEEN = (
    WORD_NAMES * SET_WORDS - 1
)  # declared names of an unordered object; one more stands for all other names
ACTION_COLUMNS = 4 + SET_WORDS
NO_RESERVE = -2  # such an action may happen inside a code point, where the two more places are taken
_RESERVE = {PUSH: 1, CALL: -1, COUNT_CALL: -1}


def least_reserve(kind: int, words: int) -> int:
    """The number of free places that an action needs; `words` are the places of a set that it opens."""
    return 1 + words if kind == OPEN else _RESERVE.get(kind, NO_RESERVE)


def words_of(names: int) -> tuple[int, ...]:
    """The words of a set of names, in which bit i stands for name i."""
    return tuple(names >> WORD_NAMES * word & (1 << WORD_NAMES) - 1 for word in range(SET_WORDS))


def names_of(words: Sequence[int]) -> int:
    """The set of names that has these words, or begins with them."""
    return sum(part << WORD_NAMES * word for word, part in enumerate(words))


@dataclass(frozen=True, eq=False)
class StackAutomaton:
    """`transitions[state, class_of_byte[byte]]` is the next state, `DEAD`, or -2 - action.

    actions[a] = (kind, target, operand, reserve, …) is dead if the stack has fewer than `reserve` free places
    below `max_depth`: those that the action takes, and those that the rest of the reply needs. Otherwise the
    action does as its kind says; target and operand have the names of their meaning:

    actions[a] = (PUSH, target, base): push `base` and go to `target`.
    actions[a] = (POP, 0, verdict): pop `base` and go to `returns[base + verdict]`, which may be `DEAD`.
    actions[a] = (CALL, target, value): push `value` and go to `target`, in a string: for the rest of a code
    point, or for a count. The stack has two more places than `max_depth` for these.
    actions[a] = (COUNT, target, last): take 1 from the top; go to `last` if it is 0 now, else to `target`.
    actions[a] = (COUNT_CALL, target, base): take 1 from the top, push `base`, or `base` + 1 if the top is 0
    now, and go to `target`.
    actions[a] = (DROP, target, 0): pop a count and go to `target`.
    actions[a] = (GO, target, 0): go to `target`.

    An unordered object (its properties come in any order) has a base on the stack and above it the set of
    names seen so far: name i is bit i % `WORD_NAMES` of word i // `WORD_NAMES`, and the first word is on the
    top.
    actions[a] = (OPEN, target, base, reserve, words, full, first): push `base` and an empty set of `words`
    places, and go to `target`. A name counts as seen if too few places are free for its value: the names of
    each of the `full` actions from a + `first` on, (FULL, 0, 0, reserve, *names), whose reserve is not free.
    actions[a] = (SEE, target, name, reserve, words): dead if the name is in the set, else add it and go to
    `target`.
    actions[a] = (NEED, target, 0, reserve, *names): dead if the set holds all of `names`, else go to
    `target`.
    actions[a] = (CLOSE, words, verdict, reserve, *names): dead unless the set holds all of `names`; pop the
    set, then as POP.

    A text may end in an accepting state, which is reached with an empty stack only.

    For shared masks: `body_of_state[s]` is not 0 if every further code point of a string leads back to `s`;
    it is the same for equal byte forms of code points. `like_state[s]` is such a state that differs from `s`
    in few bytes, or `s` itself.
    """

    start: int
    class_of_byte: NDArray[np.uint8]  # [256]
    transitions: NDArray[np.int32]  # [states, classes]
    actions: NDArray[np.int32]  # [actions, ACTION_COLUMNS]
    returns: NDArray[np.int32]
    accepting: NDArray[np.bool_]  # [states]
    body_of_state: NDArray[np.int8]  # [states]
    like_state: NDArray[np.int32]  # [states]
    max_depth: int = MAX_DEPTH

    @property
    def nbytes(self) -> int:
        return self.transitions.nbytes + self.actions.nbytes + self.returns.nbytes

    def forced(self) -> NDArray[np.int16]:
        """For each state its only next byte, `END` if nothing may follow, else `CHOICE`; int16 [states]."""
        live = self.transitions != DEAD
        byte_of_class = np.zeros(live.shape[1], np.int16)
        byte_of_class[self.class_of_byte] = np.arange(256)
        choices = live @ np.bincount(self.class_of_byte, minlength=live.shape[1]) + self.accepting
        forced = np.where(live.any(axis=1), byte_of_class[live.argmax(axis=1)], END)
        return np.where(choices == 1, forced, CHOICE).astype(np.int16)

    def following(self, state: int) -> bytes:
        """The bytes that may come next, in rising order, as far as the state alone decides."""
        live = self.transitions[state, self.class_of_byte] != DEAD
        return np.flatnonzero(live).astype(np.uint8).tobytes()

    def step(self, state: int, stack: list[int], byte: int) -> int:
        """The next state or `DEAD`; changes the stack."""
        entry = int(self.transitions[state, self.class_of_byte[byte]])
        if entry >= DEAD:
            return entry
        number = -2 - entry
        kind, target, operand, reserve, *names = self.actions[number].tolist()
        if len(stack) + reserve > self.max_depth:
            return DEAD
        if kind == POP:
            return int(self.returns[stack.pop() + operand]) if stack else DEAD
        if kind == OPEN:
            stack += [operand, *self._opened(number, len(stack))[::-1]]
            return int(target)
        if kind in (CLOSE, SEE, NEED):
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

    def _opened(self, number: int, depth: int) -> list[int]:
        """The words of a new set: the names for whose values too few places are free above `depth`."""
        words, full, first = self.actions[number, 4:7].tolist()
        opened = [0] * words
        for _, _, _, reserve, *names in self.actions[number + first : number + first + full].tolist():
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
        del stack[-target:]
        return int(self.returns[stack.pop() + operand])

    def walk(self, state: int, stack: list[int], text: bytes) -> int:
        """The state after `text`, or `DEAD`; changes the stack."""
        for byte in text:
            if state == DEAD:
                break
            state = self.step(state, stack, byte)
        return state

    def accepts(self, text: bytes) -> bool:
        stack: list[int] = []
        state = self.walk(self.start, stack, text)
        return state != DEAD and bool(self.accepting[state]) and not stack
