"""A grammar as it was asked for."""

from __future__ import annotations

import hashlib
import json
from typing import Literal, NamedTuple

from .errors import GrammarError
from .regex.pattern import literal, without_anchors
from .schema import PropertyOrder, Unenforced

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]


class Source(NamedTuple):
    """Equal sources share what is compiled.

    `closing`: how a reply can be ended is asked from wherever it stands. Sources of different `scope` share
    nothing, so that no client can tell from the time what another one has sent.
    """

    kind: GrammarKind
    text: str
    separators: tuple[str, str]
    property_order: PropertyOrder
    unenforced: Unenforced
    closing: bool
    scope: str = ""

    @property
    def digest(self) -> bytes:
        """Names it without holding on to its text, which may have megabytes."""
        return digest_of(self.text, repr(self._replace(text="")))

    @property
    def schema(self) -> str:
        """Of a JSON kind."""
        return self.text if self.kind == "json_schema" else '{"type":"object"}'

    def regex(self) -> str:
        """Of a regex or a choice, without anchors. Raises GrammarError."""
        return without_anchors(self.text) if self.kind == "regex" else any_of(self.text)


def digest_of(text: str, rest: str) -> bytes:
    digest = hashlib.sha256(text.encode(errors="surrogatepass"))
    digest.update(b"\0" + rest.encode(errors="surrogatepass"))
    return digest.digest()


def any_of(text: str) -> str:
    """A regex for one of the strings in a JSON list. Raises GrammarError."""
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"choice is not valid JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("choice must be a list of at least one string, none of them empty")
    return "|".join(literal(choice) for choice in choices)
