"""The cost of unordered properties: each node of an unordered object has states for all names."""

from __future__ import annotations

from ..read.formula import Fact, Format, MinLength, Pattern, Strings
from .nodes import Container, Edge, Node

MAX_NODES = 128
MAX_STATES = 24_000  # of all objects of a schema, not counting one node for each
_OF_NAME = 2
_OF_VALUE = 4


class FreeOrder:
    """Estimates how many states are left for unordered objects."""

    def __init__(self) -> None:
        self._left = MAX_STATES

    def most_nodes(self, start: Node) -> int:
        """The most nodes that an object may have if all of them have as many states as its start."""
        return min(MAX_NODES, 1 + self._left // max(_states(start), 1))

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
            return sum(map(len, values)) // 2  # texts share prefixes and suffixes
        case Format() | Pattern():
            return 50
        case MinLength():
            return 32
    return _OF_VALUE
