"""Checks calls that no grammar has constrained against their tools' schemas, in a bounded number of steps."""

from __future__ import annotations

import json
import re
import re._constants as op
import re._parser as parser
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import regex
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing.jsonschema import EMPTY_REGISTRY

from .call_syntax import Call
from .schema_mistakes import find_mistake, resolver_of

MAX_STEPS = 20_000  # steps of one check. A keyword is a step of about 10 µs; slower work counts as several
MEMBERS_IN_A_STEP = 50
SEARCH_SECONDS = 0.05  # seconds that one regex search in a value may take
STEPS_OF_A_SLOW_SEARCH = 5_000
MAX_PATTERN = 4_096  # characters of a regex, with its counted repeats written out
PATTERN_IN_A_STEP = 5  # characters of a pattern that is compiled in one step; `a{3}` counts as `aaa`
_COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_UNKNOWN_TO_RE = re.compile(r"\\[pP]\{[^}]*\}")
_NESTED_CLASS = re.compile(r"\[\^?\]?[^\]]*\[")
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
Keyword = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]
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


class TooSlowError(Exception):
    """A check needs more than `MAX_STEPS` steps."""


class BoundedValidator:
    """Checks values against one schema, each within `MAX_STEPS`."""

    def __init__(self, schema: Any) -> None:
        self._steps = 0
        self._patterns: dict[str, regex.Pattern[str]] = {}
        kind = validator_for(schema)
        own = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": self._unique_items,
        }
        known = {**kind.VALIDATORS, **{name: own[name] for name in own if name in kind.VALIDATORS}}
        counted = {name: partial(self._check_keyword, keyword) for name, keyword in known.items()}
        validator: Validator = extend(kind, counted)(_of_one_draft(schema), registry=EMPTY_REGISTRY)
        self._validator: Validator = validator.evolve(_resolver=resolver_of(validator.schema, kind))
        text = json.dumps(schema)
        # with these keywords jsonschema searches the names itself, without a limit
        self._is_unbounded = '"unevaluatedProperties"' in text and '"patternProperties"' in text

    def is_valid(self, value: Any) -> bool:
        """Whether the value is valid. False too if the check takes too many steps, or a reference leads out
        of the schema."""
        self._steps = MAX_STEPS
        try:
            return not self._is_unbounded and bool(self._validator.is_valid(value))
        except Exception:  # jsonschema passes on the errors of its libraries, `regex` raises its own
            return False

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooSlowError

    def _check_keyword(
        self, keyword: Keyword, validator: Any, said: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        self._spend(1 + (_members(said) + _members(instance)) // MEMBERS_IN_A_STEP)
        if isinstance(said, str) and said.startswith("#"):
            self._spend(said.count("/"))  # following a JSON pointer takes a step per part
        return keyword(validator, said, instance, schema)

    def _matches(self, pattern: str, text: str) -> bool:
        if pattern not in self._patterns:
            if len(pattern) > MAX_PATTERN:
                raise TooSlowError
            self._spend(_written_out(pattern) // PATTERN_IN_A_STEP)
            self._patterns[pattern] = regex.compile(pattern)
        try:
            return self._patterns[pattern].search(text, timeout=SEARCH_SECONDS) is not None
        except TimeoutError:
            self._spend(STEPS_OF_A_SLOW_SEARCH)
            raise TooSlowError from None

    def _pattern(self, validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(instance, str) and not self._matches(pattern, instance):
            yield ValidationError("it does not match")

    def _pattern_properties(
        self, validator: Any, patterns: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError]:
        if isinstance(instance, dict):
            for pattern, subschema in patterns.items():
                for name, value in instance.items():
                    self._spend(1)
                    if self._matches(pattern, name):
                        yield from validator.descend(value, subschema)

    def _additional_properties(
        self, validator: Any, allowed: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        patterns = schema.get("patternProperties", {})
        for name in instance.keys() - schema.get("properties", {}).keys():
            self._spend(1 + len(patterns))
            if not any(self._matches(pattern, name) for pattern in patterns):
                yield from validator.descend(instance[name], allowed)

    def _unique_items(
        self, validator: Any, unique: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError]:
        if unique and isinstance(instance, list):
            texts = [json.dumps(_with_whole_numbers(item), sort_keys=True) for item in instance]
            self._spend(sum(map(len, texts)) // MEMBERS_IN_A_STEP)
            if len(set(texts)) < len(texts):
                yield ValidationError("it repeats an item")


def _members(value: Any) -> int:
    return len(value) if isinstance(value, list | dict | str) else 0


def _written_out(pattern: str) -> int:
    """An upper bound for the pattern's characters with its counted repeats written out."""
    try:
        if _NESTED_CLASS.search(pattern):
            raise re.error("re has no nested classes")
        return max(len(pattern), _parts_of(parser.parse(_UNKNOWN_TO_RE.sub(".", pattern))))
    except (re.error, RecursionError, OverflowError):  # a pattern's repeats may be nested too deep
        counts = [max(int(least or 0), int(most or 0), 1) for least, most in _COUNTED.findall(pattern)]
        return len(pattern) * prod(counts)


def _parts_of(parsed: Any) -> int:
    """The number of parts of what `re` has parsed, with its counted repeats written out."""
    match parsed:
        case (kind, (least, most, inner)) if kind in _REPEATS:
            times = int(max(least, 1) if most is op.MAXREPEAT else max(most, 1))
            return times * _parts_of(inner)
        case parser.SubPattern() | list() | tuple():
            return 1 + sum(map(_parts_of, parsed))
    return 0


def _of_one_draft(schema: Any) -> Any:
    """A copy without `$schema` members: jsonschema would check each subschema that has one with another
    validator, which counts no steps."""
    if isinstance(schema, list):
        return [_of_one_draft(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _of_one_draft(value)
        for name, value in schema.items()
        if name != "$schema" or not isinstance(value, str)
    }


def _with_whole_numbers(value: Any) -> Any:
    """A copy of the value with whole floats as integers, because 1.0 and 1 are the same number in JSON."""
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value
