"""Finds keywords in JSON schemas that may be misspelt, because JSON Schema ignores unknown ones."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from ..text.close_names import close_name

MAX_SUBSCHEMAS = 500  # subschemas of one schema that are searched for unknown keywords
MAX_UNKNOWN = 32  # unknown keywords of one schema for which a similar keyword is searched
MAX_LISTED = 100  # misspelt keywords of one schema that are reported
MAX_WARNED = 100  # keywords that the log names in the lifetime of the process


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = {
    kind: _names(names)
    for kind, names in {
        "a schema": "additionalItems additionalProperties contains contentSchema else if items not "
        "propertyNames then unevaluatedItems unevaluatedProperties",
        "schemas": "allOf anyOf oneOf prefixItems",
        "schemas by name": "$defs definitions dependentSchemas patternProperties properties",
        "names or schemas by name": "dependencies",
        "names by name": "dependentRequired",
        "names": "required",
        "types": "type",
        "a list": "enum examples",
        "a number": "maximum minimum",
        "a bound": "exclusiveMaximum exclusiveMinimum",
        "a number above 0": "multipleOf",
        "a count": "maxContains maxItems maxLength maxProperties minContains minItems minLength "
        "minProperties",
        "a boolean": "deprecated readOnly uniqueItems writeOnly",
        "a text": "$anchor $comment $dynamicAnchor $dynamicRef $id $ref $schema "
        "contentEncoding contentMediaType description format pattern title",
        "any value": "$recursiveRef const default example",
    }.items()
}
"""The keywords of JSON Schema, by the kind of their values."""
_ANNOTATIONS = _names(
    "$anchor $comment $dynamicAnchor $id $recursiveAnchor $schema $vocabulary contentEncoding "
    "contentMediaType contentSchema deepProperties default deprecated description example examples id "
    "readOnly requires title tsType typeof writeOnly"
)
_CONSTRAINTS = frozenset[str]().union(*KEYWORDS.values()) - _ANNOTATIONS
_WITH_SCHEMAS = (KEYWORDS["a schema"] | KEYWORDS["schemas"]) & _CONSTRAINTS
_WITH_NAMED_SCHEMAS = KEYWORDS["schemas by name"] | KEYWORDS["names or schemas by name"]
_TOO_SHORT = 3  # characters; shorter keywords are never suggested: "note" would be taken for "not"
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
