"""Finds keywords in JSON schemas that may be misspelt, because JSON Schema ignores unknown ones."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from .text.close_names import close_name

MAX_SUBSCHEMAS = 500  # so many subschemas of one schema are searched for unknown keywords
MAX_UNKNOWN = 32  # unknown keywords of one schema for which a similar keyword is searched
MAX_LISTED = 100  # misspelt keywords of one schema
MAX_WARNED = 100  # keywords that the log names, as long as the process runs


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


def misspelt_keywords(schema: object, param: str) -> tuple[tuple[str, str], ...]:
    """(keyword, path) for each unknown keyword that resembles a keyword of JSON Schema. The log names each
    keyword once, with `param`, the request's field."""
    resembling = (each for each in _unknown_keywords(schema) if meant_keyword(each[0]) is not None)
    found = tuple(islice(resembling, MAX_LISTED))
    for name, _ in found:
        if name not in _warned and len(_warned) < MAX_WARNED:
            _warned.add(name)
            meant = meant_keyword(name)
            log.warning("unknown keyword %r in %s: did you mean %s?", name, param, meant)
    return found


def _unknown_keywords(schema: object) -> Iterator[tuple[str, str]]:
    """(keyword, path) for each unknown keyword, up to `MAX_UNKNOWN` different ones. Names of extensions,
    which begin with x-, are left out."""
    left: deque[tuple[object, str]] = deque([(schema, "#")])
    unknown: set[str] = set()
    for _ in range(MAX_SUBSCHEMAS):
        if not left:
            return
        each, path = left.popleft()
        if isinstance(each, list):
            left += [(part, f"{path}/{position}") for position, part in enumerate(each)]
            continue
        for name, value in each.items() if isinstance(each, dict) else ():
            if name in _WITH_SCHEMAS:
                left.append((value, f"{path}/{name}"))
            elif name in _WITH_NAMED_SCHEMAS and isinstance(value, dict):
                left += [(part, f"{path}/{name}/{_escaped(key)}") for key, part in value.items()]
            elif name not in _CONSTRAINTS and name not in _ANNOTATIONS and not name.startswith("x-"):
                unknown.add(name)
                if len(unknown) > MAX_UNKNOWN:
                    return
                yield name, f"{path}/{_escaped(name)}"


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


@lru_cache(1024)
def meant_keyword(name: str) -> str | None:
    """The keyword of JSON Schema that an unknown one resembles."""
    return close_name(name, [each for each in _CONSTRAINTS if len(each) > _TOO_SHORT])
