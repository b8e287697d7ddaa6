"""Pages of lists, as `limit`, `after` and `order` of the query say."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Raw

from ....runtime.errors import RequestError
from ...core.validation import check_range, check_word
from .database import Row
from .responses import ItemList

DEFAULT_LIMIT = 20
MOST_ITEMS = 100
ORDERS = ("asc", "desc")
_MOST_DIGITS = 12


class PageQuery(NamedTuple):
    """`after` is the id of the item before the page; None: the page is the first one."""

    limit: int
    after: str | None
    is_ascending: bool


def page_query(query: Mapping[str, str]) -> PageQuery:
    """The page that a query asks for. The last item comes first by default. Raises `RequestError`."""
    check_word("order", query.get("order"), ORDERS)
    return PageQuery(_limit(query.get("limit")), query.get("after"), query.get("order") == "asc")


def item_list(rows: Sequence[Row], limit: int) -> ItemList:
    """The list of the first `limit` rows, which have the id and the JSON of each item."""
    page = rows[:limit]
    return ItemList(
        data=[Raw(row[1]) for row in page],
        first_id=page[0][0] if page else None,
        last_id=page[-1][0] if page else None,
        has_more=len(rows) > limit,
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        problem = f"limit is {reprlib.repr(text)}, but must be a number between 1 and {MOST_ITEMS}."
        raise RequestError(problem, param="limit", code="invalid_value")
    check_range("limit", int(text), 1, MOST_ITEMS)
    return int(text)
