"""Pinned prefixes: their expiry times and their share of the cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from ...radix_cache import Lock, PrefixCache
from ..messages import (
    CheckPin,
    Generate,
    PinFits,
    PinnedPrefix,
    PinPrefix,
    PrefixPinned,
    QueryRefused,
    Tokens,
)
from .request import TOKEN_BYTES

MOST_PINS = 1000


@dataclass(slots=True)
class Pin:
    name: str
    scope: str
    namespace: str
    tokens: Tokens
    lock: Lock
    expires_at: float  # seconds since 1970

    def described(self) -> PinnedPrefix:
        return PinnedPrefix(
            self.name, self.namespace, self.lock.matched, len(self.lock.pages), self.expires_at
        )


class Obstacle(NamedTuple):
    code: str
    message: str
    status: int = 409

    def refusal(self, query: int) -> QueryRefused:
        return QueryRefused(query, self.status, self.message, None, self.code)


class PinRegistry:
    """Pins by name. Callers pass the current time."""

    def __init__(self, cache: PrefixCache, limit: int) -> None:
        """limit: pages that all pins of a scope may keep together"""
        self.limit = limit
        self.next_expiry: float | None = None
        self._cache = cache
        self._pins: dict[str, Pin] = {}
        self._pages: Counter[str] = Counter()  # by scope

    def pages(self, scope: str) -> int:
        return self._pages[scope]

    def listed(self, scope: str) -> list[PinnedPrefix]:
        return [pin.described() for pin in self._pins.values() if pin.namespace.startswith(scope)]

    def withheld(self, request: Generate) -> int:
        """Pinned pages that the request cannot use: all except those of its own prefix."""
        pinned = self._cache.stats().pinned
        if not pinned:
            return 0
        most = request.sampling.most_cached(len(request.prompt) // TOKEN_BYTES)
        readable = request.prompt[: most * TOKEN_BYTES]
        return pinned - self._cache.pinned(self._cache.whole_pages(request.namespace, readable))

    def check(self, message: CheckPin) -> PinFits | QueryRefused:
        """Refuses a prefix that could not be pinned even if all of it were cached."""
        whole = self._whole_pages(message.tokens)
        found = None
        if self._same(message.namespace, whole) is None:
            pages = self._cache.whole_pages(message.namespace, whole)
            found = self._permanent_obstacle(message.scope, self._pages_of(whole), pages)
        return PinFits(message.query) if found is None else found.refusal(message.query)

    def pin(self, message: PinPrefix, now: float, spare: int) -> PrefixPinned | QueryRefused:
        """spare: pages that no open request can need"""
        whole = self._whole_pages(message.tokens)
        assert whole, "a prefix of less than a page"
        pin = self._same(message.namespace, whole)
        if pin is None:
            wanted, pages = self._pages_of(whole), self._cache.whole_pages(message.namespace, whole)
            found = self._permanent_obstacle(message.scope, wanted, pages)
            found = found or self._temporary_obstacle(wanted, pages, spare)
            if found is not None:
                return found.refusal(message.query)
            pin = self._add(message, whole)
        pin.expires_at = now + message.ttl_s
        self._set_next_expiry()
        return PrefixPinned(message.query, pin.described())

    def unpin(self, name: str, scope: str) -> PinnedPrefix | None:
        """Ends a pin and returns it; None if the scope has no pin of that name."""
        pin = self._pins.get(name)
        if pin is None or not pin.namespace.startswith(scope):
            return None
        self._remove(pin)
        return pin.described()

    def expire(self, now: float) -> None:
        if self.next_expiry is None or now < self.next_expiry:
            return
        for pin in [pin for pin in self._pins.values() if pin.expires_at <= now]:
            self._remove(pin)

    def _add(self, message: PinPrefix, tokens: Tokens) -> Pin:
        assert message.pin not in self._pins, f"the name {message.pin} is taken"
        before = self._cache.stats().pinned
        lock = self._cache.pin(message.namespace, tokens)
        self._pages[message.scope] += self._cache.stats().pinned - before
        pin = Pin(message.pin, message.scope, message.namespace, tokens, lock, expires_at=0.0)
        self._pins[pin.name] = pin
        return pin

    def _remove(self, pin: Pin) -> None:
        before = self._cache.stats().pinned
        self._cache.unpin(pin.lock)
        self._pages[pin.scope] -= before - self._cache.stats().pinned
        del self._pins[pin.name]
        self._set_next_expiry()

    def _set_next_expiry(self) -> None:
        self.next_expiry = min((pin.expires_at for pin in self._pins.values()), default=None)

    def _same(self, namespace: str, tokens: Tokens) -> Pin | None:
        pins = self._pins.values()
        return next((pin for pin in pins if (pin.namespace, pin.tokens) == (namespace, tokens)), None)

    def _pages_of(self, tokens: Tokens) -> int:
        return len(tokens) // TOKEN_BYTES // self._cache.page_size

    def _whole_pages(self, tokens: Tokens) -> Tokens:
        return tokens[: self._pages_of(tokens) * self._cache.page_size * TOKEN_BYTES]

    def _permanent_obstacle(self, scope: str, wanted: int, pages: list[int]) -> Obstacle | None:
        """Why `wanted` pages, of which `pages` are cached, cannot be pinned even once all are cached."""
        more = wanted - self._cache.pinned(pages)
        if not self._cache.enabled:
            return Obstacle("no_prefix_cache", "The server runs with --no-prefix-cache.")
        if sum(pin.scope == scope for pin in self._pins.values()) >= MOST_PINS:
            fix = "Unpin others (DELETE /cache/pin/ID)."
            return Obstacle("too_many_pins", f"{MOST_PINS} prefixes are pinned, which is the limit. {fix}")
        if self.pages(scope) + more > self.limit:
            return Obstacle("pin_quota_exceeded", self._over_quota(scope, wanted, more))
        return None

    def _temporary_obstacle(self, wanted: int, pages: list[int], spare: int) -> Obstacle | None:
        """Why they cannot be pinned now."""
        more = wanted - self._cache.pinned(pages)
        if self._cache.stats().pinned + more > spare:
            return Obstacle(
                "kv_cache_in_use",
                f"The prefix takes {more} more pages of KV cache, which open requests may need. Try again.",
            )
        if len(pages) < wanted:
            return Obstacle(
                "prefix_not_cached",
                f"Only {len(pages)} of the prefix's {wanted} pages are cached; others were evicted. "
                "Try again.",
                status=503,
            )
        return None

    def _over_quota(self, scope: str, wanted: int, more: int) -> str:
        whose = "with your API key" if scope else "in all"
        fix = "Pin a shorter prefix" if wanted > self.limit else "Unpin others (DELETE /cache/pin/ID)"
        start = f"{fix}, or start" if self.limit else "Start"
        return (
            f"The prefix takes {self._amount(more)} more of the KV cache, but {self._amount(self.limit)} may "
            f"be pinned {whose}, of which {self.pages(scope)} are. {start} the server with a larger "
            "--pin-memory."
        )

    def _amount(self, pages: int) -> str:
        return f"{pages:,} pages ({pages * self._cache.page_size:,} tokens)"
