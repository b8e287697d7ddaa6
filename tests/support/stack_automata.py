"""Random byte automata with a stack, stepped in plain Python: what the kernels must compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, TypedDict

import numpy as np
from arbora.grammars import Automaton
from arbora.grammars.machine.packed_rows import PackedRows, packed
from arbora.grammars.machine.stack_automaton import CALL, CLOSE, GO, OPEN, PUSH, StackAutomaton
from arbora.grammars.masks.stack import MaskTables
from arbora.kernels.automaton import ACTION_COLUMNS, STACK_DEPTH, Tables
from arbora.runtime.messages import LoadGrammar
from numpy.typing import NDArray
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
    states = len(tables.row_starts)
    return StackAutomaton(
        start=0,
        class_of_byte=tables.class_of_byte,
        transitions=transitions_of(tables),
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
        masks=MaskTables(
            mask_of_state=tables.mask_of_state,
            masks=tables.masks,
            lists_of_state=tables.lists_of_state,
            list_offsets=tables.list_offsets,
            list_tokens=tables.list_tokens,
            opener_counts=tables.opener_counts,
        ),
        rows=PackedRows(tables.row_starts, tables.default_state, tables.entries, tables.owners),
    )


class Rows(TypedDict):
    """Fields of `Tables`."""

    row_starts: NDArray[np.int32]
    default_state: NDArray[np.int32]
    entries: NDArray[np.int32]
    owners: NDArray[np.int32]


def rows_of(transitions: NDArray[np.integer[Any]], like_state: Sequence[int] | None = None) -> Rows:
    """Transitions [states, classes] as the compiler packs them."""
    like = np.arange(len(transitions)) if like_state is None else np.array(like_state)
    rows = packed(transitions.astype(np.int32), like.astype(np.int32))
    return Rows(
        row_starts=rows.row_starts,
        default_state=rows.default_state,
        entries=rows.entries,
        owners=rows.owners,
    )


def transitions_of(tables: Tables) -> NDArray[np.int32]:
    """What `Tables` says that they are, int32 [states, classes]."""
    states, classes = len(tables.row_starts), int(tables.class_of_byte.max()) + 1
    transitions = np.full((states, classes), -1, np.int32)
    for state, column in product(range(states), range(classes)):
        for owner in (state, int(tables.default_state[state])):
            place = tables.row_starts[owner] + column
            if tables.owners[place] == owner:
                transitions[state, column] = tables.entries[place]
                break
    return transitions


def action_rows(*actions: Sequence[int]) -> NDArray[np.int32]:
    """Actions of fewer columns, the others 0."""
    rows = np.zeros((len(actions), ACTION_COLUMNS), np.int32)
    for row, action in zip(rows, actions, strict=True):
        row[: len(action)] = action
    return rows


class TokenLists(TypedDict):
    """Fields of `Tables`."""

    lists_of_state: NDArray[np.int32]
    list_offsets: NDArray[np.int32]
    list_tokens: NDArray[np.int32]
    opener_counts: NDArray[np.int32]


def lists(of_state: Sequence[Sequence[int]], *lists: tuple[Sequence[int], Sequence[int]]) -> TokenLists:
    """The lists, numbered from 1, each in two parts of which the second are openers."""
    tokens = [[*part, *openers] for part, openers in lists]
    return TokenLists(
        lists_of_state=np.array(of_state, np.int32),
        list_offsets=np.cumsum([0, 0, *map(len, tokens)]).astype(np.int32),
        list_tokens=np.array([token for part in tokens for token in part], np.int32),
        opener_counts=np.array([0, *(len(openers) for _, openers in lists)], np.int32),
    )


def no_lists(states: int) -> TokenLists:
    return lists([(0, 0, 0)] * states)


def load_message(number: int, tables: Tables) -> LoadGrammar:
    """As the scheduler would send it."""
    fields = [name for name in LoadGrammar.__struct_fields__ if name != "grammar"]
    return LoadGrammar(number, **{name: getattr(tables, name).tobytes() for name in fields})


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
        **rows_of(machine.transitions),
        mask_of_state=np.arange(states, dtype=np.int32),
        masks=np.zeros((states, WORDS), np.int32),
        actions=machine.actions,
        returns=machine.returns,
        **no_lists(states),
    )


@dataclass
class Grammar:
    tables: Tables
    made: RandomMachine | None = None
    """where the stacks that fit a state are known"""
    _stacks: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict)

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
        """Whether a token's bytes depend on what was on the stack before it, or on a set of several words."""
        height, depth = 0, STACK_DEPTH // 2
        at = Configuration(state, self.stack_for(state, depth))
        for byte in b"" if token == EOS else VOCABULARY[token]:
            entry = int(self.machine.transitions[at.state, self.machine.class_of_byte[byte]])
            if entry < -1 and height < _read(self.tables.actions[-2 - entry, 0]):
                return True
            before, at = at, self.after_byte(at, byte)
            if at.state < 0:
                break
            height += len(at.stack) - len(before.stack)
        return False

    def may_fill(self, state: int, token: int) -> bool:
        """Whether a token's pushes, or its actions' demands, may exceed the free part of the stack."""
        most = max(STACK_DEPTH, len(self.stack_for(state, STACK_DEPTH)))  # a call or a count comes on top
        at = Configuration(state, self.stack_for(state, 4))
        below = len(at.stack)
        for byte in b"" if token == EOS else VOCABULARY[token]:
            entry = int(self.machine.transitions[at.state, self.machine.class_of_byte[byte]])
            height = len(at.stack) - below
            if entry < -1 and most + height + self.tables.actions[-2 - entry, 3] > STACK_DEPTH:
                return True
            at = self.after_byte(at, byte)
            if at.state < 0:
                break
        return False

    def stack_for(self, state: int, depth: int, seed: int = 0) -> tuple[int, ...]:
        """About `depth` places that fit the state."""
        if self.made is None:
            return ()
        asked = (state, depth, seed)
        if asked not in self._stacks:
            self._stacks[asked] = self.made.stack(state, depth, np.random.default_rng(seed))
        return self._stacks[asked]


