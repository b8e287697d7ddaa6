"""Checks calls that no grammar has constrained against their tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from jsonschema.validators import validator_for

from .bounded_validator import BoundedValidator, resolver_of
from .call_syntax import Call
from .schema_mistakes import find_mistake

MOST_SHOWN = 60  # characters of a value
MAX_WITH_REFERENCES = 20_000  # characters of a schema whose references are looked up, which takes about 0.1 s
CallCheck = Callable[[Call], bool]


def check_against(tools: Sequence[Mapping[str, Any]], unchecked: Collection[str] = ()) -> CallCheck:
    """Returns a check of a call's name, and of its arguments against that tool's JSON schema.

    A tool without parameters, with an invalid schema, or with a name in `unchecked` takes any object. Nothing
    outside the schema is fetched: a reference to it fails the call, and so does a check that takes too long.
    """
    functions = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    functions |= dict.fromkeys(functions.keys() & unchecked)
    validators: dict[str, BoundedValidator | None] = {}

    def fits(call: Call) -> bool:
        if call.name not in functions:
            return False
        if call.name not in validators:
            validators[call.name] = _validator(functions[call.name])
        validator = validators[call.name]
        return validator is None or _valid(validator, call.arguments)

    return fits


def mistake_in(schema: Any) -> str | None:
    """Describes a mistake in a JSON schema: an invalid value with its place, or a reference that leads
    nowhere.

    The references of a long schema are not looked up.
    """
    mistake = find_mistake(schema)
    if mistake is not None:
        is_bound = mistake.place.endswith(("/exclusiveMinimum", "/exclusiveMaximum"))
        is_of_draft4 = is_bound and mistake.value is True and "$schema" not in schema
        hint = ' (draft 4 allows it, if "$schema" names that)' if is_of_draft4 else ""
        return f"the value at #{mistake.place} makes no sense: {json.dumps(mistake.value)[:MOST_SHOWN]}{hint}"
    if len(json.dumps(schema)) > MAX_WITH_REFERENCES:
        return None
    try:
        resolver = resolver_of(schema, validator_for(schema))
    except Exception as error:  # the linear check may accept what the libraries do not expect
        return f"it can't be read: {str(error)[:MOST_SHOWN]}"
    for reference in _references_within(schema):
        if not _leads_somewhere(resolver.lookup, reference):
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


def _leads_somewhere(look_up: Callable[[str], object], reference: str) -> bool:
    try:
        look_up(reference)
    except Exception:  # a pointer into a value that is not an object raises other errors than `Unresolvable`
        return False
    return True


def _validator(schema: Any) -> BoundedValidator | None:
    if not schema or find_mistake(schema) is not None:
        return None
    try:
        return BoundedValidator(schema)
    except Exception:  # the linear check may accept what the libraries do not expect
        return None


def _valid(validator: BoundedValidator, arguments: str) -> bool:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return validator.is_valid(value)
