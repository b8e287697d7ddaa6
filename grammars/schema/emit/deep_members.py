"""Treats names of unordered objects as seen if the stack has too few free places for their values.

The object must then be able to end without these names, whatever other names it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ....runtime.automaton_format import STACK_DEPTH
from ..solve.nodes import Container, Edge


class StrandingError(Exception):
    """Some unordered objects could not end when names don't fit on the stack, so they must be ordered."""

    def __init__(self, containers: Sequence[Container]) -> None:
        super().__init__()
        self.containers = containers


class DeepMembers:
    """The members of unordered objects, with the first states of the objects and of the values."""

    def __init__(self) -> None:
        self._starts: dict[Container, int] = {}
        self._values: dict[Container, dict[Edge, int]] = {}

    def note(self, container: Container, start: int, edge: Edge, value: int) -> None:
        self._starts[container] = start
        self._values.setdefault(container, {})[edge] = value

    def list_required(self) -> list[tuple[int, int]]:
        """Pairs of an object's first state and the first state of a value that the object must have."""
        return [
            (self._starts[container], value)
            for container in self._starts
            for value in self._list_needed_values(container)
        ]

    def find_full_names(self, needs: NDArray[np.int32]) -> dict[int, dict[int, int]]:
        """For each object's first state, its names as bits, by the least number of free places that they
        need.

        `needs`: for each state the least number of free places with which the reply can end. Raises
        StrandingError.
        """
        ending = {container: at for container, at in self._starts.items() if needs[at] <= STACK_DEPTH}
        full = {container: self._find_full(container, needs) for container in ending}
        stranding = [container for container, names in full.items() if names is None]
        if stranding:
            raise StrandingError(stranding)
        return {ending[container]: names for container, names in full.items() if names}

    def _find_full(self, container: Container, needs: NDArray[np.int32]) -> dict[int, int] | None:
        """The names of one object; None if the object can't end without them."""
        members = _Members(container, {edge: int(needs[at]) for edge, at in self._values[container].items()})
        always = int(max(needs[[self._starts[container], *self._list_needed_values(container)]]))
        reserves = sorted({always, *(need for need in members.needs.values() if need > always)})
        enough = [reserve for reserve in reserves if not container.can_strand(members.make_test(reserve))]
        if always not in enough:
            return None
        full: dict[int, int] = {}
        for number, need in members.need_of_name.items():
            if need > always:
                least = next((reserve for reserve in enough if reserve >= need), STACK_DEPTH + 1)
                full[least] = full.get(least, 0) | 1 << number
        return full

    def _list_needed_values(self, container: Container) -> Iterator[int]:
        names = {edge.name for edge in container.needed if edge is not None}
        return (value for edge, value in self._values[container].items() if edge.name in names)


class _Members:
    """The free places that an object's members need. Members with the same bit in the object's set
    need the same number."""

    def __init__(self, container: Container, needs: dict[Edge, int]) -> None:
        self._container = container
        self.needs = needs
        self.need_of_name: dict[int, int] = {}
        for edge, need in needs.items():
            number = container.number(edge)
            if number is not None:
                self.need_of_name[number] = max(need, self.need_of_name.get(number, 0))

    def make_test(self, reserve: int) -> Callable[[Edge], bool]:
        """Returns a test for members that fit into this number of free places."""

        def fits(edge: Edge) -> bool:
            if edge not in self.needs:
                return False
            number = self._container.number(edge)
            return (self.needs[edge] if number is None else self.need_of_name[number]) <= reserve

        return fits
