"""The values of one schema, made when they are needed."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import TooLargeError
from ..read.document import SchemaDocument
from ..read.formula import Fact, Format, Formula, MinLength, Pattern, Strings
from .nodes import Container, Edge, Node, Value
from .outcomes import Goal
from .scalars import Scalars

MAX_NODES = 20_000
MAX_EDGES = 200_000
MAX_FREE_NODES = 128  # maximal nodes of an unordered object
MAX_FREE_STATES = 24_000  # maximal states of all unordered objects of a schema, except one node each
_OF_NAME = 2
_OF_VALUE = 4


class ValueGraph:
    """Has one value for each goal. A new value is unread until the solver takes it."""

    def __init__(self, document: SchemaDocument, scalars: Scalars, *, any_order: bool) -> None:
        self.document = document
        self.formulas = document.formulas
        self.scalars = scalars
        self.any_order = any_order
        self.free_order = FreeOrder()
        self._values: dict[Goal, Value] = {}
        self._unread: list[Value] = []
        self._size = 0

    def value(self, formulas: Iterable[Formula]) -> Value:
        """The value whose goal is these formulas."""
        goal = tuple(self.document.expand(formula) for formula in formulas)
        known = self._values.get(goal)
        if known is None:
            known = self._values[goal] = Value(goal)
            self._unread.append(known)
        return known

    @property
    def unread(self) -> int:
        """The number of unread values."""
        return len(self._unread)

    def take_unread(self) -> Value | None:
        """Returns the newest unread value, which then counts as read."""
        return self._unread.pop() if self._unread else None

    def forget_after(self, unread: int) -> None:
        """Drops all unread values but the first `unread` ones. Nothing may refer to them."""
        for value in self._unread[unread:]:
            del self._values[value.goal]
        del self._unread[unread:]

    def count(self, nodes: int, edges: int) -> None:
        """Adds to the counts of nodes and edges. Raises TooLargeError beyond `MAX_NODES` or `MAX_EDGES`."""
        self._size += nodes * (MAX_EDGES // MAX_NODES) + edges
        if self._size > MAX_EDGES:
            raise TooLargeError(f"more than {MAX_NODES} nodes or {MAX_EDGES} members")


class FreeOrder:
    """Estimates how many states are left for unordered objects, in which each node has states for all
    names."""

    def __init__(self) -> None:
        self._left = MAX_FREE_STATES

    def most_nodes(self, start: Node) -> int:
        """The number of nodes that an object may have if each of them has as many states as its start."""
        return min(MAX_FREE_NODES, 1 + self._left // max(_states(start), 1))

    def take(self, container: Container) -> None:
        self._left -= (len(container.nodes) - 1) * _states(container.start)


def _states(node: Node) -> int:
    return sum(map(_states_of_member, (*node.edges, *node.others)))


def _states_of_member(edge: Edge) -> int:
    name = _OF_NAME + len(edge.name) if isinstance(edge.name, str) else 0
    atoms = dict.fromkeys(atom for formula in edge.value.goal for atom in formula.atoms())
    return name + sum(_states_of_fact(atom.fact) for atom in atoms)


def _states_of_fact(fact: Fact) -> int:
    match fact:
        case Strings(values):
            return sum(map(len, values)) // 2  # halved, because texts share prefixes and suffixes
        case Format() | Pattern():
            return 50
        case MinLength():
            return 32
    return _OF_VALUE
