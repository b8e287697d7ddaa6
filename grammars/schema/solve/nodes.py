"""The nodes and edges of the graph of a schema's values.

A *goal* is a tuple of formulas, one of which must be true of a value; the index of the first true one is the
value's *verdict*. An object or array is read through *nodes*: a node is the rest of the goal after the
members read so far. If the formulas constrain a member differently, the member has its own goal, and its
verdict chooses the next node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ....runtime.automaton_format import WORD_NAMES
from ...regex.dfa import Dfa
from ..read.formula import ARRAY
from .outcomes import Goal
from .scalars import Content


@dataclass(frozen=True, eq=False)
class UndeclaredNames:
    """The names that no property declares. `dfa` labels each with the index of an edge."""

    dfa: Dfa
    key: Content
    is_any: bool
    """whether every undeclared name has label 0, and `dfa` accepts declared names too"""


@dataclass(eq=False, slots=True)
class Edge:
    """A member: its name, its value, and the next node for each verdict of the value."""

    name: str | int | None
    value: Value
    targets: tuple[Node, ...]


class Node:
    """A position between members. `verdict` is the container's verdict if it ends here, or -1 if it must not
    end."""

    __slots__ = ("edges", "key", "names", "others", "verdict")

    def __init__(self, key: tuple[Goal, int]) -> None:
        self.key = key
        self.verdict = -1
        self.edges: list[Edge] = []
        self.others: list[Edge] = []
        """members with undeclared names; `name` is their label in `names`"""
        self.names: UndeclaredNames | None = None


class Container:
    """An object or array under one goal."""

    def __init__(self, types: int, goal: Goal) -> None:
        self.is_array = types == ARRAY
        self.goal = goal
        self.names: dict[str, int] = {}
        """the declared names with their numbers, in order"""
        self.is_unordered = False
        """whether declared properties come in any order"""
        self.needed: list[Edge | None] = []
        """the required members of an unordered object; None for an impossible one"""
        self.has_deep_others = False
        """whether undeclared names of an unordered object may not fit on the stack; its set then has one more
        name
        """
        self.nodes: dict[tuple[Goal, int], Node] = {}
        self.possible: set[int] = set()
        self.alive: set[Node] = set()
        self.start: Node

    @property
    def set_words(self) -> int:
        """The number of stack places for the set of names of an unordered object."""
        names = len(self.names) + self.has_deep_others
        return -(-names // WORD_NAMES) if self.is_unordered else 0

    def find_reached(self) -> list[Node]:
        """The nodes that possible members lead to."""
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
        """The container's verdict if it ends at the node, or -1 if it must not end there."""
        complete = all(edge is not None and edge.value.possible for edge in self.needed)
        return node.verdict if complete else -1

    def settle(self) -> None:
        """Finds the nodes that can reach an end, once all verdicts are known."""
        sources: dict[Node, list[Node]] = {}
        reached = self.find_reached()
        for node in reached:
            for edge in (*node.edges, *node.others):
                for verdict in edge.value.possible:
                    sources.setdefault(edge.targets[verdict], []).append(node)
        ended = {node for node in reached if self.verdict(node) >= 0}
        self.alive = _find_leading_to(ended, sources, set(reached))

    def number(self, edge: Edge) -> int | None:
        """The member's number in the set of names; None if it has none."""
        if isinstance(edge.name, str):
            return self.names[edge.name]
        return len(self.names) if self.has_deep_others else None

    def can_strand(self, fits: Callable[[Edge], bool] = lambda edge: True) -> bool:
        """Whether an unordered object can reach a node from which its remaining members lead to no end.

        Remaining members are the undeclared names, and the declared names that are on no path to the node.
        Only members that `fits` accepts can come.
        """
        seen = self._find_names_seen(fits)
        reached = self.alive & seen.keys()
        sources: dict[Node, list[Node]] = {}
        for node in reached:
            free = [edge for edge in node.edges if not self._bit(edge) & seen[node]]
            for edge in filter(fits, (*free, *node.others)):
                for verdict in edge.value.possible:
                    sources.setdefault(edge.targets[verdict], []).append(node)
        ended = {node for node in reached if self.verdict(node) >= 0}
        return len(_find_leading_to(ended, sources, reached)) < len(reached)

    def _find_names_seen(self, fits: Callable[[Edge], bool]) -> dict[Node, int]:
        """For each reachable node, the declared names on paths to it, as bits."""
        seen = {self.start: 0}
        pending = [self.start]
        while pending:
            node = pending.pop()
            for edge in filter(fits, (*node.edges, *node.others)):
                names = seen[node] | self._bit(edge)
                for verdict in edge.value.possible:
                    target = edge.targets[verdict]
                    if target not in seen or names & ~seen[target]:
                        seen[target] = seen.get(target, 0) | names
                        pending.append(target)
        return seen

    def _bit(self, edge: Edge) -> int:
        """The bit of a declared name, 0 for other members."""
        return 1 << self.names[edge.name] if isinstance(edge.name, str) else 0


def _find_leading_to(ended: set[Node], sources: Mapping[Node, list[Node]], among: set[Node]) -> set[Node]:
    found, pending = set(ended), list(ended)
    while pending:
        for source in sources.get(pending.pop(), ()):
            if source in among and source not in found:
                found.add(source)
                pending.append(source)
    return found


class Value:
    """A value of any type, with its goal."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.literals: list[tuple[bytes, int]] = []
        """text and verdict of null, true and false"""
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
