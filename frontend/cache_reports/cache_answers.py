"""The answers of /cache. They contain prefixes and nodes as the scheduler reports them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType

from ...runtime.messages import (
    CacheDropped,
    CacheNode,
    CacheReport,
    CacheRoot,
    HitRate,
    ModelReady,
    Pin,
    ShownLease,
    StoreCounts,
    Tokens,
    TopPrefix,
)
from ..http.tenants import shown_namespace
from .node_labels import NodeLabel, measure_shared_starts

Decode: TypeAlias = Callable[[Tokens], str]
Label: TypeAlias = Callable[[Tokens, Tokens], NodeLabel]
TEXT_CHARACTERS = 80
DISK_ERROR = "The disk cache fails; its file may still have some of this. Delete it again later."
REMOTE_ERROR = "The remote cache can't be reached; what it has of this stays there. Delete it again later."


class Amount(Struct):
    """The size of some pages. `tokens` is their capacity; the last page may be partial."""

    pages: int
    tokens: int
    bytes: int


class Sizes(Struct):
    """total = free + used + cached. Pinned pages count as used, leased pages as used or cached."""

    total: Amount
    free: Amount
    used: Amount
    cached: Amount
    pinned: Amount
    pinnable: Amount
    leased: Amount


class NamespaceSize(Struct):
    namespace: str
    own: bool
    size: Amount


class LeaseEnds(Struct):
    key: str


class Tier(Struct):
    """A tier of the cache. `found` counts the pages that prompts found in it since the model started."""

    pages: int
    bytes: int
    found: int


class Tiers(Struct):
    """The tiers below the KV cache. The size of a remote tier is known only to its server."""

    host: Tier
    disk: Tier
    remote_found: int
    restored_pages: int


class CacheStatus(Struct):
    """The state of the cache. Hit rates cover all clients, so they are left out if keys are isolated."""

    page_tokens: int
    sizes: Sizes
    hit_rate: HitRate | UnsetType
    recent_hit_rate: HitRate | UnsetType
    evicted_pages: int
    tiers: Tiers
    namespaces: list[NamespaceSize]
    prefixes: list[TopPrefix]
    pins: list[Pin]
    leases: list[ShownLease]


class CacheTree(Struct):
    """A part of the tree. `is_complete`: each node is listed or in the `folded` count of a listed node."""

    page_tokens: int
    is_complete: bool
    roots: list[CacheRoot]
    nodes: list[CacheNode]


class NodeText(Struct):
    """The beginning of a node's text, with the number of its tokens."""

    id: int
    tokens: int
    text: str


class FreedPages(Struct):
    """Pages of the tiers below the KV cache. `disk` and `remote` are null after an error."""

    host: int
    disk: int | None
    remote: int | None
    disk_error: str | UnsetType = UNSET
    remote_error: str | UnsetType = UNSET


class Freed(Struct):
    freed: Amount
    tiers: FreedPages


class PinDeleted(Struct):
    id: str
    deleted: bool = True


def make_status(
    report: CacheReport, model: ModelReady, own: str, decode: Decode | None, *, is_isolated: bool
) -> CacheStatus:
    """Makes the answer. `own` is the caller's namespace. Only its texts are shown, and only with `decode`.
    `is_isolated`: hits of other clients' requests are left out."""
    counts = {name: getattr(report, f"pages_{name}") for name in Sizes.__struct_fields__}
    for lease in report.leases:
        lease.namespace = shown_namespace(lease.namespace)
    for prefix, head, tail in report.prefixes:
        prefix.namespace = shown_namespace(prefix.namespace)
        if decode is not None and head:
            prefix.text, prefix.end = decode(head)[:TEXT_CHARACTERS], decode(tail)[-TEXT_CHARACTERS:]
    return CacheStatus(
        page_tokens=model.page_size,
        sizes=Sizes(**{name: measure_pages(count, model) for name, count in counts.items()}),
        hit_rate=UNSET if is_isolated else report.hits,
        recent_hit_rate=UNSET if is_isolated else report.recent_hits,
        evicted_pages=report.evicted_pages,
        tiers=_show_tiers(report.store),
        namespaces=[
            NamespaceSize(shown_namespace(name), name == own, measure_pages(pages, model))
            for name, pages in report.namespaces.items()
        ],
        prefixes=[prefix for prefix, _, _ in report.prefixes],
        pins=[show_pin(pin, model) for pin in report.pins],
        leases=report.leases,
    )


def make_tree(report: CacheReport, model: ModelReady, decode: Decode | None, label: Label) -> CacheTree:
    """Makes the answer. With `decode` the texts of the caller's own nodes are shown. A node's label is of the
    place where it differs from its siblings: they may share a part of their first page."""
    for root in report.roots:
        root.namespace = shown_namespace(root.namespace)
    heads = [(node.parent, head) for node, _, head in report.nodes]
    for (node, lead, head), shared in zip(report.nodes, measure_shared_starts(heads), strict=True):
        if decode is not None and head:
            node.text = decode(head)[:TEXT_CHARACTERS]
            node.role, node.label = label(lead + head[:shared], head[shared:])
    nodes = [node for node, _, _ in report.nodes]
    return CacheTree(model.page_size, report.is_complete, report.roots, nodes)


def show_freed(dropped: CacheDropped, model: ModelReady) -> Freed:
    freed = measure_pages(dropped.pages, model)
    freed.tokens = dropped.tokens
    tiers = FreedPages(
        dropped.host_pages,
        dropped.disk_pages,
        dropped.remote_pages,
        disk_error=DISK_ERROR if dropped.disk_pages is None else UNSET,
        remote_error=REMOTE_ERROR if dropped.remote_pages is None else UNSET,
    )
    return Freed(freed, tiers)


def add_freed(items: Sequence[Freed]) -> Freed:
    """The sum of what was freed of several models. An error of one of them is shown."""
    first, *others = items
    for each in others:
        for name in Amount.__struct_fields__:
            setattr(first.freed, name, getattr(first.freed, name) + getattr(each.freed, name))
        tiers, more = first.tiers, each.tiers
        tiers.host += more.host
        tiers.disk = None if tiers.disk is None or more.disk is None else tiers.disk + more.disk
        tiers.remote = None if tiers.remote is None or more.remote is None else tiers.remote + more.remote
        tiers.disk_error = tiers.disk_error or more.disk_error
        tiers.remote_error = tiers.remote_error or more.remote_error
    return first


def show_pin(pin: Pin, model: ModelReady) -> Pin:
    pin.namespace, pin.bytes = shown_namespace(pin.namespace), pin.pages * model.page_bytes
    return pin


def measure_pages(pages: int, model: ModelReady) -> Amount:
    return Amount(pages, pages * model.page_size, pages * model.page_bytes)


def _show_tiers(store: StoreCounts) -> Tiers:
    return Tiers(
        host=Tier(store.host_pages, store.host_bytes, store.host_hits),
        disk=Tier(store.disk_pages, store.disk_bytes, store.disk_hits),
        remote_found=store.remote_hits,
        restored_pages=store.restored_pages,
    )
