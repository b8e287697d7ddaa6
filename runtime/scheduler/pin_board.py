"""Prefixes that clients want kept: until when, and how much of the cache they may take."""

from __future__ import annotations

from dataclasses import dataclass

from ...radix_cache import Lease, PrefixCache
from ..messages import PinnedPrefix, PinPrefix, PrefixPinned, QueryRefused, Tokens
from .request import TOKEN_BYTES

MOST_PINS = 1000


@dataclass(slots=True)
class Pin:
    """`expires_at` is in seconds since 1970."""

    name: str
    namespace: str
    tokens: Tokens
    lease: Lease
    expires_at: float

    def told(self) -> PinnedPrefix:
        return PinnedPrefix(
            self.name, self.namespace, self.lease.matched, len(self.lease.pages), self.expires_at
        )


class PinBoard:
    """`limit` is how many pages all pins together may keep. Time comes from the caller."""

    def __init__(self, cache: PrefixCache, limit: int) -> None:
        self.limit = limit
        self.next_expiry: float | None = None
        self._cache = cache
        self._pins: dict[str, Pin] = {}

    def listed(self, scope: str) -> list[PinnedPrefix]:
        return [pin.told() for pin in self._pins.values() if pin.namespace.startswith(scope)]

    def withheld(self, namespace: str | None, prefix: Tokens) -> int:
        """Pinned pages that a request can't have: those that do not begin its own tokens."""
        pinned = self._cache.stats().pinned
        return pinned - self._cache.pinned(self._cache.whole_pages(namespace, prefix)) if pinned else 0

    def pin(self, message: PinPrefix, now: float, spare: int) -> PrefixPinned | QueryRefused:
        """`spare` pages are more than any open request could need."""
        whole = self._whole_pages(message.tokens)
        assert whole, "a prefix of less than a page"
        pages = self._cache.whole_pages(message.namespace, whole)
        pin = self._same(message.namespace, whole)
        if pin is None:
            refused = self._refusal(message, len(whole), pages, spare)
            if refused is not None:
                return refused
            lease = self._cache.pin(message.namespace, whole)
            pin = Pin(message.pin, message.namespace, whole, lease, now)
            self._pins[pin.name] = pin
        pin.expires_at = now + message.ttl_s
        self._set_next_expiry()
        return PrefixPinned(message.query, pin.told())

    def unpin(self, name: str, scope: str) -> PinnedPrefix | None:
        """The pin that ended; None if there is none of that name in the scope."""
        pin = self._pins.get(name)
        if pin is None or not pin.namespace.startswith(scope):
            return None
        self._remove(pin)
        return pin.told()

    def expire(self, now: float) -> None:
        if self.next_expiry is None or now < self.next_expiry:
            return
        for pin in [pin for pin in self._pins.values() if pin.expires_at <= now]:
            self._remove(pin)

    def _remove(self, pin: Pin) -> None:
        self._cache.unpin(pin.lease)
        del self._pins[pin.name]
        self._set_next_expiry()

    def _set_next_expiry(self) -> None:
        self.next_expiry = min((pin.expires_at for pin in self._pins.values()), default=None)

    def _same(self, namespace: str, tokens: Tokens) -> Pin | None:
        pins = self._pins.values()
        return next((pin for pin in pins if (pin.namespace, pin.tokens) == (namespace, tokens)), None)

    def _whole_pages(self, tokens: Tokens) -> Tokens:
        page_bytes = self._cache.page_size * TOKEN_BYTES
        return tokens[: len(tokens) // page_bytes * page_bytes]

    def _refusal(
        self, message: PinPrefix, whole_bytes: int, pages: list[int], spare: int
    ) -> QueryRefused | None:
        wanted = whole_bytes // TOKEN_BYTES // self._cache.page_size
        pinned = self._cache.stats().pinned
        more = wanted - self._cache.pinned(pages)

        def refuse(reason: str, code: str, status: int = 409) -> QueryRefused:
            return QueryRefused(message.query, status, reason, "prompt", code)

        if not self._cache.enabled:
            return refuse("There is nothing to pin: the server runs with --no-prefix-cache.", "no_prefix_cache")
        if len(self._pins) >= MOST_PINS:
            return refuse(f"{MOST_PINS} prefixes are pinned, which is the limit. Unpin one.", "too_many_pins")
        if pinned + more > self.limit:
            return refuse(
                f"The prefix takes {more} more pages of KV cache, but {pinned} of {self.limit} pages that may "
                "be pinned are taken. Unpin others, or start the server with a larger --pin-memory.",
                "pin_quota_exceeded",
            )
        if more > spare - pinned:
            return refuse(
                f"The prefix takes {more} more pages of KV cache, which open requests may need. Try again later.",
                "kv_cache_in_use",
            )
        if len(pages) < wanted:
            return refuse(
                f"Only {len(pages)} of the prefix's {wanted} pages are cached; other requests took the rest. "
                "Try again later.",
                "prefix_not_cached",
                status=503,
            )
        return None
