"""Random stack automata that use every action as a compiler would: the stack fits the state."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from arbora.grammars.stack_automaton import (
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DROP,
    GO,
    MAX_DEPTH,
    NEED,
    NO_ROOM,
    OPEN,
    POP,
    PUSH,
    ROOM,
    SEE,
    StackAutomaton,
)


class Top(IntEnum):
    """What stands on the stack in a state."""

    BASE = 0
    """a return address or nothing"""
    CALLED = 1
    """the return address of a call"""
    SET = 2
    COUNT_ON_BASE = 3
    COUNT_ON_SET = 4


BITS = 4
VERDICTS = 3


class RandomMachine(NamedTuple):
    machine: StackAutomaton
    tops: list[Top]
    """of each state"""
    bases: list[list[int]]
    """for each top the places of `returns` that lead to states with it"""

    def stack(self, state: int, depth: int, rng: np.random.Generator) -> tuple[int, ...]:
        """A stack of about `depth` places that fits the state."""
        top = self.tops[state]
        has_set = top in (Top.SET, Top.COUNT_ON_SET)
        stack, inner = list[int](), Top.BASE
        while len(stack) + 2 + 2 * has_set <= min(depth, MAX_DEPTH):
            opens = bool(rng.integers(0, 2))
            stack += [self._base(inner, rng), *[int(rng.integers(0, 1 << BITS))] * opens]
            inner = Top.SET if opens else Top.BASE
        if has_set:
            stack += [self._base(inner, rng), int(rng.integers(0, 1 << BITS))]
        elif inner == Top.SET:
            stack.pop()
        elif len(stack) < min(depth, MAX_DEPTH):
            stack.append(self._base(inner, rng))
        if top in (Top.COUNT_ON_BASE, Top.COUNT_ON_SET):
            stack.append(int(rng.integers(1, 5)))
        if top == Top.CALLED:
            stack.append(self._base(Top.BASE, rng))
        return tuple(stack)

    def _base(self, top: Top, rng: np.random.Generator) -> int:
        bases = self.bases[top]
        return bases[int(rng.integers(0, len(bases)))]


def random_machine(rng: np.random.Generator) -> RandomMachine:
    """At least one state for each top, in any order; it begins with an empty stack."""
    extra = rng.integers(0, len(Top), int(rng.integers(0, 6))).tolist()
    tops = [Top.BASE, *(Top(top) for top in rng.permutation([*Top, *extra]).tolist())]
    returns, bases = list[int](), list[list[int]]()
    for top in Top:
        bases.append([])
        for _ in range(2):
            bases[top].append(len(returns))
            returns += [_state(rng, tops, top, dead=0.2) for _ in range(VERDICTS + 1)]
    actions = [_with_room(rng, _action(rng, tops, top, bases)) for top in tops for _ in range(5)]
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
    return -2 - int(5 * state + rng.integers(0, 5))


def _state(rng: np.random.Generator, tops: list[Top], top: Top, dead: float = 0.0) -> int:
    if rng.random() < dead:
        return -1
    return int(rng.choice([state for state, own in enumerate(tops) if own == top]))


def _with_room(rng: np.random.Generator, action: list[int]) -> list[int]:
    """Mostly what it takes, sometimes more, as where it leads to what nests deep."""
    return [*action, ROOM.get(action[0], NO_ROOM) + int(rng.choice([0, 0, 0, 1, 4]))]


def _action(rng: np.random.Generator, tops: list[Top], top: Top, bases: list[list[int]]) -> list[int]:
    def to(after: Top) -> int:
        return _state(rng, tops, after)

    base, verdict = int(rng.choice(bases[top])), int(rng.integers(0, VERDICTS))
    count, names, bit = (int(rng.integers(low, high)) for low, high in ((1, 4), (0, 1 << BITS), (0, BITS)))
    counting = Top.COUNT_ON_SET if top == Top.SET else Top.COUNT_ON_BASE
    growing = [
        [PUSH, to(Top.BASE), base],
        [OPEN, to(Top.SET), base],
        [CALL, to(Top.CALLED), base],
        [CALL, to(counting), count],
    ]
    pop = [POP, 0, verdict]
    if top == Top.CALLED:
        choices = [pop]
    elif top == Top.BASE:
        choices = [*growing, pop, pop, [GO, to(top), 0]]
    elif top == Top.SET:
        choices = [*growing, [SEE, to(top), bit], [NEED, to(top), names], [CLOSE, names, verdict]]
    else:
        below = Top.SET if top == Top.COUNT_ON_SET else Top.BASE
        choices = [[COUNT, to(top), to(top)], [COUNT_CALL, to(Top.CALLED), base], [DROP, to(below), 0]]
    return choices[int(rng.integers(0, len(choices)))]
