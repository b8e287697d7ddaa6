"""A grammar as a request asks for it, from the tokenizer process to the process that compiles it."""

from __future__ import annotations

from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
PropertyOrder = Literal["schema", "any"]
Unenforced = Literal["refuse", "annotations", "allow"]
"""Schema keywords that may be left unenforced: none, unknown formats, or all without an automaton."""


class GrammarSpec(msgspec.Struct, array_like=True, frozen=True):
    """The constraint on an output."""

    kind: GrammarKind
    text: str
    """A JSON schema (as JSON text), a regex, a JSON list of strings, a context-free grammar (Lark or GBNF),
    or a structural tag (JSON; see `grammars.tags.format`)."""
    param: str = ""
    """The request's field that the grammar came from, for errors."""
    separators: tuple[str, str] = (",", ":")
    """Item and key separators of a JSON schema's values."""
    property_order: PropertyOrder = "schema"
    unenforced: Unenforced = "refuse"
    params: dict[str, str] = {}
    """The params of the functions whose parameters are in a structural tag."""
    closing: bool = False
    """The scheduler will ask how a reply can be ended from any state."""
    scope: str = ""
    """The scheduler sets it: specs of different scopes share nothing, so response times tell nothing."""

    @property
    def schema(self) -> str:
        """The JSON schema of a spec of a JSON kind."""
        return self.text if self.kind == "json_schema" else '{"type":"object"}'
