"""Pages of lists, as `limit`, `after` and `order` of the query say."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence

from msgspec import Raw

from ...runtime.errors import RequestError
from ..request.validation import check_range, check_word
from .database import Row
from .responses import ItemList

DEFAULT_LIMIT = 20
MOST_ITEMS = 100
ORDERS = ("asc", "desc")
_MOST_DIGITS = 12


def page_of(rows: Sequence[Row], query: Mapping[str, str]) -> ItemList:
    """`rows` have the id and the JSON of each item. The last item comes first, unless `order` is "asc"."""
    check_word("order", query.get("order"), ORDERS)
    ordered = list(rows) if query.get("order") == "asc" else list(reversed(rows))
    after = query.get("after")
    if after is not None:
        ids = [row[0] for row in ordered]
        if after not in ids:
            raise RequestError(
                f"after is {after[:100]!r}, which is no item of the list.",
                param="after",
                code="invalid_value",
            )
        ordered = ordered[ids.index(after) + 1 :]
    page = ordered[: _limit(query.get("limit"))]
    return ItemList(
        data=[Raw(row[1]) for row in page],
        first_id=page[0][0] if page else None,
        last_id=page[-1][0] if page else None,
        has_more=len(page) < len(ordered),
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        problem = f"limit is {reprlib.repr(text)}, but must be a number between 1 and {MOST_ITEMS}."
        raise RequestError(problem, param="limit", code="invalid_value")
    check_range("limit", int(text), 1, MOST_ITEMS)
    return int(text)
