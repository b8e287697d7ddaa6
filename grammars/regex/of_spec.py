"""The regex that a grammar spec asks for."""

from __future__ import annotations

import json

from ...runtime.grammar_spec import GrammarSpec
from ..errors import GrammarError
from .pattern import literal, without_anchors


def regex_of(spec: GrammarSpec) -> str:
    """The regex, without anchors, of a regex or a choice. Raises GrammarError."""
    return without_anchors(spec.text) if spec.kind == "regex" else _any_of(spec.text)


def _any_of(text: str) -> str:
    """A regex for one of the strings in a JSON list. Raises GrammarError."""
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"choice is not valid JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("choice must be a list of at least one string, none of them empty")
    return "|".join(literal(choice) for choice in choices)
