"""Random stack automata that use every action as the compiler does: the stack fits the state."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from arbora.grammars.machine.stack_automaton import StackAutomaton, least_reserve, words_of
from arbora.runtime.automaton_format import (
    ACTION_COLUMNS,
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DROP,
    FULL,
    GO,
    HAVE,
    NEED,
    OPEN,
    POP,
    PUSH,
    SEE,
    STACK_DEPTH,
    WORD_NAMES,
)
from arbora.runtime.json_gaps import NO_GAP


class Top(IntEnum):
    """The kind of the stack's top values in a state."""

    BASE = 0
    """a return address, or an empty stack"""
    CALLED = 1
    """the return address of a call"""
    SET = 2
    COUNT_ON_BASE = 3
    COUNT_ON_SET = 4
    WIDE_SET = 5


WORDS = {Top.SET: 1, Top.COUNT_ON_SET: 1, Top.WIDE_SET: 3}
"""places of the set above a return address"""
NAMES = {Top.SET: (0, 1, 2, 3), Top.WIDE_SET: (0, 1, WORD_NAMES, 2 * WORD_NAMES)}
VERDICTS = 3
ROWS = 3
"""rows for each action; those after the first are FULL rows"""


class RandomMachine(NamedTuple):
    machine: StackAutomaton
    tops: list[Top]
    """of each state"""
    bases: list[list[int]]
    """for each kind of top, the places of `returns` that lead to states with it"""

    def stack(self, state: int, depth: int, rng: np.random.Generator) -> tuple[int, ...]:
        """A stack of about `depth` places that fits the state."""
        top = self.tops[state]
        places = min(depth, STACK_DEPTH) - 1 - WORDS.get(top, 0)
        stack, inner = list[int](), Top.BASE
        while len(stack) < places:
            stack.append(self._base(inner, rng))
            inner = (Top.BASE, Top.SET, Top.WIDE_SET)[int(rng.integers(0, 3))]
            if len(stack) + WORDS.get(inner, 0) > places:
                inner = Top.BASE
            stack += self._set(inner, rng)
        if top in WORDS:
            stack += [self._base(inner, rng), *self._set(Top.WIDE_SET if WORDS[top] > 1 else Top.SET, rng)]
        elif len(stack) < min(depth, STACK_DEPTH):
            stack.append(self._base(inner, rng))
        if top in (Top.COUNT_ON_BASE, Top.COUNT_ON_SET):
            stack.append(int(rng.integers(1, 5)))
        if top == Top.CALLED:
            stack.append(self._base(Top.BASE, rng))
        return tuple(stack)

    def _set(self, top: Top, rng: np.random.Generator) -> tuple[int, ...]:
        return words_of(_names(top, rng))[: WORDS[top]][::-1] if top in NAMES else ()

    def _base(self, top: Top, rng: np.random.Generator) -> int:
        bases = self.bases[top]
        return bases[int(rng.integers(0, len(bases)))]


def random_machine(rng: np.random.Generator) -> RandomMachine:
    """A machine with at least one state for each kind of top. It begins with an empty stack."""
    extra = rng.integers(0, len(Top), int(rng.integers(0, 6))).tolist()
    tops = [Top.BASE, *(Top(top) for top in rng.permutation([*Top, *extra]).tolist())]
    returns, bases = list[int](), list[list[int]]()
    for top in Top:
        bases.append([])
        for _ in range(2):
            bases[top].append(len(returns))
            returns += [_state(rng, tops, top, dead=0.2) for _ in range(VERDICTS + 1)]
    actions = [row for top in tops for _ in range(5) for row in _rows(rng, _action(rng, tops, top, bases))]
    classes = int(rng.integers(2, 5))
    transitions = np.array(
        [[_entry(rng, tops, state) for _ in range(classes)] for state in range(len(tops))], np.int32
    )
    machine = StackAutomaton(
        start=0,
        class_of_byte=rng.integers(0, classes, 256).astype(np.uint8),
        transitions=transitions,
        actions=np.array(actions, np.int32),
        returns=np.array(returns, np.int32),
        accepting=np.zeros(len(tops), np.bool_),
        body_of_state=np.zeros(len(tops), np.int8),
        like_state=np.arange(len(tops), dtype=np.int32),
    )
    return RandomMachine(machine, tops, bases)


