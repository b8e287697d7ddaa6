"""Pages of lists, as `limit`, `after` and `order` of the query say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from ...core.validation import check_word, invalid_field

ORDERS = ("asc", "desc")
T = TypeVar("T")


class PageQuery(NamedTuple):
    """The query of a page. `after` is the id of the item before the page, None for the first page."""

    limit: int
    after: str | None
    is_ascending: bool


class Page(Struct, Generic[T], kw_only=True):
    """One page of a list."""

    object: str = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def parse_page_query(query: Mapping[str, str], default: int, maximum: int) -> PageQuery:
    """The page that a query asks for. The last item comes first by default. Raises `RequestError`.

    default, maximum: the number of items on a page
    """
    check_word("order", query.get("order"), ORDERS)
    limit = default if (text := query.get("limit")) is None else parse_number("limit", text, 1, maximum)
    return PageQuery(limit, query.get("after"), query.get("order") == "asc")


def parse_number(name: str, text: str, minimum: int, maximum: int) -> int:
    """An integer of the query. Raises a `RequestError` that names the parameter, its value and its range."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    if number is None or not minimum <= number <= maximum:
        raise invalid_field(
            name, f"is {text[:100]!r}, but must be a whole number from {minimum} to {maximum}"
        )
    return number


def make_page(rows: Sequence[tuple[str | None, bytes]], limit: int, item: type[T]) -> Page[T]:
    """The page of the first `limit` rows, which have the id and the JSON of each item."""
    page = rows[:limit]
    return Page(
        data=[msgspec.json.decode(body, type=item) for _, body in page],
        first_id=page[0][0] if page else None,
        last_id=page[-1][0] if page else None,
        has_more=len(rows) > limit,
    )
