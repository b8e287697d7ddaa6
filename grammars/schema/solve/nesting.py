"""Finds which containers can be nested in which, and so whether required values can be nested too deep."""

from __future__ import annotations

from .nodes import Container, Value
from .solver import Solver


class Nesting:
    """The nesting of the containers inside a value. `places`: stack places for containers."""

    def __init__(self, solver: Solver, whole: Value, places: int) -> None:
        self._solver = solver
        self._places = places
        self._outermost = _containers(whole)
        self._inside: dict[Container, dict[Container, bool]] = {}
        """for each container, the containers that can be its members, and whether some member must be one"""
        pending = list(self._outermost)
        while pending:
            container = pending.pop()
            if container not in self._inside:
                self._inside[container] = self._find_inside(container)
                pending += self._inside[container]

    def _find_inside(self, outer: Container) -> dict[Container, bool]:
        inside: dict[Container, bool] = {}
        for node in outer.alive:
            for edge in (*node.edges, *node.others):
                kept = self._solver.reduce(edge, outer.alive)
                if kept is None:
                    continue
                is_needed = bool(kept[0].possible - kept[0].scalar_verdicts)
                for container in _containers(kept[0]):
                    inside[container] = is_needed or inside.get(container, False)
        return inside

    def can_get_stuck(self) -> bool:
        """Whether an object may require a container where the stack is full."""
        if not any(is_needed for inside in self._inside.values() for is_needed in inside.values()):
            return False
        levels = {container: _places(container) for container in self._outermost}
        pending = list(levels)
        while pending:
            outer = pending.pop()
            for inner, is_needed in self._inside[outer].items():
                level = levels[outer] + _places(inner)
                if level > self._places:
                    if is_needed:
                        return True
                elif level > levels.get(inner, 0):
                    levels[inner] = level
                    pending.append(inner)
        return False

    def reserve_others(self) -> None:
        """Gives the sets of unordered objects one more bit, which tells whether undeclared names fit on the
        stack."""
        for container in self._inside:
            others = [edge for node in container.alive for edge in node.others]
            can_lack = len(container.alive) > 1 or any(not edge.value.scalar_verdicts for edge in others)
            container.has_deep_others = container.is_unordered and bool(others) and can_lack


def _places(container: Container) -> int:
    return 1 + container.set_words


def _containers(value: Value) -> list[Container]:
    return [each for each in (value.object, value.array) if each is not None and each.possible]
