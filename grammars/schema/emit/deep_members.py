"""Which names of an object count as seen where the stack has too little room for their values.

Without them the object must still come to its end, whatever was seen of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...machine.stack_automaton import MAX_DEPTH
from ..solve.nodes import Container, Edge


class StrandingError(Exception):
    """Objects whose order is free can't end where names lack room: their order must not be."""

    def __init__(self, containers: Sequence[Container]) -> None:
        super().__init__()
        self.containers = containers


class Rooms:
    """The members of objects whose order is free, by the states where objects and values begin."""

    def __init__(self) -> None:
        self._starts: dict[Container, int] = {}
        self._values: dict[Container, dict[Edge, int]] = {}

    def note(self, container: Container, start: int, edge: Edge, value: int) -> None:
        self._starts[container] = start
        self._values.setdefault(container, {})[edge] = value

    def required(self) -> list[tuple[int, int]]:
        """Where an object begins, and where a value begins that it must have."""
        return [
            (self._starts[container], value)
            for container in self._starts
            for value in self._needed_values(container)
        ]

    def full_names(self, needs: NDArray[np.int32]) -> dict[int, dict[int, int]]:
        """For each object's start the names that have no room, as bits, by the room that they lack.

        Raises StrandingError. `needs`: of each state, the places that it takes to come to an end.
        """
        ending = {container: at for container, at in self._starts.items() if needs[at] <= MAX_DEPTH}
        full = {container: self._full_in(container, needs) for container in ending}
        stranding = [container for container, names in full.items() if names is None]
        if stranding:
            raise StrandingError(stranding)
        return {ending[container]: names for container, names in full.items() if names}

    def _full_in(self, container: Container, needs: NDArray[np.int32]) -> dict[int, int] | None:
        """None if the object can't end without them."""
        members = _Members(container, {edge: int(needs[at]) for edge, at in self._values[container].items()})
        always = int(max(needs[[self._starts[container], *self._needed_values(container)]]))
        rooms = sorted({always, *(need for need in members.needs.values() if need > always)})
        enough = [room for room in rooms if not container.can_strand(members.having(room))]
        if always not in enough:
            return None
        full: dict[int, int] = {}
        for number, need in members.need_of_name.items():
            if need > always:
                least = next((room for room in enough if room >= need), MAX_DEPTH + 1)
                full[least] = full.get(least, 0) | 1 << number
        return full

    def _needed_values(self, container: Container) -> Iterator[int]:
        names = {edge.name for edge in container.needed if edge is not None}
        return (value for edge, value in self._values[container].items() if edge.name in names)


class _Members:
    """What the members of an object need; those that its set doesn't tell apart need the same."""

    def __init__(self, container: Container, needs: dict[Edge, int]) -> None:
        self._container = container
        self.needs = needs
        self.need_of_name: dict[int, int] = {}
        for edge, need in needs.items():
            number = container.number(edge)
            if number is not None:
                self.need_of_name[number] = max(need, self.need_of_name.get(number, 0))

    def having(self, room: int) -> Callable[[Edge], bool]:
        """Tells which members can come with that much room."""

        def has_room(edge: Edge) -> bool:
            if edge not in self.needs:
                return False
            number = self._container.number(edge)
            return (self.needs[edge] if number is None else self.need_of_name[number]) <= room

        return has_room
