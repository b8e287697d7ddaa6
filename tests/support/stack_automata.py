"""Hand-made and random automata with a stack, and their steps by the reference, `StackAutomaton.step`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from arbora.grammars import Automaton
from arbora.grammars.machine.packed_rows import pack_rows
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.grammars.masks.stack import safe_depths
from arbora.runtime.automaton_format import (
    ACTION_COLUMNS,
    CALL,
    CLOSE,
    DEAD,
    DECIDED,
    DEFAULT,
    GO,
    MASK,
    OPEN,
    OWN,
    POP,
    PUSH,
    RESERVE,
    ROW_START,
    SAFE_DEPTH,
    SHARED,
    STACK_DEPTH,
    AutomatonTables,
)
from arbora.runtime.messages import LoadGrammar
from fake_model import VOCAB
from msgspec import structs
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
    """A state and a stack. In state `DEAD` the stack has no meaning."""

    state: int
    stack: tuple[int, ...] = ()


def machine(tables: AutomatonTables) -> StackAutomaton:
    """The automaton with these tables, to be stepped in plain Python. It accepts no text."""
    states = len(tables.states)
    return StackAutomaton(
        start=0,
        class_of_byte=tables.class_of_byte,
        transitions=transitions_of(tables),
        actions=tables.actions,
        returns=tables.returns,
        accepting=np.zeros(states, np.bool_),
        body_of_state=np.zeros(states, np.int8),
        like_state=np.arange(states, dtype=np.int32),
    )


def automaton(key: str, tables: AutomatonTables) -> Automaton:
    """The tables as the compiler returns them."""
    return Automaton(key, machine(tables), tables)


class Lists(NamedTuple):
    """Lists of tokens, numbered from 1, each as its tokens and its openers."""

    of_state: Sequence[Sequence[int]]
    """the lists SHARED, OWN and DECIDED of each state"""
    lists: Sequence[tuple[Sequence[int], Sequence[int]]]


def tables(
    class_of_byte: NDArray[np.uint8],
    transitions: NDArray[np.integer[Any]],
    mask_of_state: Sequence[int],
    masks: NDArray[np.int32],
    *,
    actions: Sequence[Sequence[int]] = (),
    returns: Sequence[int] = (),
    lists: Lists | None = None,
) -> AutomatonTables:
    """Tables of transitions [states, classes]; the stack decides on openers at every depth."""
    states = len(transitions)
    rows = pack_rows(transitions.astype(np.int32), np.arange(states, dtype=np.int32))
    lists = lists or Lists([(0, 0, 0)] * states, ())
    columns = [rows.row_starts, rows.default_state, np.array(mask_of_state), np.array(lists.of_state)]
    return AutomatonTables(
        class_of_byte=class_of_byte,
        states=np.column_stack(columns).astype(np.int32),
        entries=rows.entries,
        actions=action_rows(*actions),
        returns=np.array(returns, np.int32),
        masks=masks,
        **token_lists(lists),
    )


def token_lists(lists: Lists) -> dict[str, NDArray[np.int32]]:
    """Fields of `AutomatonTables`."""
    rows, tokens = [(0, 0, 0, -1)], list[int]()
    for some, openers in lists.lists:
        rows.append((len(tokens), len(some), len(openers), -1))
        tokens += [*some, *openers]
    return {"lists": np.array(rows, np.int32), "list_tokens": np.array(tokens, np.int32)}


def transitions_of(tables: AutomatonTables) -> NDArray[np.int32]:
    """The transitions as `AutomatonTables` describes them, int32 [states, classes]."""
    states, classes = len(tables.states), int(tables.class_of_byte.max()) + 1
    transitions = np.full((states, classes), DEAD, np.int32)
    for state, column in product(range(states), range(classes)):
        for owner in (state, int(tables.states[state, DEFAULT])):
            entry, owned_by = tables.entries[tables.states[owner, ROW_START] + column]
            if owned_by == owner:
                transitions[state, column] = entry
                break
    return transitions


def action_rows(*actions: Sequence[int]) -> NDArray[np.int32]:
    """Actions with their missing columns as 0."""
    rows = np.zeros((len(actions), ACTION_COLUMNS), np.int32)
    for row, action in zip(rows, actions, strict=True):
        row[: len(action)] = action
    return rows


def load_message(number: int, tables: AutomatonTables) -> LoadGrammar:
    """The tables as the scheduler sends them."""
    return LoadGrammar(number, tables.packed())


def after_text(automaton: Automaton, text: bytes) -> tuple[int, list[int]]:
    """The state and the stack after a text."""
    stack = list(automaton.machine.bottom)
    return automaton.machine.walk(automaton.machine.start, stack, text), stack


def unmasked(machine: StackAutomaton, key: str = "unmasked") -> Automaton:
    return replace(automaton(key, tables_of(machine)), machine=machine)


def tables_of(machine: StackAutomaton) -> AutomatonTables:
    """Tables with a mask for each state, all empty."""
    states = len(machine.transitions)
    return tables(
        machine.class_of_byte,
        machine.transitions,
        range(states),
        np.zeros((states, WORDS), np.int32),
        actions=machine.actions.tolist(),
        returns=machine.returns.tolist(),
    )


@dataclass
class Grammar:
    tables: AutomatonTables
    made: RandomMachine | None = None
    """the random machine, which knows the stacks that fit a state"""
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
        """Whether a token needs free places: those that it fills, or those that its actions reserve."""
        most = max(STACK_DEPTH, len(self.stack_for(state, STACK_DEPTH)))  # a call or a count comes on top
        at = Configuration(state, self.stack_for(state, 4))
        below = len(at.stack)
        for byte in b"" if token == EOS else VOCABULARY[token]:
            entry = int(self.machine.transitions[at.state, self.machine.class_of_byte[byte]])
            height = len(at.stack) - below
            if entry < -1 and most + height + self.tables.actions[-2 - entry, RESERVE] > STACK_DEPTH:
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
    """A random automaton whose masks and lists agree with its transitions."""
    rng = np.random.default_rng(seed)
    if not stack:
        states, classes = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        plain = tables(
            rng.integers(0, classes, 256).astype(np.uint8),
            rng.integers(-1, states, (states, classes)),
            range(states),
            np.zeros((states, WORDS), np.int32),
        )
        return _with_masks(Grammar(plain), rng)
    made = random_machine(rng)
    return _with_masks(Grammar(tables_of(made.machine), made), rng)


def _with_masks(grammar: Grammar, rng: np.random.Generator) -> Grammar:
    """The grammar with random masks, and with lists that correct them."""
    states = len(grammar.tables.states)
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
    columns = grammar.tables.states.copy()
    columns[:, MASK] = mask_of_state
    columns[:, [SHARED, OWN, DECIDED]] = lists_of_state
    fields = token_lists(Lists((), list(numbers)[1:]))
    lengths = np.array([len(text) for text in VOCABULARY] + [0] * (MODEL_VOCAB - len(VOCABULARY)), np.int32)
    depths = safe_depths(grammar.tables.actions, fields["lists"], lengths[fields["list_tokens"]])
    fields["lists"][:, SAFE_DEPTH] = depths
    masked = structs.replace(grammar.tables, states=columns, masks=packed.view(np.int32), **fields)
    return Grammar(masked, grammar.made)


def random_configurations(grammar: Grammar, seed: int, count: int) -> list[Configuration]:
    """Random states, each with a stack that fits it, often an empty or a full one."""
    rng = np.random.default_rng(seed)
    depths = rng.choice([0, 0, 1, 2, 5, *range(STACK_DEPTH - 3, STACK_DEPTH + 1)], count).tolist()
    states = rng.integers(0, len(grammar.tables.states), count).tolist()
    return [
        Configuration(state, grammar.stack_for(state, depth, int(rng.integers(0, 9999))))
        for state, depth in zip(states, depths, strict=True)
    ]


def two_brackets() -> Automaton:
    """Tokens 4n + 1 and 4n + 2 open two kinds of bracket, 4n + 3 closes either; 4n is not allowed directly
    inside the second kind."""
    pushes = [(PUSH, target, operand, 1) for target, operand in ((0, 0), (0, 1), (1, 0), (1, 1))]
    made = tables(
        (np.arange(256) % 4).astype(np.uint8),
        np.array([[0, -2, -4, -6], [-1, -3, -5, -6]]),
        [0, 0],
        np.zeros((1, VOCAB // 32), np.int32),
        actions=[*pushes, (POP, 0, 0, -2)],
        returns=[0, 1],
    )
    return automaton("brackets", made)
