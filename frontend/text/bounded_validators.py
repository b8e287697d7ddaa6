"""jsonschema's validators with a bound on their work, as schemas come from clients.

A check runs on the event loop. References that double at each level, regexes that backtrack and comparisons
of each pair of elements would hold it up for hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import attrs
from jsonschema import validators
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

MOST_STEPS = 10_000  # keywords that are looked at, and elements of those that are lists: about 50 ms
# Python's regexes can take exponential time, so these are not checked. Neither is what depends on them.
_BY_REGEX = frozenset(("pattern", "patternProperties"))
_BESIDE_REGEX = frozenset(("additionalProperties", "unevaluatedProperties"))
Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class TooCostlyError(Exception):
    """The check takes more than `MOST_STEPS`."""


class _Budget:
    def __init__(self) -> None:
        self.steps = MOST_STEPS

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise TooCostlyError


_budget: ContextVar[_Budget] = ContextVar("budget of a check")


@contextmanager
def bounded_work() -> Iterator[None]:
    """What validators do inside takes at most `MOST_STEPS`; then they raise `TooCostlyError`."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def bounded_validator_for(schema: Any) -> type[Validator]:
    """The class for the schema's dialect, to be used in `bounded_work`."""
    return _bounded(validator_for(schema))


@cache
def _bounded(kind: type[Validator]) -> type[Validator]:
    keywords = {name: _counted(name, check) for name, check in kind.VALIDATORS.items()}
    bounded: Any = validators.extend(kind, validators=keywords)
    names = {field.name: field.alias for field in attrs.fields(bounded) if field.init}

    def evolve(self: Any, **changes: Any) -> Any:
        """jsonschema's own goes on with its unbounded class where a part of a schema has a `$schema`."""
        return bounded(**{alias: getattr(self, name) for name, alias in names.items()} | changes)

    bounded.evolve = evolve
    found: type[Validator] = bounded
    return found


def _counted(name: str, check: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        _budget.get().spend(_steps(name, value, instance))
        if name in _BY_REGEX or (name in _BESIDE_REGEX and "patternProperties" in schema):
            return None
        return check(validator, value, instance, schema)

    return counted


def _steps(name: str, value: Any, instance: Any) -> int:
    size = len(value) if isinstance(value, list | dict) else 0
    if name == "uniqueItems" and isinstance(instance, list):
        return 1 + len(instance) ** 2 // 16
    return 1 + size
