"""A subschema and its position in the document."""

from __future__ import annotations

from typing import TypeAlias

from ...errors import NotCoveredError, WrongKeywordError
from .json_text import Json
from .values import is_number

Fields: TypeAlias = "dict[str, Json]"


class Place:
    """A subschema's keywords, its path, and the base URI of its references."""

    __slots__ = ("base", "fields", "path")

    def __init__(self, fields: Fields, path: str, base: str) -> None:
        self.fields = fields
        self.path = path
        self.base = base

    def refusal(self, keyword: str, reason: str) -> NotCoveredError:
        return NotCoveredError(keyword, f"{self.path}/{keyword}", reason)

    def mistake(self, keyword: str, reason: str) -> WrongKeywordError:
        return WrongKeywordError(keyword, f"{self.path}/{keyword}", reason)

    def named(self, keyword: str) -> dict[str, Json]:
        """The object that is the value of a keyword."""
        named = self.fields.get(keyword, {})
        if not isinstance(named, dict):
            raise self.mistake(keyword, "it must be an object")
        return named

    def listed(self, keyword: str) -> list[Json]:
        """The list that is the value of a keyword; it must not be empty."""
        listed = self.fields[keyword]
        if not isinstance(listed, list) or not listed:
            raise self.mistake(keyword, "it must be a list with at least one element")
        return listed

    def names(self, keyword: str, names: Json) -> list[str]:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.mistake(keyword, "it must be a list of names")
        return names  # type: ignore[return-value]

    def count(self, keyword: str) -> int:
        value = self.fields[keyword]
        if not is_number(value) or value < 0 or value != int(value):  # type: ignore[operator,arg-type]
            raise self.mistake(keyword, "it must be a whole number of at least 0")
        return int(value)