def _read(kind: int) -> int:
    """Places of the stack that an action reads."""
    return {PUSH: 0, OPEN: 0, CALL: 0, GO: 0, CLOSE: 2}.get(kind, 1)


def random_grammar(seed: int, stack: bool = True) -> Grammar:
    """A random automaton; masks and context lists that say just what it does."""
    rng = np.random.default_rng(seed)
    if not stack:
        states, classes = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        plain = Tables(
            class_of_byte=rng.integers(0, classes, 256).astype(np.uint8),
            **rows_of(rng.integers(-1, states, (states, classes))),
            mask_of_state=np.arange(states, dtype=np.int32),
            masks=np.zeros((states, WORDS), np.int32),
            **no_lists(states),
        )
        return _with_masks(Grammar(plain), rng)
    made = random_machine(rng)
    return _with_masks(Grammar(tables_of(made.machine), made), rng)


def _with_masks(grammar: Grammar, rng: np.random.Generator) -> Grammar:
    """Random masks, and lists that set them right."""
    states = len(grammar.tables.row_starts)
    masks = rng.random((3, MODEL_VOCAB)) < rng.choice([0.1, 0.5, 0.9])
    mask_of_state = rng.integers(-1, len(masks), states)
    numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {((), ()): 0}
    lists_of_state = []
    for state in range(states):
        tokens = range(len(VOCABULARY))
        undecided = tuple(token for token in tokens if grammar.looks_below(state, token))
        openers = tuple(t for t in tokens if t not in undecided and grammar.may_fill(state, t))
        at = Configuration(state, grammar.stack_for(state, 0))
        begins = masks[mask_of_state[state]] & (mask_of_state[state] >= 0)
        settled = [token for token in range(MODEL_VOCAB) if token not in undecided]
        wrong = {token for token in settled if begins[token] != grammar.allows(at, token)}
        shared = set(rng.choice(MODEL_VOCAB, 9, replace=False).tolist())
        parts = ((tuple(sorted(shared)), ()), (tuple(sorted(wrong ^ shared)), ()), (undecided, openers))
        lists_of_state.append([numbers.setdefault(part, len(numbers)) for part in parts])
    packed = np.packbits(np.pad(masks, ((0, 0), (0, 32 * WORDS - MODEL_VOCAB))), axis=1, bitorder="little")
    tables = replace(
        grammar.tables,
        mask_of_state=mask_of_state.astype(np.int32),
        masks=packed.view(np.int32),
        **lists(lists_of_state, *list(numbers)[1:]),
    )
    return Grammar(tables, grammar.made)


def random_configurations(grammar: Grammar, seed: int, count: int) -> list[Configuration]:
    """Any state with a stack that fits it, often a small or a full one."""
    rng = np.random.default_rng(seed)
    depths = rng.choice([0, 0, 1, 2, 5, *range(STACK_DEPTH - 3, STACK_DEPTH + 1)], count).tolist()
    states = rng.integers(0, len(grammar.tables.row_starts), count).tolist()
    return [
        Configuration(state, grammar.stack_for(state, depth, int(rng.integers(0, 9999))))
        for state, depth in zip(states, depths, strict=True)
    ]
