"""How a quantization config names modules, to quantize them or to leave them out."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import ConfigError
from .weight_format import Projection

PATTERN = "re:"


def is_listed(name: str, listed: Iterable[str]) -> bool:
    """Whether a list such as `modules_to_not_convert` names the module.

    An entry is a part of the name between dots, such as `mlp` or `layers.1`, the end of a name, a regex for
    its start, or a regex after `re:`.
    """
    return any(
        f".{entry}." in f".{name}."
        or name.endswith(entry)
        or _matches(name, entry.removeprefix(PATTERN), whole_parts=not entry.startswith(PATTERN))
        for entry in listed
    )


def match_rank(projection: Projection, target: str) -> int | None:
    """How a target of compressed-tensors matches: 0 by name, 1 by regex, 2 by class, None if it does not."""
    if target == projection.name:
        return 0
    if target.startswith(PATTERN):
        return 1 if _matches(projection.name, target.removeprefix(PATTERN)) else None
    return 2 if target == projection.kind else None


def _matches(name: str, pattern: str, whole_parts: bool = False) -> bool:
    """Whether the regex matches the name's start; whole_parts: up to a dot."""
    try:
        return re.match(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))" if whole_parts else pattern, name) is not None
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a valid regex: {error}") from None
