"""A grammar as a request asks for it. The tokenizer process sends it to the process that compiles it."""

from __future__ import annotations

from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
PropertyOrder = Literal["schema", "any"]
AdditionalProperties = Literal["declared", "schema"]
"""Whether objects may have undeclared properties if the schema doesn't say: no, or yes, as in JSON Schema."""
Whitespace = Literal["model", "compact", "spaced", "indented"]
"""White space between the tokens of JSON: as the model chooses, where its first choice of each kind binds the
rest of the reply; none; one space after commas and colons; or members on lines of their own, indented by two
spaces"""
JsonSpacing = Whitespace | tuple[str, str]
"""a rule for white space, or fixed separators after items and after names"""
FIXED: dict[Whitespace, tuple[str, str]] = {"compact": (",", ":"), "spaced": (", ", ": ")}
"""the fixed separators of rules that have them"""
Unenforced = Literal["refuse", "annotations", "allow"]
"""Which keywords may be left unenforced: none; unknown formats and, in tools, `uniqueItems`; or all that
can't be enforced."""


class GrammarSpec(msgspec.Struct, array_like=True, frozen=True):
    """The constraint on an output."""

    kind: GrammarKind
    text: str
    """A JSON schema (as JSON text), a regex, a JSON list of strings, a context-free grammar (Lark or GBNF),
    or a structural tag (JSON; see `grammars.tags.format`)."""
    param: str = ""
    """the request's field that the grammar came from, for errors"""
    whitespace: JsonSpacing = "model"
    """rule for white space between the tokens of a schema's values"""
    additional_properties: AdditionalProperties = "schema"
    property_order: PropertyOrder = "schema"
    unenforced: Unenforced = "refuse"
    misspelt: tuple[tuple[str, str], ...] = ()
    """keyword and path of each unknown keyword that may be misspelt"""
    params: dict[str, str] = {}
    """for errors: the request's field with the schema of each function in a structural tag, by function"""
    closing: bool = False
    """whether the scheduler will ask for the shortest end of a reply from any state"""
    scope: str = ""
    """Set by the scheduler. Specs of different scopes share nothing, so response times reveal nothing."""

    @property
    def makes_value(self) -> bool:
        """Whether the whole reply is one value, which programs parse when it is complete. People may read
        other replies as they come: text by a regex or a grammar, and a structural tag's free text."""
        return self.kind in ("json_schema", "json_object", "choice")

    @property
    def schema(self) -> str:
        """The JSON schema; None if the spec's kind is not JSON."""
        return self.text if self.kind == "json_schema" else '{"type":"object"}'
