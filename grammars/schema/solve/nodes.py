"""The graph of a schema's values: what may stand in each object and array, and what each member leaves to do.

A *goal* is a tuple of formulas of which one must turn out true of a value; the index of the first is the
*verdict*. An object or array is read through *nodes*: the formulas that are left of the goal after
the members read so far. A member that several formulas see differently has a goal of its own, and its
verdict chooses the next node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...machine.stack_automaton import WORD_NAMES
from ...regex.dfa import Dfa
from ..read.formula import ARRAY
from .outcomes import Goal
from .scalars import Content


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
