"""A grammar as a request asks for it. The tokenizer process sends it to the process that compiles it."""

from __future__ import annotations

from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
PropertyOrder = Literal["schema", "any"]
AdditionalProperties = Literal["declared", "schema"]
"""Properties that an object may have beside declared ones, if its schema mentions no others: none, or any, as
JSON Schema has it."""
Whitespace = Literal["model", "compact", "spaced", "indented"]
"""White space between the tokens of JSON: as the model chooses it, with its first choice of each kind for the
rest of the reply; none; one space after commas and colons; or members on lines of their own, indented by two
spaces"""
JsonSpacing = Whitespace | tuple[str, str]
"""A rule for white space, or fixed separators after items and after names."""
FIXED: dict[Whitespace, tuple[str, str]] = {"compact": (",", ":"), "spaced": (", ", ": ")}
"""The rules that are fixed separators."""
Unenforced = Literal["refuse", "annotations", "allow"]
"""Schema keywords that may be left unenforced: none; unknown formats and, in tools, `uniqueItems`; or all
that can't be enforced."""


class GrammarSpec(msgspec.Struct, array_like=True, frozen=True):
    """The constraint on an output."""

    kind: GrammarKind
    text: str
    """A JSON schema (as JSON text), a regex, a JSON list of strings, a context-free grammar (Lark or GBNF),
    or a structural tag (JSON; see `grammars.tags.format`)."""
    param: str = ""
    """The request's field that the grammar came from, for errors."""
    whitespace: JsonSpacing = "model"
    """Between the tokens of a JSON schema's values."""
    additional_properties: AdditionalProperties = "schema"
    property_order: PropertyOrder = "schema"
    unenforced: Unenforced = "refuse"
    misspelt: tuple[tuple[str, str], ...] = ()
    """Keyword and path of each unknown keyword that may be misspelt."""
    params: dict[str, str] = {}
    """For errors: the request's field with the schema of each function in a structural tag, by function."""
    closing: bool = False
    """Whether the scheduler will ask for the shortest end of a reply from any state."""
    scope: str = ""
    """Set by the scheduler. Specs of different scopes share nothing, so response times reveal nothing."""

    @property
    def makes_value(self) -> bool:
        """Whether the whole reply is one value, which programs parse when it is complete. People may read a
        text that follows a regex or a grammar as it comes, and the free text of a structural tag."""
        return self.kind in ("json_schema", "json_object", "choice")

    @property
    def schema(self) -> str:
        """The JSON schema, if the spec is of a JSON kind."""
        return self.text if self.kind == "json_schema" else '{"type":"object"}'
