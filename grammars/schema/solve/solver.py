"""Finds the verdicts that each value can have, as a least fixpoint over all goals.

So a recursive schema without a finite value is found to be empty.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..read.formula import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, Formula, Or
from .arrays import read_array
from .nodes import Container, Edge, Node, Value
from .objects import read_in_order, read_object
from .outcomes import Goal, decide
from .value_graph import ValueGraph


class Solver:
    """Reads values and containers when they are needed; `solve` finds the possible verdicts of a value."""

    def __init__(self, graph: ValueGraph) -> None:
        self.graph = graph
        self._formulas = graph.formulas
        self._containers: dict[tuple[int, Goal], Container] = {}
        self._unsolved: list[Container] = []
        self._unread_containers: tuple[list[Container], list[Container]] = [], []
        """containers with alternatives, and others; the others come first, because some may be refused"""

    def dissolve(self) -> None:
        """Breaks the cycles in which containers refer to each other."""
        for container in self._containers.values():
            for node in container.nodes.values():
                node.edges, node.others = [], []
            container.nodes = {}

    def solve(self, formulas: Iterable[Formula]) -> Value:
        value = self.graph.value(formulas)
        self._solve_all()
        return value

    def put_in_order(self, containers: Iterable[Container]) -> None:
        """Gives unordered objects the declared order of properties."""
        for container in containers:
            read_in_order(self.graph, container)
            self._unsolved.append(container)
        self._solve_all()

    def _solve_all(self) -> None:
        while self.graph.unread or self._unsolved:
            while (value := self.graph.take_unread()) is not None:
                self._read(value)
            container = self._next_container()
            if container is None:
                self._solve()
            else:
                self._read_container(container)

    def _next_container(self) -> Container | None:
        return next((unread.pop() for unread in reversed(self._unread_containers) if unread), None)

    def _read_container(self, container: Container) -> None:
        (read_array if container.is_array else read_object)(self.graph, container)

    def _solve(self) -> None:
        fresh, self._unsolved = self._unsolved[::-1], []
        changing = True
        while changing:
            changing = False
            for container in fresh:
                possible = {container.verdict(node) for node in container.find_reached()} - {-1}
                if possible != container.possible:
                    container.possible = possible
                    changing = True
        for container in fresh:
            container.settle()
        self.put_in_order([each for each in fresh if each.is_unordered and each.can_strand()])

    def reduce(self, edge: Edge, alive: set[Node]) -> tuple[Value, tuple[Node, ...]] | None:
        """The edge's value and targets, without verdicts from which no end can be reached; None if none is
        left."""
        possible = edge.value.possible
        kept = [
            verdict for verdict, target in enumerate(edge.targets) if verdict in possible and target in alive
        ]
        if not kept:
            return None
        if len(kept) == len(edge.targets):
            return edge.value, edge.targets
        value = self.solve(self._first(edge.value.goal, kept))
        return value, tuple(edge.targets[verdict] for verdict in kept)

    def _first(self, goal: Goal, kept: list[int]) -> Iterable[Formula]:
        """The goal with only some of its verdicts. A value gets the same verdict as under the whole goal."""
        *first, last = (goal[verdict] for verdict in kept)
        if last is self._formulas.true:
            dropped = [goal[verdict] for verdict in range(kept[-1]) if verdict not in kept]
            last = self._formulas.all_of(map(self._formulas.negation, dropped))
        return *first, last

    def _read(self, value: Value) -> None:
        make = self._formulas
        for text, types, fact in (
            (b"null", NULL, None),
            (b"true", BOOLEAN, True),
            (b"false", BOOLEAN, False),
        ):
            for verdict, formula in enumerate(value.goal):
                if self._holds(make.restrict(formula, types), fact):
                    value.literals.append((text, verdict))
                    break
        value.strings = self._scalar(value, STRING)
        value.numbers = self._scalar(value, NUMBER)
        value.scalar_verdicts.update(verdict for _, verdict in value.literals)
        value.object = self._container(value, OBJECT)
        value.array = self._container(value, ARRAY)

    def _scalar(self, value: Value, types: int) -> Goal | None:
        goal = decide(self._formulas, [self._formulas.restrict(formula, types) for formula in value.goal])
        if all(formula is self._formulas.false for formula in goal):
            return None
        if len(goal) == 1 and goal[0] is self._formulas.true:
            value.scalar_verdicts.add(0)
            return goal
        scalars = self.graph.scalars
        verdicts = scalars.string_labels(goal) if types == STRING else scalars.number_labels(goal)
        value.scalar_verdicts |= verdicts
        return goal if verdicts else None

    def _holds(self, formula: Formula, fact: bool | None) -> bool:
        """Whether a formula over null, or over one boolean, is true."""
        decided = self._formulas.rewrite(
            formula, ("is", fact), lambda atom: self._formulas.true if fact else self._formulas.false
        )
        return decided is self._formulas.true

    def _container(self, value: Value, types: int) -> Container | None:
        goal = decide(self._formulas, [self._formulas.restrict(formula, types) for formula in value.goal])
        if all(formula is self._formulas.false for formula in goal):
            return None
        known = self._containers.get((types, goal))
        if known is None:
            known = self._containers[types, goal] = Container(types, goal)
            is_plain = len(goal) == 1 and all(not isinstance(part, Or) for part in goal[0].conjuncts())
            self._unread_containers[is_plain].append(known)
            self._unsolved.append(known)
        return known
