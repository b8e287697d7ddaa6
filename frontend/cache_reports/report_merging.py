"""Makes one report on the cache of those of several replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ...runtime.messages import CacheDropped, CacheReport, HitRate, Pin
from ..core.replica.merging import add_counts, merge_stores, number_node

MAX_PREFIXES = 20
MAX_LEASES = 100


def merge_reports(reports: Mapping[int, CacheReport], replicas: int) -> CacheReport:
    """The report on all replicas, by whose numbers the reports are given. Nodes get ids for clients
    (`number_node`), and a namespace has a root for each replica."""
    found = list(reports.values())
    if replicas == 1:
        return found[0]
    for number, report in reports.items():
        for node, _, _ in report.nodes:
            node.id = None if node.id is None else number_node(node.id, number, replicas)
    namespaces = sum((Counter(each.namespaces) for each in found), Counter[str]())
    prefixes = sorted(
        (prefix for each in found for prefix in each.prefixes), key=lambda prefix: -prefix[0].hits
    )
    leases = sorted((lease for each in found for lease in each.leases), key=lambda lease: -lease.ends_at)
    merged = replace(
        add_counts(found),
        is_complete=all(each.is_complete for each in found),
        hits=_merge_rates([each.hits for each in found]),
        recent_hits=_merge_rates([each.recent_hits for each in found]),
        store=merge_stores([each.store for each in found]),
        namespaces=dict(namespaces.most_common()),
        prefixes=prefixes[:MAX_PREFIXES],
        pins=_merge_pins([pin for each in found for pin in each.pins]),
        leases=leases[:MAX_LEASES],
    )
    _join_trees(merged, found)
    return merged


def merge_dropped(dropped: Sequence[CacheDropped]) -> CacheDropped:
    """What all replicas dropped. They share the disk and the remote store, whose pages count once; None if
    one of them failed there."""
    if len(dropped) == 1:
        return dropped[0]
    return CacheDropped(
        dropped[0].query,
        sum(each.pages for each in dropped),
        sum(each.tokens for each in dropped),
        sum(each.host_pages for each in dropped),
        _find_largest([each.disk_pages for each in dropped]),
        _find_largest([each.remote_pages for each in dropped]),
    )


def _find_largest(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _merge_rates(rates: Sequence[HitRate]) -> HitRate:
    merged = add_counts(rates)
    rate = merged.cached_tokens / merged.prompt_tokens if merged.prompt_tokens else None
    return replace(merged, rate=rate)


def _merge_pins(pins: Sequence[Pin]) -> list[Pin]:
    """Each pin once, with its pages in all replicas."""
    merged: dict[str, Pin] = {}
    for pin in pins:
        if known := merged.get(pin.id):
            known.pages += pin.pages
            known.expires_at = max(known.expires_at, pin.expires_at)
        else:
            merged[pin.id] = pin
    return list(merged.values())


def _join_trees(merged: CacheReport, reports: Sequence[CacheReport]) -> None:
    """Lists the nodes and roots of all reports, in which a node's parent is an index."""
    merged.nodes, merged.roots = [], []
    for report in reports:
        start = len(merged.nodes)
        for node, _, _ in report.nodes:
            node.parent = None if node.parent is None else node.parent + start
        merged.nodes += report.nodes
        merged.roots += [replace(root, node=root.node + start) for root in report.roots]
