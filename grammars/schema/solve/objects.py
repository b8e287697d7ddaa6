"""Reads objects: declared properties (in the schema's order or in any), then undeclared ones. A node
of the automaton stands for the part of the goal that is left after the members read so far.

A conjunct about a single declared property is kept out of the goal. So an object of many independent
properties has one node for each, and goals stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal

from ...errors import TooLargeError
from ...machine.stack_automaton import MAX_SEEN
from ...regex.dfa import ANYTHING
from ..read.formula import Atom, Formula, Has, MemberFits, Members, MinMembers, Strings
from .named import find_names_to_violate, list_declared_names, only_name
from .nodes import Container, Edge, Node, UndeclaredNames, Value
from .outcomes import Goal, outcomes
from .simplifying import simplify
from .undeclared import UndeclaredKinds
from .value_graph import MAX_NODES, ValueGraph

_Order = Literal["any", "any for others", "declared"]
"""the order of declared properties. "any for others": properties that depend on each other keep theirs"""
_LOOSE_ORDERS: tuple[_Order, ...] = ("any", "any for others")


class _Reader:
    def __init__(self, graph: ValueGraph, container: Container, order: _Order) -> None:
        self.graph = graph
        self.make = graph.formulas
        self.container = container
        self.names = list_declared_names(container.goal)
        self.own: dict[str, list[Formula]] = {}
        self.required: set[str] = set()
        self._concerns: dict[Formula, frozenset[str | None]] = {}
        self.core = self._core(container.goal)
        container.is_unordered = order != "declared" and 0 < len(self.names) <= MAX_SEEN
        self.in_order = self._names_in_order(order)
        if container.is_unordered:
            followed = [name for name in self.names if name in self.required and self._varies(name)]
            needed = [self.make.atom(Has(name)) for name in followed]
            self.core = (self.make.all_of([*needed, self.core[0]]), *self.core[1:])
            self.required.difference_update(followed)
        self._open: dict[Formula, frozenset[Formula]] = {}
        self._edges: dict[tuple[Goal, str, int], Edge | None] = {}
        self._own_values: dict[str, Value | None] = {}
        self._kinds = UndeclaredKinds(graph.scalars, graph.formulas, self.names)
        self.found: list[Node] = []
        """nodes in the order in which they are read, so that too many of them are noticed early"""
        self.to_violate = {name for formula in self.core for name in find_names_to_violate(formula)}

    def _core(self, goal: Goal) -> Goal:
        """The goal without the conjuncts about a single declared property."""
        said, *others = (simplify(self.make, formula) for formula in goal)
        if others:
            return said, *others
        rest = []
        for part in said.conjuncts():
            match part:
                case Atom(Has(name)):
                    self.required.add(name)
                case Atom(Members(child=child)) if (own := only_name(part)) is not None:
                    self.own.setdefault(own, []).append(child)
                case _:
                    rest.append(part)
        return (self.make.all_of(rest),)

    def _names_in_order(self, order: _Order) -> list[str]:
        if not self.container.is_unordered:
            return self.names
        if order == "any":
            return []
        found = [name for name in self.names if len(self.core) > 1 or self._varies(name)]
        if len(found) in (0, len(self.names)):
            raise TooLargeError("no property may come in any order")
        return found

    def _varies(self, name: str) -> bool:
        """Whether the constraint on a name depends on other members."""
        alternatives = [
            part for formula in self.core for part in formula.conjuncts() if not isinstance(part, Atom)
        ]
        return any(name in self._find_concerned(part) for part in alternatives)

    def node(self, goal: Goal, position: int) -> Node:
        key = (goal, position)
        node = self.container.nodes.get(key)
        if node is None:
            node = self.container.nodes[key] = Node(key)
            self.graph.count(1, 0)
            self.found.append(node)
        return node

    def read(self, node: Node) -> None:
        if self.container.is_unordered:
            self._read_unordered(node)
        else:
            self._read_ordered(node)
        self.graph.count(0, len(node.edges) + len(node.others))

    def _read_unordered(self, node: Node) -> None:
        goal, position = node.key
        free = [name for name in self.names if name not in self.in_order]
        edges = {name: self._edge(goal, name, position) for name in free}
        node.edges = [edge for edge in edges.values() if edge is not None]
        if node is self.container.start:
            self.container.needed = [edges[name] for name in free if name in self.required]
        for name, current in self._skip_names(goal, position):
            edge = self._edge(current, name, self.in_order.index(name) + 1)
            if edge is not None:
                node.edges.append(edge)
        node.verdict = self._verdict(goal)
        self._read_others(node, goal)

    def _skip_names(self, goal: Goal, position: int) -> Iterator[tuple[str, Goal]]:
        """The names from a position on, each with the rest of the goal if the names before it are missing."""
        for name in self.in_order[position:]:
            yield name, goal
            goal = self._change(goal, name, ("skipped", name), partial(self._skip, name))
            if all(formula is self.make.false for formula in goal):
                return

    def _read_ordered(self, node: Node) -> None:
        goal, position = node.key
        current = goal
        for number in range(position, len(self.names)):
            name = self.names[number]
            edge = self._edge(current, name, number + 1)
            if edge is not None:
                node.edges.append(edge)
            if name in self.required:
                break
            current = self._change(current, name, ("skipped", name), partial(self._skip, name))
            if all(formula is self.make.false for formula in current):
                break
        else:
            node.verdict = self._verdict(current)
            self._read_others(node, current)

    def _change(self, goal: Goal, name: str | None, key: object, change: Callable[[Atom], Formula]) -> Goal:
        """Replaces every atom that concerns a name by `change(atom)`. `key` names the change."""
        return tuple([self._rewrite(formula, name, key, change) for formula in goal])

    def _rewrite(
        self, formula: Formula, name: str | None, key: object, change: Callable[[Atom], Formula]
    ) -> Formula:
        if name not in self._find_concerned(formula):
            return formula
        known = formula.cache.get(key)
        if known is None:
            concerns = self._concerns
            known = formula.cache[key] = (
                change(formula)
                if isinstance(formula, Atom)
                else self.make.with_parts(
                    formula,
                    [
                        self._rewrite(part, name, key, change) if name in concerns[part] else part
                        for part in formula.parts
                    ],
                )
            )
        return known

    def _verdict(self, goal: Goal) -> int:
        ended = [self.make.rewrite(formula, "ended", self._end) for formula in goal]
        return next((number for number, formula in enumerate(ended) if formula is self.make.true), -1)

    def _end(self, atom: Atom) -> Formula:
        return self.make.true if isinstance(atom.fact, Members) else self.make.false

    def _skip(self, name: str, atom: Atom) -> Formula:
        if only_name(atom) != name:
            return atom
        return self.make.false if isinstance(atom.fact, Has) else self.make.true

    def _edge(self, goal: Goal, name: str, position: int) -> Edge | None:
        key = (goal, name, position)
        if key not in self._edges:
            self._edges[key] = self._new_edge(goal, name, position)
        return self._edges[key]

    def _new_edge(self, goal: Goal, name: str, position: int) -> Edge | None:
        if not any(name in self._find_concerned(formula) for formula in goal):
            value = self._own_value(name)
            return Edge(name, value, (self.node(goal, position),)) if value is not None else None
        taken = self._change(goal, name, ("taken", name), lambda atom: self._take(atom, name))
        children = self._own_children(name)
        if children:
            taken = (self.make.all_of([*children, taken[0]]),)
        return self._edge_to(taken, name, position, self._find_replaceable(goal, name))

    def _find_replaceable(self, goal: Goal, name: str) -> dict[Goal, Goal]:
        """Goals of an unordered object for which `goal` itself can be used instead. After a value that
        changes nothing else, the fact about the name may stay, because the name can't come again."""
        if not self.container.is_unordered or name in self.to_violate:
            return {}
        return {self._change(goal, name, ("allowed", name), partial(self._allow, name)): goal}

    def _allow(self, name: str, atom: Atom) -> Formula:
        is_own = isinstance(atom.fact, Members) and only_name(atom) == name
        return self.make.true if is_own else atom

    def _own_children(self, name: str) -> list[Formula]:
        return [self.make.atom(MemberFits(child)) for child in self.own.get(name, ())]

    def _own_value(self, name: str) -> Value | None:
        """The value of a name about which the rest of the goal says nothing."""
        if name not in self._own_values:
            found_outcomes = outcomes(self.graph.document, (self.make.all_of(self._own_children(name)),))
            conditions = [condition for condition, _ in found_outcomes]
            self._own_values[name] = self.graph.value(conditions) if conditions else None
        return self._own_values[name]

    def _find_concerned(self, formula: Formula) -> frozenset[str | None]:
        """The declared names that can change the formula, with None for all undeclared names."""
        known = self._concerns.get(formula)
        if known is None:
            parts = map(self._find_concerned, formula.parts)
            known = frozenset(self._names_of(formula)).union(*parts)
            self._concerns[formula] = known
        return known

    def _names_of(self, formula: Formula) -> Iterable[str | None]:
        name = only_name(formula)
        if name is not None:
            return (name,)
        match formula:
            case Atom(MinMembers()):
                return (*self.names, None)
            case Atom(Members(names)):
                named = [name for name in self.names if self._is_in(name, names)]
                return named if self._undeclared(names) is self.make.false else (*named, None)
        return ()

    def _edge_to(self, taken: Goal, name: str | int, position: int, same: Mapping[Goal, Goal]) -> Edge | None:
        """The edge to the nodes of the goals that `taken` can leave. `same` replaces some of these goals."""
        found_outcomes = outcomes(self.graph.document, taken)
        if not found_outcomes:
            return None
        targets = tuple(self.node(same.get(left, left), position) for _, left in found_outcomes)
        return Edge(name, self.graph.value(condition for condition, _ in found_outcomes), targets)

    def _take(self, atom: Atom, name: str) -> Formula:
        match atom.fact:
            case Members(names, child):
                if not self._is_in(name, names):
                    return atom
                later = self.make.true if only_name(atom) == name else atom
                return self.make.all_of([self.make.atom(MemberFits(child)), later])
            case Has(required):
                return self.make.true if required == name else atom
            case MinMembers(count):
                return self._count_members(count)
        raise AssertionError(f"{atom.fact} is no fact about objects")

    def _count_members(self, count: int) -> Formula:
        return self.make.atom(MinMembers(count - 1)) if count > 1 else self.make.true

    def _is_in(self, name: str, names: Formula) -> bool:
        """Whether a name satisfies a formula over strings."""

        def decide(atom: Atom) -> Formula:
            match atom.fact:
                case Strings(values):
                    holds = name in values
                case _:
                    holds = self.graph.scalars.string_dfa((atom,)).label(name) >= 0
            return self.make.true if holds else self.make.false

        return self.make.rewrite(names, ("name", name), decide) is self.make.true

    def _read_others(self, node: Node, goal: Goal) -> None:
        """Makes the edges of undeclared names: one for each kind of name that the formulas distinguish."""
        position = node.key[1] if self.container.is_unordered else len(self.names)
        distinguishing = frozenset[Formula]().union(*map(self._distinguishing, goal))
        varying = tuple(sorted(distinguishing, key=lambda names: names.number))
        if not varying:
            edge = self._other_edge(goal, position, {}, 0)
            if edge is not None:
                node.others = [edge]
                node.names = UndeclaredNames(ANYTHING, ("any",), True)
            return
        kept: list[int] = []
        for label, known in self._kinds.find_kinds(varying):
            edge = self._other_edge(goal, position, known, len(kept))
            if edge is not None:
                kept.append(label)
                node.others.append(edge)
        node.names = self._kinds.select_names(varying, tuple(kept))

    def _distinguishing(self, formula: Formula) -> frozenset[Formula]:
        """The formulas over names that hold for some undeclared names but not for all."""
        if None not in self._find_concerned(formula):
            return frozenset()
        known = self._open.get(formula)
        if known is None:
            match formula:
                case Atom(Members(names)):
                    known = frozenset((self._undeclared(names),)) - {self.make.true, self.make.false}
                case _:
                    known = frozenset[Formula]().union(*map(self._distinguishing, formula.parts))
            self._open[formula] = known
        return known

    def _undeclared(self, names: Formula) -> Formula:
        """The formula for undeclared names: they are in none of its lists."""
        return self.make.rewrite(
            names, "undeclared", lambda atom: self.make.false if isinstance(atom.fact, Strings) else atom
        )

    def _other_edge(self, goal: Goal, position: int, known: dict[Formula, bool], label: int) -> Edge | None:
        def take(atom: Atom) -> Formula:
            match atom.fact:
                case MinMembers(count):
                    return self._count_members(count)
                case Members(names, child):
                    names = self._undeclared(names)
                    if known.get(names, names is self.make.true):
                        return self.make.all_of([self.make.atom(MemberFits(child)), atom])
            return atom

        key = ("other", *((names.number, holds) for names, holds in known.items()))
        return self._edge_to(self._change(goal, None, key, take), label, position, {})


def read_object(graph: ValueGraph, container: Container) -> None:
    """Makes the nodes of an object, beginning at its start."""
    for order in _LOOSE_ORDERS if graph.any_order else ():
        known = graph.unread
        try:
            _read(graph, container, order)
            return
        except TooLargeError:
            graph.forget_after(known)
    read_in_order(graph, container)


def read_in_order(graph: ValueGraph, container: Container) -> None:
    """Makes an object's nodes again, with the declared order of properties."""
    _read(graph, container, "declared")


def _read(graph: ValueGraph, container: Container, order: _Order) -> None:
    container.needed = []
    container.nodes = {}
    reader = _Reader(graph, container, order)
    container.names = {name: number for number, name in enumerate(reader.names)}
    container.start = reader.node(reader.core, 0)
    most = MAX_NODES
    for node in reader.found:
        reader.read(node)
        if node is container.start and container.is_unordered:
            most = graph.free_order.most_nodes(node)
        if len(container.nodes) > most:
            raise TooLargeError(f"more than {most} nodes in an object")
    if container.is_unordered:
        graph.free_order.take(container)
