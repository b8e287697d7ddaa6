"""What a grammar's spec asks for."""

from __future__ import annotations

import hashlib
import json

from ..runtime.grammar_spec import GrammarSpec
from .errors import GrammarError
from .regex.pattern import literal, without_anchors


def schema_of(spec: GrammarSpec) -> str:
    """The JSON schema of a spec of a JSON kind."""
    return spec.text if spec.kind == "json_schema" else '{"type":"object"}'


def regex_of(spec: GrammarSpec) -> str:
    """The regex, without anchors, of a regex or a choice. Raises GrammarError."""
    return without_anchors(spec.text) if spec.kind == "regex" else _any_of(spec.text)


def digest_of(spec: GrammarSpec) -> bytes:
    """A name for all that the compiled grammar depends on."""
    options = (spec.kind, spec.separators, spec.property_order, spec.unenforced, spec.closing, spec.scope)
    digest = hashlib.sha256(spec.text.encode(errors="surrogatepass"))
    digest.update(b"\0" + repr(options).encode(errors="surrogatepass"))
    return digest.digest()


def _any_of(text: str) -> str:
    """A regex for one of the strings in a JSON list. Raises GrammarError."""
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"choice is not valid JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("choice must be a list of at least one string, none of them empty")
    return "|".join(literal(choice) for choice in choices)
