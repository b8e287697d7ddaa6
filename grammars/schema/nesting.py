"""Which containers can stand in which, to tell whether what a schema requires can be nested too deep."""

from __future__ import annotations

from ..stack_automaton import MAX_DEPTH
from .goals import Container, Value


class Nesting:
    """Of the values that an automaton is made of."""

    def __init__(self) -> None:
        self._inside: dict[Container, dict[Container, bool]] = {}
        """the containers that members of a container may be, and whether some member can be nothing else"""

    def note(self, outer: Container, value: Value) -> None:
        """A member of `outer` may have this value."""
        is_needed = bool(value.possible - value.scalar_verdicts)
        inside = self._inside.setdefault(outer, {})
        for container in _containers(value):
            inside[container] = is_needed or inside.get(container, False)

    def can_get_stuck(self, whole: Value) -> bool:
        """Whether a place that needs a container can come where the stack is full."""
        levels = {container: _places(container) for container in _containers(whole)}
        pending = list(levels)
        while pending:
            outer = pending.pop()
            for inner, is_needed in self._inside.get(outer, {}).items():
                level = levels[outer] + _places(inner)
                if level > MAX_DEPTH:
                    if is_needed:
                        return True
                elif level > levels.get(inner, 0):
                    levels[inner] = level
                    pending.append(inner)
        return False


def _places(container: Container) -> int:
    return 1 + container.set_words


def _containers(value: Value) -> list[Container]:
    return [each for each in (value.object, value.array) if each is not None and each.possible]
