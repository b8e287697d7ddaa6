"""OpenAI's `prompt_cache_breakpoint` in the items of a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ...api.openai.cache_fields import MARK
from ...core.leases import check_breakpoints
from ...core.validation import check_word
from .protocol import Item


class _Mark(NamedTuple):
    """The breakpoint of part number `place` in a `field` of an item."""

    item: int
    field: str
    place: int
    mode: str | None


def items_to_breakpoints(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The items up to each breakpoint. Raises `RequestError`."""
    marks = list(_marks(items))
    check_breakpoints(MARK, len(marks))
    found: list[Sequence[Item]] = []
    for number, field, place, mode in marks:
        check_word(f"input[{number}].{field}[{place}].{MARK}.mode", mode, ("explicit",))
        item = items[number]
        cut = replace(item, **{field: getattr(item, field)[: place + 1]})
        found.append([*items[:number], cut])
    return found


def _marks(items: Sequence[Item]) -> Iterator[_Mark]:
    for number, item in enumerate(items):
        for field, parts in (("content", item.content), ("output", item.output)):
            for place, part in enumerate(parts if isinstance(parts, list) else ()):
                if part.prompt_cache_breakpoint is not None:
                    yield _Mark(number, field, place, part.prompt_cache_breakpoint.mode)
