"""The grammar of a custom tool's input, which models write as the string of a JSON call."""

from __future__ import annotations

from typing import Any

from ....runtime.errors import RequestError
from ...core.text.quoted_grammar import QuotingError, quoted_lark, quoted_pattern

MAX_CHARACTERS = 100_000


def input_grammar(syntax: str, definition: str, param: str) -> dict[str, Any]:
    """A format of a structural tag. Raises `RequestError` naming `param`."""
    if len(definition) > MAX_CHARACTERS:
        raise RequestError(
            f"{param} has {len(definition)} characters, but may have at most {MAX_CHARACTERS}.",
            param=param,
            code="invalid_value",
        )
    try:
        if syntax == "regex":
            return {"type": "regex", "pattern": quoted_pattern(definition)}
        return {"type": "grammar", "grammar": quoted_lark(definition)}
    except QuotingError as error:
        raise RequestError(f"{param}: {error}.", param=param, code="invalid_grammar") from None
