"""What has to be known of a value while it is read, and which ways of reading it can still end well.

A *goal* is a tuple of formulas of which one must turn out true of a value; the index of the first is the
*verdict*. An object or array is read through *nodes*: the formulas that are left of the goal after
the members read so far. A member that several formulas see differently has a goal of its own, and its
verdict chooses the next node. Verdicts that cannot happen are found by a least fixpoint over all
goals, so that recursive schemas without a finite value are known to be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..errors import TooLargeError
from ..stack_automaton import WORD_NAMES
from .dfa import Dfa
from .formula import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, Formula
from .free_order import FreeOrder
from .keywords import Keywords
from .outcomes import Goal, decided
from .scalars import Content, Scalars, counted_lengths

MAX_NODES = 20_000
MAX_EDGES = 200_000


@dataclass(frozen=True, eq=False)
class UndeclaredNames:
    """Names that no property declares: `dfa` labels them with the index of an edge."""

    dfa: Dfa
    key: Content
    is_any: bool
    """every undeclared name has label 0, and `dfa` accepts declared ones too"""


class Edge:
    """A member: its value's goal, and for each verdict the node that follows it."""

    __slots__ = ("name", "targets", "value")

    def __init__(self, name: str | int | None, value: Value, targets: tuple[Node, ...]) -> None:
        self.name = name
        self.value = value
        self.targets = targets


class Node:
    """A place between members. `verdict` is that of the container if it ends here, -1 if it may not."""

    __slots__ = ("edges", "key", "names", "others", "verdict")

    def __init__(self, key: tuple[Goal, int]) -> None:
        self.key = key
        self.verdict = -1
        self.edges: list[Edge] = []
        self.others: list[Edge] = []
        """members with undeclared names; their `name` is the label in `names`"""
        self.names: UndeclaredNames | None = None


