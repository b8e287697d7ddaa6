"""Turns the graph of values into the tables of a stack automaton. Nodes from which no end can be reached are
left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from ....runtime.automaton_format import CLOSE, GO, NEED, OPEN, POP, PUSH, SEE, STACK_DEPTH
from ....runtime.grammar_spec import JsonSpacing
from ....runtime.json_gaps import NO_GAP
from ...machine.stack_automaton import StackAutomaton, words_of
from ...regex.dfa import REJECT, Dfa, alive_states, minimize
from ..lexical.json_string_bytes import Block
from ..solve.nodes import Container, Edge, Node, UndeclaredNames, Value
from ..solve.solver import Solver
from .deep_members import DeepMembers
from .gaps import Fill, spacing_of
from .names import TAKEN, Names, NameTrie, has_one_form, materialize
from .tables import Tables

_QUOTE = 0x22


class Assembler:
    """Builds the states of one schema."""

    def __init__(self, solver: Solver, whitespace: JsonSpacing) -> None:
        self._solver = solver
        self._tables = Tables()
        self._spacing = spacing_of(whitespace, self._tables)
        self._values: dict[tuple[Value, tuple[int, ...]], int] = {}
        self._starts: dict[Container, int] = {}
        self._afters: dict[tuple[Container, Node], int] = {}
        self._members: dict[Edge, int | None] = {}
        self._roots: dict[tuple[Container, Node], int] = {}
        self._names: dict[tuple[int, tuple[int, ...], int], _StampedNames] = {}
        self._have_one_form: dict[Container, bool] = {}
        self._commas: dict[tuple[object, ...], tuple[int, int]] = {}
        self._pending: list[tuple[Container, Node, int, bool]] = []
        self._deep_members = DeepMembers()
        self._is_guarded = False

    @property
    def places(self) -> int:
        """The number of stack places for containers."""
        return STACK_DEPTH - len(self._spacing.bottom)

    def build(self, value: Value, *, guarded: bool) -> StackAutomaton:
        """Builds the automaton of a value. `guarded`: whether values may be nested too deep for the stack,
        so the automaton gets a depth guard. Then raises StrandingError for objects that must be ordered."""
        self._is_guarded = guarded
        tables = self._tables
        end = tables.state({})
        tables.accepting.append(end)
        start = self._value(value, (end,))
        while self._pending:
            container, node, state, is_start = self._pending.pop()
            self._fill(container, node, state, is_start)
        return tables.automaton(
            start,
            STACK_DEPTH * (2 if self._solver.graph.any_order else 1),
            self._spacing.bottom,
            self._deep_members if guarded else None,
        )

    def _value(self, value: Value, following: tuple[int, ...]) -> int:
        """The state before a value; `following[verdict]` is the state after it."""
        key = (value, following)
        known = self._values.get(key)
        if known is None:
            known = self._values[key] = self._tables.states(self._spacing.states_of_value)
            self._spacing.fill_value(known, self._make_fill(value, following))
        return known

    def _make_fill(self, value: Value, following: tuple[int, ...]) -> Fill:
        return lambda state, more: self._fill_value(state, value, following, more)

    def _fill_value(
        self, state: int, value: Value, following: tuple[int, ...], more: Mapping[int, int]
    ) -> None:
        """Gives a state the entries of a value's first byte, and `more`."""
        tables, scalars, entries = self._tables, self._solver.graph.scalars, dict(more)
        for text, verdict in value.literals:
            entries[text[0]] = tables.chain(text[1:], following[verdict])
        strings = scalars.string_block(value.strings) if value.strings is not None else None
        if strings is not None:
            entries[_QUOTE] = tables.entry(strings, following)
        numbers = scalars.number_block(value.numbers) if value.numbers is not None else None
        if numbers is not None:
            tables.inherit(state, tables.stamp(numbers, following))
        for byte, container in ((ord("{"), value.object), (ord("["), value.array)):
            if container is not None and container.possible:
                entries[byte] = self._open(container, tables.returns(following))
        tables.fill(state, entries)

    def _open(self, container: Container, base: int) -> int:
        start, gap = self._start(container), self._spacing.opening_gap(container)
        if not container.is_unordered:
            return self._tables.action(PUSH, start, base, gap=gap)
        return self._tables.action(OPEN, start, base, (container.set_words,), gap=gap)

    def _start(self, container: Container) -> int:
        known = self._starts.get(container)
        if known is None:
            known = self._starts[container] = self._tables.states(self._spacing.states_of_start)
            self._pending.append((container, container.start, known, True))
        return known

    def _after(self, container: Container, node: Node) -> int:
        """The state after a member, before a comma or the end."""
        key = (container, node)
        known = self._afters.get(key)
        if known is None:
            known = self._afters[key] = self._tables.state({})
            self._pending.append((container, node, known, False))
        return known

    def _fill(self, container: Container, node: Node, state: int, is_start: bool) -> None:
        key, fill = self._first_bytes(container, node, is_start)
        needed = self._find_needed(container)
        can_end = node.verdict >= 0 and not (is_start and any(needed))

        def leave(gap: int) -> int:
            if not container.is_unordered:
                return self._tables.action(POP, 0, node.verdict, gap=gap)
            return self._tables.action(CLOSE, container.set_words, node.verdict, needed, gap=gap)

        if is_start:
            self._spacing.fill_start(state, container, fill, leave if can_end else None)
            return
        entries = dict(self._spacing.closing(container, needed, leave)) if can_end else {}
        if fill is not None:
            if key not in self._commas:
                self._commas[key] = self._spacing.comma(fill)
            following, gap = self._commas[key]
            entries[self._spacing.comma_byte] = self._guard(container, node, following, gap)
        self._tables.fill(state, entries)

    def _first_bytes(
        self, container: Container, node: Node, is_start: bool
    ) -> tuple[tuple[object, ...], Fill | None]:
        """A key of the next member, and the function that gives a state the member's first bytes; None if no
        more members can come."""
        if container.is_array:
            item = self._solver.reduce(node.edges[0], container.alive) if node.edges else None
            if item is None:
                return (), None
            following = tuple(self._after(container, target) for target in item[1])
            return (item[0], following), self._make_fill(item[0], following)
        root = self._root(container, node)
        if root is None:
            return (), None
        is_guarded = is_start and self._is_guarded
        quote = self._guard(container, node, root, NO_GAP) if is_guarded else root
        return (root,), lambda state, more: self._tables.fill(state, {_QUOTE: quote, **more})

    def _find_needed(self, container: Container) -> tuple[int, ...]:
        """The words of the names that an unordered object must have."""
        return words_of(_bits(container, [edge.name for edge in container.needed if edge is not None]))

    def _guard(self, container: Container, node: Node, target: int, gap: int) -> int:
        """The entry to the next member: dead if all names were seen and no other name may follow."""
        tables = self._tables
        plain = target if gap == NO_GAP else tables.action(GO, target, 0, gap=gap)
        has_others = self._undeclared(container, node).block is not None
        if not container.is_unordered or (has_others and not container.has_deep_others):
            return plain
        alive = [edge.name for edge in node.edges if self._member(container, edge) is not None]
        names = _bits(container, alive) | (_others_bit(container) if has_others else 0)
        return tables.action(NEED, target, 0, words_of(names), gap=gap)

    def _member(self, container: Container, edge: Edge) -> int | None:
        """The state after a name's closing quote; None if the member is impossible."""
        if edge not in self._members:
            kept = self._solver.reduce(edge, container.alive)
            state = None
            if kept is not None:
                value = self._value(kept[0], tuple(self._after(container, target) for target in kept[1]))
                state = self._spacing.after_name(value)
                if container.is_unordered:
                    self._deep_members.note(container, self._start(container), edge, value)
            self._members[edge] = state
        return self._members[edge]

    def _root(self, container: Container, node: Node) -> int | None:
        """The state after the quote that opens a name; None if no member can follow."""
        members = [(edge.name, self._member(container, edge)) for edge in node.edges]
        declared = [(name, state) for name, state in members if state is not None]
        names = self._undeclared(container, node)
        if not declared and names.block is None:
            return None
        trie = (
            names.build_taken(container)
            if node.names is not None and node.names.is_any
            else names.tries.empty
        )
        for name, state in reversed(declared):
            trie = names.tries.add(
                trie, str(name), self._mark_seen(container, str(name), state), _bits(container, [name])
            )
        return materialize(trie, names.states, names.new_state)

    def _mark_seen(self, container: Container, name: str, target: int) -> int:
        """The entry for the closing quote of a declared name."""
        if not container.is_unordered:
            return target
        return self._tables.action(SEE, target, container.names[name], (container.set_words,))

    def _undeclared(self, container: Container, node: Node) -> _StampedNames:
        """The states of undeclared names, to which declared names are added."""
        block: Block | None = None
        following: tuple[int, ...] = ()
        if node.names is not None:
            states = [self._member(container, edge) for edge in node.others]
            alive = [label for label, state in enumerate(states) if state is not None]
            following = tuple(state for state in states if state is not None)
            block = self._name_block(container, node.names, alive, len(states)) if alive else None
        key = (id(block), following, _others_bit(container))
        if key not in self._names:
            start = self._tables.stamp(block, following) if block is not None else 0
            self._names[key] = _StampedNames(self._tables, block, start, _others_bit(container))
        return self._names[key]

    def _name_block(
        self, container: Container, names: UndeclaredNames, alive: list[int], labels: int
    ) -> Block | None:
        def dfa() -> Dfa:
            number = np.full(labels + 1, REJECT, np.int32)
            number[alive] = np.arange(len(alive))
            kept = replace(names.dfa, labels=number[names.dfa.labels])
            if alive_states(kept.transitions, kept.labels).all():
                return kept
            return minimize(kept)  # removes the states that lead to no possible name

        if container not in self._have_one_form:
            self._have_one_form[container] = all(map(has_one_form, container.names))
        is_shared = self._have_one_form[container]
        return self._solver.graph.scalars.name_block(dfa, (*names.key, *alive), is_shared=is_shared)


