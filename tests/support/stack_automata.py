"""Random byte automata with a stack, stepped in plain Python: what the kernels must compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from arbora.grammars import Automaton
from arbora.grammars.stack_automaton import CALL, CLOSE, OPEN, PUSH, StackAutomaton
from arbora.kernels.automaton import STACK_DEPTH, Tables
from random_machines import RandomMachine, random_machine

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


def machine(tables: Tables) -> StackAutomaton:
    """The same automaton as the compiler's, of which no test asks where it accepts."""
    states = len(tables.transitions)
    return StackAutomaton(
        start=0,
        class_of_byte=tables.class_of_byte,
        transitions=tables.transitions,
        actions=tables.actions,
        returns=tables.returns,
        accepting=np.zeros(states, np.bool_),
        body_of_state=np.zeros(states, np.int8),
        like_state=np.arange(states, dtype=np.int32),
        max_depth=STACK_DEPTH,
    )


def automaton(key: str, tables: Tables) -> Automaton:
    """As the compiler would hand it out."""
    return Automaton(
        key=key,
        machine=machine(tables),
        mask_of_state=tables.mask_of_state,
        masks=tables.masks,
        context_of_state=tables.context_of_state,
        context_offsets=tables.context_offsets,
        context_tokens=tables.context_tokens,
        opener_counts=tables.opener_counts,
    )


def after_text(automaton: Automaton, text: bytes) -> tuple[int, list[int]]:
    """State and stack."""
    stack: list[int] = []
    return automaton.machine.walk(automaton.machine.start, stack, text), stack


def unmasked(machine: StackAutomaton, key: str = "unmasked") -> Automaton:
    return replace(automaton(key, tables_of(machine)), machine=machine)


def tables_of(machine: StackAutomaton) -> Tables:
    """Tables with a mask for each state, all empty."""
    states = len(machine.transitions)
    return Tables(
        class_of_byte=machine.class_of_byte,
        transitions=machine.transitions,
        mask_of_state=np.arange(states, dtype=np.int32),
        masks=np.zeros((states, WORDS), np.int32),
        actions=machine.actions,
        returns=machine.returns,
    )


@dataclass
class Grammar:
    tables: Tables
    made: RandomMachine | None = None
    """where the stacks that fit a state are known"""

    @cached_property
    def machine(self) -> StackAutomaton:
        return machine(self.tables)

    def after_byte(self, at: Configuration, byte: int) -> Configuration:
        stack = list(at.stack)
        state = self.machine.step(at.state, stack, byte)
        return Configuration(state, tuple(stack))

    def after(self, at: Configuration, token: int) -> Configuration:
        for byte in b"" if token == EOS else VOCABULARY[token]:
            if at.state < 0:
                break
            at = self.after_byte(at, byte)
        return at

    def allows(self, at: Configuration, token: int) -> bool:
        return token < len(VOCABULARY) and self.after(at, token).state >= 0

    def looks_below(self, state: int, token: int) -> bool:
        """Whether a token's bytes depend on what was on the stack before it."""
        height, depth = 0, STACK_DEPTH // 2
        at = Configuration(state, self.stack_for(state, depth))
        for byte in b"" if token == EOS else VOCABULARY[token]:
            entry = int(self.tables.transitions[at.state, self.tables.class_of_byte[byte]])
            if entry < -1 and height < _read(self.tables.actions[-2 - entry, 0]):
                return True
            before, at = at, self.after_byte(at, byte)
            if at.state < 0:
                break
            height += len(at.stack) - len(before.stack)
        return False

    def may_fill(self, state: int, token: int) -> bool:
        """Whether a token pushes or opens."""
        at = Configuration(state, self.stack_for(state, 4))
        for byte in b"" if token == EOS else VOCABULARY[token]:
            entry = int(self.tables.transitions[at.state, self.tables.class_of_byte[byte]])
            if entry < -1 and self.tables.actions[-2 - entry, 0] in (PUSH, OPEN):
                return True
            at = self.after_byte(at, byte)
            if at.state < 0:
                break
        return False

    def stack_for(self, state: int, depth: int, seed: int = 0) -> tuple[int, ...]:
        """About `depth` places that fit the state."""
        return self.made.stack(state, depth, np.random.default_rng(seed)) if self.made else ()


def _read(kind: int) -> int:
    """Places of the stack that an action reads."""
    return {PUSH: 0, OPEN: 0, CALL: 0, CLOSE: 2}.get(kind, 1)


def random_grammar(seed: int, stack: bool = True) -> Grammar:
    """A random automaton; masks and context lists that say just what it does."""
    rng = np.random.default_rng(seed)
    if not stack:
        states, classes = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        plain = Tables(
            class_of_byte=rng.integers(0, classes, 256).astype(np.uint8),
            transitions=rng.integers(-1, states, (states, classes)).astype(np.int32),
            mask_of_state=rng.permutation(states).astype(np.int32),
            masks=np.zeros((states, WORDS), np.int32),
        )
        return _with_masks(Grammar(plain))
    made = random_machine(rng)
    return _with_masks(Grammar(tables_of(made.machine), made))


def _with_masks(grammar: Grammar) -> Grammar:
    tables = grammar.tables
    listed: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    list_of_state = []
    for state, mask in enumerate(tables.mask_of_state):
        tokens = range(len(VOCABULARY))
        context = tuple(token for token in tokens if grammar.looks_below(state, token))
        openers = tuple(token for token in tokens if token not in context and grammar.may_fill(state, token))
        at = Configuration(state, grammar.stack_for(state, 0))
        for token in tokens:
            if token not in context and grammar.allows(at, token):
                tables.masks.view(np.uint32)[mask, token // 32] |= np.uint32(1 << token % 32)
        both = (context, openers)
        list_of_state.append(listed.setdefault(both, len(listed)) if context or openers else -1)
    if grammar.made is None:
        return grammar
    lists = [context + openers for context, openers in listed]
    return Grammar(
        replace(
            tables,
            context_of_state=np.array(list_of_state, np.int32),
            context_offsets=np.cumsum([0, *map(len, lists)], dtype=np.int32),
            context_tokens=np.array([token for tokens in lists for token in tokens], np.int32),
            opener_counts=np.array([len(openers) for _, openers in listed], np.int32),
        ),
        grammar.made,
    )


def random_configurations(grammar: Grammar, seed: int, count: int) -> list[Configuration]:
    """Any state with a stack that fits it, often a small or a full one."""
    rng = np.random.default_rng(seed)
    depths = rng.choice([0, 0, 1, 2, 5, *range(STACK_DEPTH - 3, STACK_DEPTH + 1)], count).tolist()
    states = rng.integers(0, len(grammar.tables.transitions), count).tolist()
    return [
        Configuration(state, grammar.stack_for(state, depth, int(rng.integers(0, 9999))))
        for state, depth in zip(states, depths, strict=True)
    ]
