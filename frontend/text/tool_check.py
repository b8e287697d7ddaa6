"""Whether a call that a model wrote of its own accord is one that its tools take."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator

from .bounded_validators import TooCostlyError, bounded_validator_for, bounded_work
from .call_syntax import Call

MOST_SHOWN = 60  # characters of a value
CallCheck = Callable[[Call], bool]


def check_against(tools: Sequence[Mapping[str, Any]], unchecked: Collection[str] = ()) -> CallCheck:
    """A check of the call's name and of its arguments against that tool's JSON schema.

    A tool without parameters, or with parameters that are no schema, takes any object, and so do those with
    `unchecked` names. Nothing outside a schema is fetched: a reference that leads there fails the call,
    and so does a check that takes too long.
    """
    functions = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    functions |= dict.fromkeys(functions.keys() & unchecked)
    validators: dict[str, Validator | None] = {}

    def fits(call: Call) -> bool:
        if call.name not in functions:
            return False
        if call.name not in validators:
            validators[call.name] = _validator(functions[call.name])
        validator = validators[call.name]
        return validator is None or _valid(validator, call.arguments)

    return fits


def mistake_in(schema: Any) -> str | None:
    """What is wrong in a JSON schema: a value that makes no sense, with its place, or a reference.

    Of a schema that takes too long to look through nothing is said.
    """
    try:
        with bounded_work():
            return _mistake_in(schema)
    except TooCostlyError:
        return None


def _mistake_in(schema: Any) -> str | None:
    kind = bounded_validator_for(schema)
    error = best_match(bounded_validator_for(kind.META_SCHEMA)(kind.META_SCHEMA).iter_errors(schema))
    if error is not None:
        place = "".join(f"/{part}" for part in error.absolute_path)
        return f"the value at #{place} makes no sense: {json.dumps(error.instance)[:MOST_SHOWN]}"
    for reference in _references_within(schema):
        if not _leads_somewhere(kind(schema), reference):
            return f"the reference {reference!r} leads nowhere"
    return None


def _references_within(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            yield reference
    if isinstance(schema, dict | list):
        for part in schema.values() if isinstance(schema, dict) else schema:
            yield from _references_within(part)


def _leads_somewhere(validator: Validator, reference: str) -> bool:
    try:
        validator.evolve(schema={"$ref": reference}).is_valid(None)
    except RecursionError:  # to itself
        return True
    except TooCostlyError:
        raise
    except Exception:  # which comes from a library beneath jsonschema
        return False
    return True


def _validator(schema: Any) -> Validator | None:
    if not schema:
        return None
    kind = bounded_validator_for(schema)
    meta = bounded_validator_for(kind.META_SCHEMA)(kind.META_SCHEMA)
    try:
        with bounded_work():
            return kind(schema) if meta.is_valid(schema) else None
    except TooCostlyError:
        return kind(schema)


def _valid(validator: Validator, arguments: str) -> bool:
    try:
        with bounded_work():
            return bool(validator.is_valid(json.loads(arguments)))
    except Exception:  # an unresolvable reference, too much to check
        return False