class _StampedNames:
    """One copy of the automaton of undeclared names, with tries of declared names over it."""

    def __init__(self, tables: Tables, block: Block | None, start: int, others: int) -> None:
        """`others`: the bit of undeclared names in the object's set, 0 if they always fit on the stack."""
        self._others = others
        self._tables = tables
        self._start = start
        self._taken: dict[Container, NameTrie] = {}
        self.block = block
        self.tries = Names(block)
        self.states: dict[int, int] = {}
        self._tails: dict[tuple[bytes, int | None, int, int], int] = {}

    def build_taken(self, container: Container) -> NameTrie:
        """The trie of all declared names, none of which may come as an undeclared name."""
        if container not in self._taken or self.block is None:
            trie = self.tries.empty
            for name in container.names if self.block is not None else ():
                trie = self.tries.add(trie, name, TAKEN)
            self._taken[container] = trie
        return self._taken[container]

    def new_state(self, trie: NameTrie, states: dict[int, int]) -> int:
        if trie.tail:
            key = (trie.tail, trie.value, trie.base, trie.below)
            if key not in self._tails:
                self._tails[key] = self._tail(trie)
            return self._tails[key]
        entries = {byte: self._enter(trie, trie.children[byte], state) for byte, state in states.items()}
        if trie.value is not None:
            entries[_QUOTE] = trie.value
        state = self._tables.state(entries)
        if trie.base >= 0:
            self._tables.inherit(state, self._start + trie.base)
        return state

    def _tail(self, trie: NameTrie) -> int:
        bases = [trie.base]
        for byte in trie.tail:
            bases.append(self.tries.following(bases[-1], byte))
        left = bases.index(-1) if bases[-1] < 0 else len(bases)
        first = self._tables.path(trie.tail, {} if trie.value is None else {_QUOTE: trie.value})
        self._tables.inherit_all(range(first, first + left), [self._start + base for base in bases[:left]])
        if trie.below and 0 < left < len(bases):
            target = self._tables.action(NEED, first + left, 0, words_of(trie.below))
            self._tables.fill(first + left - 1, {trie.tail[left - 1]: target})
        return first

    def _enter(self, trie: NameTrie, child: NameTrie, state: int) -> int:
        """The entry that leads to a child. It is dead while the object already has all names below the
        child."""
        others = self._others if child.base >= 0 else 0
        if not child.below or (child.base >= 0 and not others):
            return state
        if trie.base < 0 and child.below == trie.below:
            return state
        return self._tables.action(NEED, state, 0, words_of(child.below | others))


def _others_bit(container: Container) -> int:
    """The bit of undeclared names in the set, 0 if they always fit on the stack."""
    return 1 << len(container.names) if container.has_deep_others else 0


def _bits(container: Container, names: Iterable[str | int | None]) -> int:
    """The bits of these names in an unordered object's set."""
    if not container.is_unordered:
        return 0
    return sum(1 << container.names[str(name)] for name in names)
