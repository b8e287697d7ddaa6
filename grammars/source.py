"""A grammar as it was asked for."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from .errors import GrammarError
from .regex import literal, without_anchors
from .schema import PropertyOrder, Unenforced

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]


class Source(NamedTuple):
    """Equal sources share what is compiled.

    `closing`: how a reply can be ended is asked from wherever it stands.
    """

    kind: GrammarKind
    text: str
    separators: tuple[str, str]
    property_order: PropertyOrder
    unenforced: Unenforced
    closing: bool

    @property
    def schema(self) -> str:
        """Of a JSON kind."""
        return self.text if self.kind == "json_schema" else '{"type":"object"}'

    def regex(self) -> str:
        """Of a regex or a choice, without anchors. Raises GrammarError."""
        return without_anchors(self.text) if self.kind == "regex" else _any_of(self.text)


def _any_of(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("choice must be a list of at least one string, none of them empty")
    return "|".join(literal(choice) for choice in choices)