def _entry(rng: np.random.Generator, tops: list[Top], state: int) -> int:
    chance = rng.random()
    if chance < 0.15:
        return -1
    if chance < 0.3:
        return _state(rng, tops, tops[state])
    return -2 - ROWS * int(5 * state + rng.integers(0, 5))


def _state(rng: np.random.Generator, tops: list[Top], top: Top, dead: float = 0.0) -> int:
    if rng.random() < dead:
        return -1
    found = [state for state, own in enumerate(tops) if own == top]
    return found[int(rng.integers(0, len(found)))]


def _rows(rng: np.random.Generator, action: list[int]) -> list[list[int]]:
    """The action with its reserve, mostly the places that it takes, sometimes more, and its FULL rows.

    As in a compiler's automata, a larger reserve is never negative: it is what the rest of the reply needs.
    And no FULL row has a name that a CLOSE needs: the reserve of the OPEN would cover its value.
    """
    kind, target, operand, *more = action
    least, added = least_reserve(kind, sum(more[:1])), (0, 0, 0, 1, 4)[int(rng.integers(0, 5))]
    reserve = max(least + added, 0) if added else least
    names = NAMES[Top.WIDE_SET if kind == OPEN and more[0] > 1 else Top.SET]
    lacking = [words_of(1 << names[int(rng.integers(2, len(names)))]) for _ in range(ROWS - 1)]
    full = [[FULL, 0, 0, int(rng.integers(2, 12)), NO_GAP, *words] for words in lacking]
    return [_padded([kind, target, operand, reserve, NO_GAP, *more]), *full]


def _padded(action: list[int]) -> list[int]:
    return action + [0] * (ACTION_COLUMNS - len(action))


def _names(top: Top, rng: np.random.Generator) -> int:
    """A random set of the names that a top can have."""
    return sum(1 << name for name in NAMES[top] if rng.integers(0, 2))


def _action(rng: np.random.Generator, tops: list[Top], top: Top, bases: list[list[int]]) -> list[int]:
    """A random action for states with this top, without its reserve."""

    def to(after: Top) -> int:
        return _state(rng, tops, after)

    base = bases[top][int(rng.integers(0, len(bases[top])))]
    verdict, count = int(rng.integers(0, VERDICTS)), int(rng.integers(1, 4))
    counting = Top.COUNT_ON_SET if top == Top.SET else Top.COUNT_ON_BASE
    growing = [
        [PUSH, to(Top.BASE), base],
        *([OPEN, to(inner), base, WORDS[inner], int(rng.integers(0, 3)), 1] for inner in NAMES),
        [CALL, to(Top.CALLED), base],
    ]
    pop = [POP, 0, verdict]
    if top == Top.CALLED:
        choices = [pop]
    elif top == Top.BASE:
        choices = [*growing, [CALL, to(counting), count], pop, pop, [GO, to(top), 0]]
    elif top in NAMES:
        choices = [*growing, *_on_set(rng, top, to(top), verdict)]
        choices += [[CALL, to(counting), count]] * (top == Top.SET)
    else:
        below = Top.SET if top == Top.COUNT_ON_SET else Top.BASE
        choices = [[COUNT, to(top), to(top)], [COUNT_CALL, to(Top.CALLED), base], [DROP, to(below), 0]]
    return choices[int(rng.integers(0, len(choices)))]


def _on_set(rng: np.random.Generator, top: Top, target: int, verdict: int) -> list[list[int]]:
    return [
        [SEE, target, NAMES[top][int(rng.integers(0, 4))], WORDS[top]],
        [NEED, target, 0, *words_of(_names(top, rng))],
        [HAVE, target, 0, *words_of(_names(top, rng) & sum(1 << name for name in NAMES[top][:2]))],
        [CLOSE, WORDS[top], verdict, *words_of(_names(top, rng) & sum(1 << name for name in NAMES[top][:2]))],
    ]
