"""Checks calls that no grammar has constrained against their tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .bounded_validator import BoundedValidator
from .call_syntax import Call
from .schema_mistakes import find_mistake

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
            validators[call.name] = _make_validator(functions[call.name])
        validator = validators[call.name]
        return validator is None or _is_valid(validator, call.arguments)

    return fits


def _make_validator(schema: Any) -> BoundedValidator | None:
    if not schema or find_mistake(schema) is not None:
        return None
    try:
        return BoundedValidator(schema)
    except Exception:  # the linear check may accept what the libraries do not expect
        return None


def _is_valid(validator: BoundedValidator, arguments: str) -> bool:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return validator.is_valid(value)
