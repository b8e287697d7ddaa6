"""A subschema and its position in the document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...errors import NotCoveredError, WrongKeywordError
from .json_text import Json
from .values import is_number

Fields: TypeAlias = "dict[str, Json]"
Undeclared: TypeAlias = Literal["as written", "decided around it", "forbidden"]
"""Whether objects may have undeclared properties: as the schema says, also inside of members and items; as a
subschema of the same value around this one decides; or only where the schema mentions some. Members and items
of the last two are "forbidden" to have any."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
MAPS_BY_NAME = ("dependentSchemas", "dependencies")
SAME_VALUE = frozenset((*REFERENCES, *MAPS_BY_NAME, "allOf", "anyOf", "oneOf", "then", "else"))
_MAY_BE_NEGATED = frozenset(["not", "if", "contains", "propertyNames"])


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """A subschema's keywords, its path, and the base URI of its references.

    `beside`: the subschemas of the same value outside of this one, if `undeclared` is not "as written".
    """

    fields: Fields
    path: str
    base: str
    undeclared: Undeclared
    beside: tuple[Place, ...] = ()

    def as_written(self) -> Place:
        return Place(self.fields, self.path, self.base, "as written")

    def without(self, steps: Sequence[str | int]) -> Place:
        """This subschema without the one of the same value at the end of `steps` and its alternatives."""
        keyword, *inner = steps
        fields = {name: value for name, value in self.fields.items() if name != keyword}
        value = self.fields[str(keyword)]
        if keyword == "allOf" and isinstance(value, list):
            fields[keyword] = [each for position, each in enumerate(value) if position != inner[0]]
        elif keyword in MAPS_BY_NAME and isinstance(value, dict):
            fields[str(keyword)] = {name: each for name, each in value.items() if name != inner[0]}
        return Place(fields, self.path, self.base, "as written")

    def undeclared_under(self, keyword: str) -> Undeclared:
        """`undeclared` of the subschemas under a keyword. A subschema that may be negated is read as it is
        written, because the negation of a narrower schema would be wider."""
        if self.undeclared == "as written" or keyword in _MAY_BE_NEGATED:
            return "as written"
        return "decided around it" if keyword in SAME_VALUE else "forbidden"

    def refusal(self, keyword: str, reason: str) -> NotCoveredError:
        return NotCoveredError(keyword, f"{self.path}/{keyword}", reason)

    def mistake(self, keyword: str, reason: str) -> WrongKeywordError:
        return WrongKeywordError(keyword, f"{self.path}/{keyword}", reason)

    def get_object(self, keyword: str) -> dict[str, Json]:
        """The object that is the value of a keyword."""
        found = self.fields.get(keyword, {})
        if not isinstance(found, dict):
            raise self.mistake(keyword, "it must be an object")
        return found

    def get_list(self, keyword: str) -> list[Json]:
        """The list that is the value of a keyword; it must not be empty."""
        found = self.fields[keyword]
        if not isinstance(found, list) or not found:
            raise self.mistake(keyword, "it must be a list with at least one element")
        return found

    def check_names(self, keyword: str, names: Json) -> list[str]:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.mistake(keyword, "it must be a list of names")
        return names  # type: ignore[return-value]

    def get_count(self, keyword: str) -> int:
        value = self.fields[keyword]
        if not is_number(value) or value < 0 or value != int(value):
            raise self.mistake(keyword, "it must be a whole number of at least 0")
        return int(value)
