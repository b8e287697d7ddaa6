"""Which containers can stand in which, to tell whether what a schema requires can be nested too deep."""

from __future__ import annotations

from ..stack_automaton import MAX_DEPTH
from .goals import Container, Value


class Nesting:
    """Of the values that an automaton is made of."""

    def __init__(self) -> None:
        self._inside: dict[Container, dict[Container, None]] = {}
        self._needed: set[Container] = set()

    def note(self, outer: Container, value: Value) -> None:
        """A member of `outer` may have this value."""
        containers = _containers(value)
        self._inside.setdefault(outer, {}).update(dict.fromkeys(containers))
        if value.possible - value.scalar_verdicts:
            self._needed.update(containers)

    def can_get_stuck(self, whole: Value) -> bool:
        """Whether a place that needs a container can come where the stack is full."""
        levels: dict[Container, int] = {}
        pending = [(container, 0) for container in _containers(whole)]
        while pending:
            container, before = pending.pop()
            level = before + (2 if container.is_unordered else 1)
            if before > MAX_DEPTH or level <= levels.get(container, 0):
                continue
            levels[container] = level
            if level > MAX_DEPTH and container in self._needed:
                return True
            pending += [(inner, level) for inner in self._inside.get(container, ())]
        return False


def _containers(value: Value) -> list[Container]:
    return [each for each in (value.object, value.array) if each is not None and each.possible]
