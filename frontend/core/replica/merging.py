"""Makes one answer of those of several replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import asdict, replace

from ....runtime.messages import Adapter, CacheReport, GroupPages, HitRate, RequestList, Stats, StoreCounts

SHARED_COUNTS = ("disk_pages", "disk_bytes")
"""Counts of a file that all replicas share."""
COUNTED_BY_NAME = ("leases", "drafted", "accepted")
"""Fields of `Stats` with a count for each name."""
MAX_LISTED = 200
"""Open requests in a list of those of several replicas."""
T = TypeVar("T", Stats, GroupPages, StoreCounts, CacheReport, HitRate)


def list_common_adapters(lists: Sequence[Sequence[Adapter]]) -> dict[str, Adapter]:
    """The adapters that all replicas list with the same content, by name."""
    first, *others = [{adapter.name: adapter for adapter in each} for each in lists] or [{}]
    return {
        name: adapter
        for name, adapter in first.items()
        if all(name in other and other[name].digest == adapter.digest for other in others)
    }


def merge_request_lists(lists: Sequence[RequestList]) -> RequestList | None:
    """The oldest requests of all lists; None if there are none."""
    if len(lists) < 2:
        return next(iter(lists), None)
    items = sorted((item for each in lists for item in each.items), key=lambda item: -item.age_s)
    return RequestList(lists[0].query, sum(each.total for each in lists), items[:MAX_LISTED])


def merge_stats(stats: Sequence[Stats]) -> Stats:
    """The sums of the counters of several replicas, at least one."""
    if len(stats) == 1:
        return stats[0]
    windows = [add_counts(each) for each in zip(*(each.windows for each in stats), strict=True)]
    by_name = {name: _add_by_name([getattr(each, name) for each in stats]) for name in COUNTED_BY_NAME}
    stores = merge_stores([each.store for each in stats])
    return replace(add_counts(stats), windows=windows, store=stores, **by_name)


def merge_stores(stores: Sequence[StoreCounts]) -> StoreCounts:
    """The sums of the counters of several page stores. They share their disk, which counts once."""
    shared = {name: max(getattr(each, name) for each in stores) for name in SHARED_COUNTS}
    return replace(add_counts(stores), **shared)


def add_counts(items: Sequence[T]) -> T:
    """The sums of all numbers in structs of the same type; the rest is that of the first one."""
    sums = {
        name: sum(getattr(item, name) for item in items)
        for name, value in asdict(items[0]).items()
        if isinstance(value, int) and name != "query"
    }
    return replace(items[0], **sums)


def _add_by_name(items: Sequence[dict[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, items), Counter[str]()))


def number_node(page: int, replica: int, replicas: int) -> int:
    """The id of a node for clients, in which its first page and its replica are."""
    return page * replicas + replica
