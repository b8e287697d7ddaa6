"""Random byte automata with a stack, stepped in plain Python: what the kernels must compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from arbora.kernels.automaton import STACK_DEPTH, Tables
from arbora.kernels.automaton.layout import CALL, POP, PUSH

VOCABULARY = [
    *(bytes(text) for length in (1, 2, 3) for text in product(b"abc", repeat=length)),
    *(b"abc" * 5, b"cccccc", b"", b"\xff", b"a\xff", b"b" * 40, b"ca" * 9, b"</s>"),
]
EOS = VOCABULARY.index(b"</s>")
MODEL_VOCAB = 100  # a padded embedding
WORDS = -(-MODEL_VOCAB // 32)


class Configuration(NamedTuple):
    """`state` -1: the automaton is dead; its stack means nothing."""

    state: int
    stack: tuple[int, ...] = ()


@dataclass
class Grammar:
    tables: Tables

    def after_byte(self, at: Configuration, byte: int) -> Configuration:
        entry = int(self.tables.transitions[at.state, self.tables.class_of_byte[byte]])
        if entry >= -1:
            return Configuration(entry, at.stack)
        kind, target, operand = self.tables.actions[-2 - entry].tolist()
        if kind != POP:
            full = len(at.stack) >= STACK_DEPTH + (kind == CALL)
            return Configuration(-1) if full else Configuration(target, (*at.stack, operand))
        if not at.stack:
            return Configuration(-1)
        return Configuration(int(self.tables.returns[at.stack[-1] + operand]), at.stack[:-1])

    def after(self, at: Configuration, token: int) -> Configuration:
        for byte in b"" if token == EOS else VOCABULARY[token]:
            if at.state < 0:
                break
            at = self.after_byte(at, byte)
        return at

    def allows(self, at: Configuration, token: int) -> bool:
        return token < len(VOCABULARY) and self.after(at, token).state >= 0

    def pops_below(self, state: int, token: int) -> bool:
        """Whether a token pops what it didn't push."""
        height = 0
        at = Configuration(state, (0,) * (STACK_DEPTH // 2))
        for byte in b"" if token == EOS else VOCABULARY[token]:
            entry = int(self.tables.transitions[at.state, self.tables.class_of_byte[byte]])
            height += (-1 if self.tables.actions[-2 - entry, 0] == POP else 1) if entry < -1 else 0
            at = self.after_byte(at, byte)
            if height < 0 or at.state < 0:
                break
        return height < 0

    def may_fill(self, state: int, token: int) -> bool:
        """Whether some depth refuses a token that never pops below its level."""
        depths = range(STACK_DEPTH + 2)
        return len({self.allows(Configuration(state, (0,) * depth), token) for depth in depths}) == 2


def random_grammar(seed: int, stack: bool = True) -> Grammar:
    """Transitions, actions and returns at random; masks and context lists that say just what they do."""
    rng = np.random.default_rng(seed)
    states, classes = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    actions, verdicts, bases = (int(rng.integers(1, 5)) if stack else 0 for _ in range(3))
    kinds = rng.choice([PUSH, POP, CALL], actions)
    operands = np.where(
        kinds != POP, rng.integers(0, max(bases, 1), actions), rng.integers(0, max(verdicts, 1), actions)
    )
    targets = rng.integers(0, states, actions)
    plain = Tables(
        class_of_byte=rng.integers(0, classes, 256).astype(np.uint8),
        transitions=rng.integers(-1 - actions, states, (states, classes)).astype(np.int32),
        mask_of_state=rng.permutation(states).astype(np.int32),
        masks=np.zeros((states, WORDS), np.int32),
        actions=np.stack([kinds, targets, operands], axis=1).astype(np.int32),
        returns=rng.integers(-1, states, max(0, bases + verdicts - 1)).astype(np.int32),
    )
    return _with_masks(Grammar(plain), stack)


def _with_masks(grammar: Grammar, stack: bool) -> Grammar:
    tables = grammar.tables
    listed: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    list_of_state = []
    for state, mask in enumerate(tables.mask_of_state):
        tokens = range(len(VOCABULARY))
        context = tuple(token for token in tokens if grammar.pops_below(state, token))
        openers = tuple(token for token in tokens if token not in context and grammar.may_fill(state, token))
        for token in tokens:
            if token not in context and grammar.allows(Configuration(state), token):
                tables.masks.view(np.uint32)[mask, token // 32] |= np.uint32(1 << token % 32)
        both = (context, openers)
        list_of_state.append(listed.setdefault(both, len(listed)) if context or openers else -1)
    if not stack:
        return grammar
    lists = [context + openers for context, openers in listed]
    return Grammar(
        replace(
            tables,
            context_of_state=np.array(list_of_state, np.int32),
            context_offsets=np.cumsum([0, *map(len, lists)], dtype=np.int32),
            context_tokens=np.array([token for tokens in lists for token in tokens], np.int32),
            opener_counts=np.array([len(openers) for _, openers in listed], np.int32),
        )
    )


def random_configurations(grammar: Grammar, seed: int, count: int) -> list[Configuration]:
    """Any state with any stack, often an empty or a full one."""
    rng = np.random.default_rng(seed)
    pushes = grammar.tables.actions[grammar.tables.actions[:, 0] != POP, 2]
    depths = (
        rng.choice([0, 0, 1, 2, 5, *range(STACK_DEPTH - 3, STACK_DEPTH + 2)], count)
        if len(pushes)
        else [0] * count
    )
    states = rng.integers(0, len(grammar.tables.transitions), count).tolist()
    return [
        Configuration(state, tuple(rng.choice(pushes, depth).tolist()) if depth else ())
        for state, depth in zip(states, depths, strict=True)
    ]
