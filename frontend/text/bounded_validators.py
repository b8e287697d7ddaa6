"""jsonschema's validators with a bound on their work, as schemas come from clients.

A check runs on the event loop. References that double at each level, regexes that backtrack and comparisons
of each pair of elements would hold it up for hours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import prod
from typing import Any

import attrs
import regex
from jsonschema import ValidationError, validators
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

MOST_STEPS = 10_000  # keywords that are looked at, and elements of those that are lists: about 50 ms
LONGEST_REGEX = 1000  # characters; compiling a long one takes long, too
MOST_REPEATS = 20_000  # all counts multiplied, as repeats may be nested and are compiled one by one
REGEX_SECONDS = 0.02  # of one search
_STEPS_OF_A_SECOND = 200_000
_REPEATS = re.compile(r"\{(?:\d*,)?(\d+)(?:,\d*)?\}")
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
        own = _BY_REGEX.get(name)
        if own is not None and (name in ("pattern", "patternProperties") or "patternProperties" in schema):
            return own(validator, value, instance, schema)
        return check(validator, value, instance, schema)

    return counted


def _matches(pattern: str, text: str) -> bool:
    repeats = prod(max(int(number), 1) for number in _REPEATS.findall(pattern))
    if len(pattern) > LONGEST_REGEX or repeats > MOST_REPEATS:
        raise TooCostlyError
    start = time.perf_counter()
    try:
        return regex.search(pattern, text, timeout=REGEX_SECONDS) is not None
    except TimeoutError:
        raise TooCostlyError from None
    finally:
        _budget.get().spend(int((time.perf_counter() - start) * _STEPS_OF_A_SECOND))


def _pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _matches(value, instance):
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _pattern_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    for pattern, inner in value.items() if isinstance(instance, dict) else ():
        for name, part in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(part, inner, path=name, schema_path=pattern)


def _further_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    patterns = schema["patternProperties"]
    for name, part in instance.items() if isinstance(instance, dict) else ():
        if name not in schema.get("properties", {}) and not any(_matches(each, name) for each in patterns):
            yield from validator.descend(part, value, path=name)


_BY_REGEX: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _further_properties,
    "unevaluatedProperties": _further_properties,
}


def _steps(name: str, value: Any, instance: Any) -> int:
    size = len(value) if isinstance(value, list | dict) else 0
    if name == "uniqueItems" and isinstance(instance, list):
        return 1 + len(instance) ** 2 // 16
    return 1 + size
