"""The answers of /cache."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, Struct, UnsetType

from ...runtime.messages import (
    CachedPrefix,
    CacheDropped,
    CacheReport,
    ModelReady,
    PinnedPrefix,
    StoreCounts,
    Tokens,
)
from ..http.tenants import shown_namespace

TEXT_CHARACTERS = 80
DISK_ERROR = "The disk cache fails; its file may still have some of this. Delete it again later."
REMOTE_ERROR = "The remote cache can't be reached; what it has of this stays there. Delete it again later."


class Amount(Struct):
    """The capacity of some pages in tokens; a last page may be partial."""

    pages: int
    tokens: int
    bytes: int


class Sizes(Struct):
    """total = free + used + cached; pinned pages are among the used, leased ones among the used or cached."""

    total: Amount
    free: Amount
    used: Amount
    cached: Amount
    pinned: Amount
    pinnable: Amount
    leased: Amount


class HitRate(Struct, kw_only=True):
    """`rate` is null before the first prompt."""

    rate: float | None
    prompt_tokens: int
    cached_tokens: int
    requests: int | UnsetType = UNSET


class NamespaceSize(Struct):
    namespace: str
    own: bool
    size: Amount


class TopPrefix(Struct):
    """`idle` is the number of tokens that the cache has served or stored since the last hit. `text` is the
    beginning of the prefix, `end` its end."""

    namespace: str
    tokens: int
    hits: int
    idle: int
    text: str | None
    end: str | None


class Pin(Struct):
    """`expires_at` is in seconds since 1970."""

    id: str
    namespace: str
    tokens: int
    pages: int
    bytes: int
    expires_at: float


class ShownLease(Struct):
    """`ends_at` is in seconds since 1970; under memory pressure the lease ends earlier."""

    kind: str
    key: str
    namespace: str
    tokens: int
    pages: int
    ends_at: float


class LeaseEnds(Struct):
    key: str


class Tier(Struct):
    """`found` is the number of pages that prompts have found there since the model started."""

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
    """The hit rates cover all clients' requests, so they are left out with isolated keys."""

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
    report: CacheReport,
    model: ModelReady,
    own: str,
    decode: Callable[[Tokens], str] | None,
    *,
    is_isolated: bool,
) -> CacheStatus:
    """`own` is the caller's namespace. Only its texts are shown, and only with `decode`. `is_isolated`: hits
    of other clients' requests are left out."""
    return CacheStatus(
        page_tokens=model.page_size,
        sizes=Sizes(
            total=measure_pages(report.pages_total, model),
            free=measure_pages(report.pages_free, model),
            used=measure_pages(report.pages_used, model),
            cached=measure_pages(report.pages_cached, model),
            pinned=measure_pages(report.pages_pinned, model),
            pinnable=measure_pages(report.pages_pinnable, model),
            leased=measure_pages(report.pages_leased, model),
        ),
        hit_rate=UNSET if is_isolated else _measure_hits(report.prompt_tokens, report.cached_tokens),
        recent_hit_rate=UNSET
        if is_isolated
        else _measure_hits(report.recent_prompt_tokens, report.recent_cached_tokens, report.recent_requests),
        evicted_pages=report.evicted_pages,
        tiers=_show_tiers(report.store),
        namespaces=[
            NamespaceSize(shown_namespace(name), name == own, measure_pages(pages, model))
            for name, pages in report.namespaces.items()
        ],
        prefixes=[_show_prefix(prefix, own, decode) for prefix in report.prefixes],
        pins=[show_pin(pin, model) for pin in report.pins],
        leases=[
            ShownLease(
                each.kind,
                each.key,
                shown_namespace(each.namespace),
                each.tokens,
                each.pages,
                each.ends_at,
            )
            for each in report.leases
        ],
    )


def show_freed(dropped: CacheDropped) -> FreedPages:
    return FreedPages(
        dropped.host_pages,
        dropped.disk_pages,
        dropped.remote_pages,
        disk_error=DISK_ERROR if dropped.disk_pages is None else UNSET,
        remote_error=REMOTE_ERROR if dropped.remote_pages is None else UNSET,
    )


def _show_tiers(store: StoreCounts) -> Tiers:
    return Tiers(
        host=Tier(store.host_pages, store.host_bytes, store.host_hits),
        disk=Tier(store.disk_pages, store.disk_bytes, store.disk_hits),
        remote_found=store.remote_hits,
        restored_pages=store.restored_pages,
    )


def measure_pages(pages: int, model: ModelReady) -> Amount:
    return Amount(pages, pages * model.page_size, pages * model.page_bytes)


def show_pin(pin: PinnedPrefix, model: ModelReady) -> Pin:
    size = pin.pages * model.page_bytes
    return Pin(pin.pin, shown_namespace(pin.namespace), pin.tokens, pin.pages, size, pin.expires_at)


def _measure_hits(prompt: int, cached: int, requests: int | UnsetType = UNSET) -> HitRate:
    rate = round(cached / prompt, 4) if prompt else None
    return HitRate(rate=rate, prompt_tokens=prompt, cached_tokens=cached, requests=requests)


def _show_prefix(prefix: CachedPrefix, own: str, decode: Callable[[Tokens], str] | None) -> TopPrefix:
    text = end = None
    if decode is not None and prefix.namespace == own:
        text = decode(prefix.head)[:TEXT_CHARACTERS]
        end = decode(prefix.tail)[-TEXT_CHARACTERS:]
    return TopPrefix(shown_namespace(prefix.namespace), prefix.tokens, prefix.hits, prefix.idle, text, end)
