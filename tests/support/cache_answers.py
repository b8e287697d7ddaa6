"""The answers of a scripted scheduler to questions about the cache."""

from __future__ import annotations

import time
from typing import Any

from arbora.runtime.messages import (
    CacheAnswer,
    CacheControl,
    CacheDropped,
    CacheReport,
    CheckPin,
    DropCache,
    ExplainPrompt,
    HitRate,
    NodeTokens,
    Pin,
    PinFits,
    PinPrefix,
    PrefixPinned,
    PromptExplained,
    QueryCache,
    QueryNode,
    StoreCounts,
    UnpinPrefix,
)

PAGE_BYTES = 1024


def well(message: CacheControl) -> CacheAnswer:
    """Answers as if everything succeeded."""
    match message:
        case QueryCache():
            return report(message.query)
        case DropCache():
            return CacheDropped(message.query, 3, 47, 1, 2, 4)
        case CheckPin():
            return PinFits(message.query)
        case PinPrefix():
            pages = len(message.tokens) // 4 // 16
            expires_at = time.time() + message.ttl_s
            return PrefixPinned(
                message.query, Pin(message.pin, message.namespace, pages * 16, pages, expires_at, 0)
            )
        case UnpinPrefix():
            return PrefixPinned(message.query, Pin(message.pin, "", 16, 1, 0.0, 0))
        case ExplainPrompt():
            return PromptExplained(message.query, 0, 0, b"")
        case QueryNode():
            return NodeTokens(message.query, None)


def report(query: int, **fields: Any) -> CacheReport:
    numbers = {
        "pages_total": 64,
        "pages_free": 50,
        "pages_used": 4,
        "pages_cached": 10,
        "pages_pinned": 2,
        "pages_pinnable": 16,
        "pages_leased": 0,
        "evicted_pages": 5,
    }
    rates = {
        "hits": HitRate(rate=0.75, prompt_tokens=1000, cached_tokens=750),
        "recent_hits": HitRate(rate=0.9, prompt_tokens=100, cached_tokens=90, requests=4),
    }
    lists: dict[str, Any] = {"namespaces": {}, "prefixes": [], "pins": [], "leases": []}
    store = StoreCounts(host_pages=3, host_bytes=3 * PAGE_BYTES, host_hits=7, disk_pages=9, restored_pages=6)
    return CacheReport(query, store=store, **{**numbers, **rates, **lists, **fields})