class Container:
    """An object or array under one goal."""

    def __init__(self, types: int, goal: Goal) -> None:
        self.is_array = types == ARRAY
        self.goal = goal
        self.names: dict[str, int] = {}
        """the declared ones, in order, with their numbers"""
        self.is_unordered = False
        """an object of one node whose declared properties come in any order"""
        self.needed: list[Edge | None] = []
        """in such an object, the members that it must have; None for one that can't be"""
        self.has_deep_others = False
        """in such an object, undeclared names may lack room: they are one name more in its set"""
        self.nodes: dict[tuple[Goal, int], Node] = {}
        self.possible: set[int] = set()
        self.alive: set[Node] = set()
        self.start: Node

    @property
    def set_words(self) -> int:
        """Places of the stack that the set of its names takes, if their order is free."""
        names = len(self.names) + self.has_deep_others
        return -(-names // WORD_NAMES) if self.is_unordered else 0

    def reached(self) -> list[Node]:
        """Nodes that possible members lead to."""
        seen = {self.start}
        order = [self.start]
        for node in order:
            for edge in (*node.edges, *node.others):
                for verdict in edge.value.possible:
                    target = edge.targets[verdict]
                    if target not in seen:
                        seen.add(target)
                        order.append(target)
        return order

    def verdict(self, node: Node) -> int:
        """Of the container if it ends at the node, -1 if it may not."""
        complete = all(edge is not None and edge.value.possible for edge in self.needed)
        return node.verdict if complete else -1

    def settle(self) -> None:
        """Finds the nodes from which an end is reached, once all verdicts are known."""
        sources: dict[Node, list[Node]] = {}
        reached = self.reached()
        for node in reached:
            for edge in (*node.edges, *node.others):
                for verdict in edge.value.possible:
                    sources.setdefault(edge.targets[verdict], []).append(node)
        ended = {node for node in reached if self.verdict(node) >= 0}
        self.alive = _leading_to(ended, sources, set(reached))

    def number(self, edge: Edge) -> int | None:
        """Of a member in the set of names, if it is told apart there."""
        if isinstance(edge.name, str):
            return self.names[edge.name]
        return len(self.names) if self.has_deep_others else None

    def can_strand(self, has_room: Callable[[Edge], bool] = lambda edge: True) -> bool:
        """Whether, with properties in any order, those that are left may not lead to an end.

        Only undeclared names, and declared ones that no way to a node has seen, are sure to be left, and
        only those members can be that have room.
        """
        seen = self._names_seen(has_room)
        reached = self.alive & seen.keys()
        sources: dict[Node, list[Node]] = {}
        for node in reached:
            free = [edge for edge in node.edges if not self._bit(edge) & seen[node]]
            for edge in filter(has_room, (*free, *node.others)):
                for verdict in edge.value.possible:
                    sources.setdefault(edge.targets[verdict], []).append(node)
        ended = {node for node in reached if self.verdict(node) >= 0}
        return len(_leading_to(ended, sources, reached)) < len(reached)

    def _names_seen(self, has_room: Callable[[Edge], bool]) -> dict[Node, int]:
        """The declared names, as bits, that some way to a node has seen, of nodes that there is a way to."""
        seen = {self.start: 0}
        pending = [self.start]
        while pending:
            node = pending.pop()
            for edge in filter(has_room, (*node.edges, *node.others)):
                names = seen[node] | self._bit(edge)
                for verdict in edge.value.possible:
                    target = edge.targets[verdict]
                    if target not in seen or names & ~seen[target]:
                        seen[target] = seen.get(target, 0) | names
                        pending.append(target)
        return seen

    def _bit(self, edge: Edge) -> int:
        """Of a declared name, 0 for others."""
        return 1 << self.names[edge.name] if isinstance(edge.name, str) else 0


def _leading_to(ended: set[Node], sources: Mapping[Node, list[Node]], among: set[Node]) -> set[Node]:
    found, pending = set(ended), list(ended)
    while pending:
        for source in sources.get(pending.pop(), ()):
            if source in among and source not in found:
                found.add(source)
                pending.append(source)
    return found


class Value:
    """A value of any type under one goal."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.literals: list[tuple[bytes, int]] = []
        """spelling and verdict of null, true and false"""
        self.strings: Goal | None = None
        self.numbers: Goal | None = None
        self.object: Container | None = None
        self.array: Container | None = None
        self.scalar_verdicts: set[int] = set()

    @property
    def possible(self) -> set[int]:
        verdicts = self.scalar_verdicts
        for container in (self.object, self.array):
            if container is not None and container.possible:
                verdicts = verdicts | container.possible
        return verdicts


class Goals:
    """Makes values and containers on demand; `solved` says which verdicts of a value can happen."""

    def __init__(self, keywords: Keywords, scalars: Scalars, *, any_order: bool) -> None:
        self.keywords = keywords
        self.any_order = any_order
        self.formulas = keywords.formulas
        self.scalars = scalars
        self._values: dict[Goal, Value] = {}
        self._containers: dict[tuple[int, Goal], Container] = {}
        self._unsolved: list[Container] = []
        self._unread: list[Value] = []
        self._unread_containers: tuple[list[Container], list[Container]] = [], []
        """those that may have many nodes, and others, which come first: they may have to be refused"""
        self._size = 0
        self.free_order = FreeOrder()

    def dissolve(self) -> None:
        """Cuts the circles in which containers refer to each other."""
        for container in self._containers.values():
            for node in container.nodes.values():
                node.edges, node.others = [], []
            container.nodes = {}

    def value(self, formulas: Iterable[Formula]) -> Value:
        goal = tuple(self.keywords.expanded(formula) for formula in formulas)
        known = self._values.get(goal)
        if known is None:
            known = self._values[goal] = Value(goal)
            self._unread.append(known)
        return known

    @property
    def unread(self) -> int:
        """How many values nobody has looked at."""
        return len(self._unread)

    def forget_after(self, unread: int) -> None:
        """Those that came after so many: nothing refers to them."""
        for value in self._unread[unread:]:
            del self._values[value.goal]
        del self._unread[unread:]

    def solved(self, formulas: Iterable[Formula]) -> Value:
        value = self.value(formulas)
        self._solve_all()
        return value

    def put_in_order(self, containers: Iterable[Container]) -> None:
        """Gives objects whose order was free the declared order of properties."""
        from .objects import read_in_order

        for container in containers:
            read_in_order(self, container)
            self._unsolved.append(container)
        self._solve_all()

    def _solve_all(self) -> None:
        while self._unread or self._unsolved:
            while self._unread:
                self._read(self._unread.pop())
            container = self._next_container()
            if container is None:
                self._solve()
            else:
                self._read_container(container)

    def _next_container(self) -> Container | None:
        return next((unread.pop() for unread in reversed(self._unread_containers) if unread), None)

    def _read_container(self, container: Container) -> None:
        from .arrays import read_array
        from .objects import read_object

        (read_array if container.is_array else read_object)(self, container)

    def _solve(self) -> None:
        fresh, self._unsolved = self._unsolved[::-1], []
        changing = True
        while changing:
            changing = False
            for container in fresh:
                possible = {container.verdict(node) for node in container.reached()} - {-1}
                if possible != container.possible:
                    container.possible = possible
                    changing = True
        for container in fresh:
            container.settle()
        self.put_in_order([each for each in fresh if each.is_unordered and each.can_strand()])

    def reduced(self, edge: Edge, alive: set[Node]) -> tuple[Value, tuple[Node, ...]] | None:
        """The edge's value and targets without verdicts that lead nowhere; None if none is left."""
        possible = edge.value.possible
        kept = [
            verdict for verdict, target in enumerate(edge.targets) if verdict in possible and target in alive
        ]
        if not kept:
            return None
        if len(kept) == len(edge.targets):
            return edge.value, edge.targets
        value = self.solved(self._first(edge.value.goal, kept))
        return value, tuple(edge.targets[verdict] for verdict in kept)

    def _first(self, goal: Goal, kept: list[int]) -> Iterable[Formula]:
        """A goal of some of the verdicts, for values that have these under the whole goal."""
        *first, last = (goal[verdict] for verdict in kept)
        if last is self.formulas.true:
            dropped = [goal[verdict] for verdict in range(kept[-1]) if verdict not in kept]
            last = self.formulas.all_of(map(self.formulas.negation, dropped))
        return *first, last

    def count(self, nodes: int, edges: int) -> None:
        self._size += nodes * (MAX_EDGES // MAX_NODES) + edges
        if self._size > MAX_EDGES:
            raise TooLargeError(f"more than {MAX_NODES} places or {MAX_EDGES} members to keep apart")

    def _read(self, value: Value) -> None:
        make = self.formulas
        for text, types, fact in (
            (b"null", NULL, None),
            (b"true", BOOLEAN, True),
            (b"false", BOOLEAN, False),
        ):
            for verdict, formula in enumerate(value.goal):
                if self._holds(make.restricted(formula, types), fact):
                    value.literals.append((text, verdict))
                    break
        value.strings = self._scalar(value, STRING)
        value.numbers = self._scalar(value, NUMBER)
        value.scalar_verdicts.update(verdict for _, verdict in value.literals)
        value.object = self._container(value, OBJECT)
        value.array = self._container(value, ARRAY)

    def _scalar(self, value: Value, types: int) -> Goal | None:
        goal = decided(self.formulas, [self.formulas.restricted(formula, types) for formula in value.goal])
        if all(formula is self.formulas.false for formula in goal):
            return None
        is_any = len(goal) == 1 and goal[0] is self.formulas.true
        if is_any or (types == STRING and counted_lengths(goal) is not None):
            value.scalar_verdicts.add(0)
            return goal
        labels = self.scalars.string_dfa if types == STRING else self.scalars.number_dfa
        verdicts = {int(label) for label in labels(goal).labels} - {-1}
        value.scalar_verdicts |= verdicts
        return goal if verdicts else None

    def _holds(self, formula: Formula, fact: bool | None) -> bool:
        """Whether a formula over null, or over one boolean, is true of it."""
        decided = self.formulas.rewritten(
            formula, ("is", fact), lambda atom: self.formulas.true if fact else self.formulas.false
        )
        return decided is self.formulas.true

    def _container(self, value: Value, types: int) -> Container | None:
        goal = decided(self.formulas, [self.formulas.restricted(formula, types) for formula in value.goal])
        if all(formula is self.formulas.false for formula in goal):
            return None
        known = self._containers.get((types, goal))
        if known is None:
            known = self._containers[types, goal] = Container(types, goal)
            is_plain = len(goal) == 1 and all(part.kind != "or" for part in goal[0].conjuncts())
            self._unread_containers[is_plain].append(known)
            self._unsolved.append(known)
        return known
