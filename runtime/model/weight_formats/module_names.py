"""How a quantization config names modules that are quantized or left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ...errors import ConfigError
from .weight_format import Projection

PATTERN = "re:"


def name_list(entries: Iterable[str]) -> Callable[[str], bool]:
    """Returns a function that says whether a list such as `modules_to_not_convert` includes a module's name.

    An entry is a part of the name between dots, such as `mlp` or `layers.1`; the end of a name; a regex that
    matches the start of a name up to a dot; or a regex after `re:`.
    """
    compiled = [(entry, _compile(entry)) for entry in entries]

    def is_listed(name: str) -> bool:
        return any(
            f".{entry}." in f".{name}." or name.endswith(entry) or pattern.match(name)
            for entry, pattern in compiled
        )

    return is_listed


class Target:
    """A module name, regex or class name of compressed-tensors."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pattern = _compile(text) if text.startswith(PATTERN) else None

    def rank(self, projection: Projection) -> int | None:
        """How the target matches: 0 by name, 1 by regex, 2 by class, None if it does not match."""
        if self._text == projection.name:
            return 0
        if self._pattern is not None:
            return 1 if self._pattern.match(projection.name) else None
        return 2 if self._text == projection.kind else None


def _compile(entry: str) -> re.Pattern[str]:
    source = entry.removeprefix(PATTERN)
    try:
        return re.compile(source if entry.startswith(PATTERN) else rf"(?:{source})(?:(?<=\.)|(?=\.|$))")
    except re.error as error:
        raise ConfigError(f"{entry} is not a valid regex: {error}") from None
