"""Warns of keywords in JSON schemas that may be misspelt, because JSON Schema ignores unknown ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice

from ..text.close_names import LONGEST, close_name

MOST_SUBSCHEMAS = 500  # so many subschemas of one schema are searched for unknown keywords
MOST_UNKNOWN = 32  # unknown keywords of one schema; for each a similar keyword is searched
MOST_WARNED = 100  # keywords that the log names, as long as the process runs


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WITH_SCHEMAS = _names(
    "additionalItems additionalProperties allOf anyOf contains else if items not oneOf prefixItems "
    "propertyNames then unevaluatedItems unevaluatedProperties"
)
_WITH_NAMED_SCHEMAS = _names("$defs definitions dependencies dependentSchemas patternProperties properties")
_WITHOUT_SCHEMAS = _names(
    "$dynamicRef $recursiveRef $ref const dependentRequired enum exclusiveMaximum exclusiveMinimum format "
    "maxContains maxItems maxLength maxProperties maximum minContains minItems minLength minProperties "
    "minimum multipleOf pattern required type uniqueItems"
)
_CONSTRAINTS = _WITH_SCHEMAS | _WITH_NAMED_SCHEMAS | _WITHOUT_SCHEMAS
_ANNOTATIONS = _names(
    "$anchor $comment $dynamicAnchor $id $recursiveAnchor $schema $vocabulary contentEncoding "
    "contentMediaType contentSchema deepProperties default deprecated description example examples id "
    "readOnly requires title tsType typeof writeOnly"
)
_TOO_SHORT = 3  # keywords of so few characters are suggested for no name: "note" would be taken for "not"
_warned: set[str] = set()
log = logging.getLogger(__name__)


def warn_of_misspelt_keywords(schema: object, param: str) -> None:
    """Logs a warning of each keyword that may be misspelt, once. `param` is the request's field."""
    for name, meant in misspelt_keywords(schema).items():
        if name not in _warned and len(_warned) < MOST_WARNED:
            _warned.add(name)
            log.warning("ignoring the unknown keyword %r in %s: did you mean %s?", name, param, meant)


def misspelt_keywords(schema: object) -> Mapping[str, str]:
    """The schema's unknown keywords that resemble a keyword of JSON Schema, and that keyword for each."""
    found = {name: _meant(name) for name in islice(_unknown_keywords(schema), MOST_UNKNOWN)}
    return {name: meant for name, meant in found.items() if meant is not None}


def _unknown_keywords(schema: object) -> Iterator[str]:
    """Each unknown keyword once. Names of extensions, which begin with x-, are left out."""
    seen: set[str] = set()
    left = [schema]
    for _ in range(MOST_SUBSCHEMAS):
        if not left:
            return
        each = left.pop()
        if isinstance(each, list):
            left += each
            continue
        for name, value in each.items() if isinstance(each, dict) else ():
            if name in _WITH_SCHEMAS:
                left.append(value)
            elif name in _WITH_NAMED_SCHEMAS and isinstance(value, dict):
                left += value.values()
            elif name not in _CONSTRAINTS and name not in _ANNOTATIONS and name not in seen:
                seen.add(name)
                if not name.startswith("x-") and len(name) <= LONGEST:
                    yield name


@lru_cache(1024)
def _meant(name: str) -> str | None:
    return close_name(name, [each for each in _CONSTRAINTS if len(each) > _TOO_SHORT])
