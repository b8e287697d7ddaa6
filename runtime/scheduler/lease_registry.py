"""The leases that requests and clients take: their kinds, keys, quotas and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Literal, NamedTuple

from ...radix_cache import Lease, PrefixCache
from ..messages import (
    TOKEN_BYTES,
    CheckPin,
    EndLease,
    Generate,
    LeaseKind,
    LeaseTerms,
    Pin,
    PinFits,
    PinPrefix,
    PrefixPinned,
    QueryRefused,
    ShownLease,
    Tokens,
    UnpinPrefix,
)
from .refusals import (
    refuse_more_pins,
    refuse_over_quota,
    refuse_pages_in_use,
    refuse_uncached,
    refuse_unknown_pin,
    refuse_without_cache,
)
from .request import Request
from .tool_pauses import ToolPauses

MAX_LEASES = 1000  # maximal number of leases of one tenant
MAX_PINS = 1000  # maximal number of pins of one scope
MAX_LISTED = 100
QUEUE_S = 60.0  # seconds for a prompt to start after the results of its tools have come


class Key(NamedTuple):
    """Names leases. Requests of other tenants or namespaces cannot renew or end them."""

    namespace: str
    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a lease is for. The owner of a pin's pages is its scope, and its key is its name."""

    kind: LeaseKind | Literal["pin"]
    key: Key
    request_id: str = ""
    tokens: Tokens = b""  # tokens of a pin, in whole pages


class LeaseRegistry:
    """The leases that the cache may break, and the pins.

    Pins and leases of a scope protect at most `limit` pages together. Beyond that, the tenant with the most
    leased pages loses leases, in the order of `Leases.first_to_free`. `now` is in seconds since 1970.
    """

    def __init__(self, cache: PrefixCache, limit: int) -> None:
        self.now = 0.0
        self.num_broken = 0
        self.limit = limit
        self._cache = cache
        self._pins: dict[str, Lease] = {}  # pins by name
        self._pauses = ToolPauses()
        self._claims: dict[Lease, _Claim] = {}
        self._by_key: dict[Key, list[Lease]] = {}
        self._by_owner: dict[str, dict[Lease, None]] = {}
        self._of_replies: dict[str, Lease] = {}  # `tool_pause` leases, by request id
        self._undecided: dict[str, Request] = {}
        """requests with a `tool_pause` lease that may have ended in tool calls, by id"""

    def arrive(self, message: Generate) -> None:
        """Renews the leases that the request uses: leases under its keys, and those of a pause it ends."""
        for name in self._pauses.results_come(message, self.now):
            self._extend(self._of_replies.get(name), QUEUE_S)
        if message.namespace is not None:
            for terms in message.leases:
                key = Key(message.namespace, message.tenant, terms.key)
                for lease in self._by_key.get(key, ()) if terms.key else ():
                    self._extend(lease, terms.ttl_s)

    def take(self, request: Request, tokens: Tokens) -> None:
        """Takes the request's leases on `tokens`, which it has just left in the tree."""
        if not request.leases or request.namespace is None:
            return
        self._note_ended()
        scope = find_scope(request.namespace)
        for terms in request.leases:
            self._take(request, terms, tokens, self._count_allowed(scope))
        self.enforce_quota(scope)

    def check_pin(self, message: CheckPin) -> PinFits | QueryRefused:
        """Refuses a prefix that could not be pinned even if all of it were cached."""
        tokens = self._cut_to_pages(message.tokens)
        if self._find_pin(message.namespace, tokens) is not None:
            return PinFits(message.query)
        return self._refuse_pin(message, tokens, open_tokens=None) or PinFits(message.query)

    def pin(self, message: PinPrefix, now: float, open_tokens: int) -> PrefixPinned | QueryRefused:
        """open_tokens: how many tokens the longest open request may have"""
        tokens = self._cut_to_pages(message.tokens)
        assert tokens, "a prefix of less than a page"
        ends_at = now + message.ttl_s
        pin = self._find_pin(message.namespace, tokens)
        if pin is None:
            refused = self._refuse_pin(message, tokens, open_tokens)
            if refused is not None:
                return refused
            pin = self._add_pin(message, tokens, ends_at)
        else:
            self._cache.leases.renew(pin, ends_at)
        self.enforce_quota(message.scope)
        return PrefixPinned(message.query, self._describe_pin(pin))

    def unpin(self, message: UnpinPrefix) -> PrefixPinned | QueryRefused:
        pin = self._pins.get(message.pin)
        if pin is None or not self._claims[pin].key.namespace.startswith(message.scope):
            return refuse_unknown_pin(message)
        described = self._describe_pin(pin)
        self._end(pin)
        return PrefixPinned(message.query, described)

    def count_withheld(self, request: Generate) -> int:
        """Number of pinned pages that the request cannot use: all except the pages of its own prefix."""
        pinned = self._cache.leases.num_pinned
        if not pinned:
            return 0
        most = request.sampling.most_cached(len(request.prompt) // TOKEN_BYTES)
        match = self._cache.match(request.namespace, request.prompt, most, whole_pages=True)
        own = self._cache.whole_pages(request.namespace, request.prompt[: match.length * TOKEN_BYTES])
        return pinned - self._cache.leases.count_pinned(own)

    def await_tools(self, request_id: str, tools: Sequence[str]) -> None:
        """Renews the `tool_pause` lease, if any, of a reply that ended in calls of these tools."""
        request = self._undecided.pop(request_id, None)
        if request is not None:
            self._pauses.begin(request, tools, self.now)
            self._extend(self._of_replies[request_id], self._pauses.estimate(request.tenant, tools))

    def end(self, order: EndLease) -> None:
        for lease in list(self._by_owner.get(find_scope(order.namespace) + order.tenant, ())):
            claim = self._claims[lease]
            if claim.key.namespace == order.namespace and order.ends(claim.kind, claim.key.name):
                self._end(lease)

    def expire(self, now: float) -> None:
        self.now = now
        self._note_ended()
        leases = self._cache.leases
        while len(leases) and (lease := leases.first_to_end()).ends_at <= now:
            self._end(lease)

    def _note_ended(self) -> None:
        """Forgets the leases that the cache has broken or dropped."""
        for lease in self._cache.leases.take_ended():
            self.num_broken += lease.is_broken
            self._forget(lease)

    @property
    def next_expiry(self) -> float | None:
        leases = self._cache.leases
        return leases.first_to_end().ends_at if len(leases) else None

    def enforce_quota(self, scope: str) -> None:
        self._note_ended()
        allowed = self._count_allowed(scope)
        owners = {
            owner: pages
            for owner, pages in self._cache.leases.owners().items()
            if find_scope(owner) == scope and pages
        }
        while sum(owners.values()) > allowed:
            largest = max(owners, key=owners.__getitem__)
            for lease in self._cache.leases.first_to_free(self._by_owner[largest]):
                self._break(lease)
            owners[largest] = self._cache.leases.count_pages(largest)

    def list_pins(self, scope: str) -> list[Pin]:
        pins = map(self._describe_pin, self._pins.values())
        return [pin for pin in pins if pin.namespace.startswith(scope)]

    def list_leases(self, scope: str, tenant: str | None) -> list[ShownLease]:
        """The leases that end last, of one tenant or of all."""
        found = [
            (lease, claim)
            for lease, claim in self._claims.items()
            if lease.node is not None
            and lease.is_breakable
            and claim.key.namespace.startswith(scope)
            and tenant in (None, claim.key.tenant)
        ]
        return [
            ShownLease(
                claim.kind, claim.key.name, claim.key.namespace, lease.tokens, lease.num_pages, lease.ends_at
            )
            for lease, claim in nlargest(MAX_LISTED, found, key=lambda each: each[0].ends_at)
        ]

    def pinned_pages(self, scope: str) -> int:
        return self._cache.leases.count_pages(scope, is_breakable=False)

    def leased_pages(self, scope: str) -> int:
        """Number of pages that the scope's tenants lease. A page counts for each tenant that leases it."""
        owners = self._cache.leases.owners()
        return sum(pages for owner, pages in owners.items() if owner.startswith(scope))

    def counts(self) -> dict[str, int]:
        """Number of leases of each kind."""
        self._note_ended()
        return dict(
            Counter(claim.kind for lease, claim in self._claims.items() if lease.node and lease.is_breakable)
        )

    def _count_allowed(self, scope: str) -> int:
        return max(0, self.limit - self.pinned_pages(scope))

    def _add_pin(self, message: PinPrefix, tokens: Tokens, ends_at: float) -> Lease:
        assert message.pin not in self._pins, f"the name {message.pin} is taken"
        pages = self._count_pages(tokens)
        lease = self._cache.lease(
            message.scope, message.namespace, tokens, ends_at, pages, is_breakable=False
        )
        assert lease is not None, "the prefix is cached"
        self._pins[message.pin] = lease
        self._claims[lease] = _Claim("pin", Key(message.namespace, "", message.pin), tokens=tokens)
        return lease

    def _find_pin(self, namespace: str, tokens: Tokens) -> Lease | None:
        for pin in self._pins.values():
            claim = self._claims[pin]
            if (claim.key.namespace, claim.tokens) == (namespace, tokens):
                return pin
        return None

    def _describe_pin(self, pin: Lease) -> Pin:
        key = self._claims[pin].key
        return Pin(key.name, key.namespace, pin.tokens, pin.num_pages, pin.ends_at, bytes=0)

    def _refuse_pin(
        self, message: CheckPin | PinPrefix, tokens: Tokens, open_tokens: int | None
    ) -> QueryRefused | None:
        """Why the prefix cannot be pinned once it is cached, or with `open_tokens`, why it cannot be pinned
        now."""
        leases, query = self._cache.leases, message.query
        wanted, cached = self._count_pages(tokens), self._cache.whole_pages(message.namespace, tokens)
        more = wanted - leases.count_pinned(cached)
        pinned = self.pinned_pages(message.scope)
        if not self._cache.enabled:
            return refuse_without_cache(query)
        if sum(pin.owner == message.scope for pin in self._pins.values()) >= MAX_PINS:
            return refuse_more_pins(query, MAX_PINS)
        if pinned + more > self.limit:
            return refuse_over_quota(message, wanted, more, pinned, self.limit, self._cache.page_size)
        if open_tokens is None:
            return None
        if leases.num_pinned + more > self._cache.num_pages - self._cache.count_pages(open_tokens):
            return refuse_pages_in_use(query, more)
        if len(cached) < wanted:
            return refuse_uncached(query, wanted, len(cached))
        lacking = self._cache.find_full_window(open_tokens, wanted * self._cache.page_size)
        return None if lacking is None else refuse_pages_in_use(query, lacking.needed)

    def _count_pages(self, tokens: Tokens) -> int:
        return len(tokens) // TOKEN_BYTES // self._cache.page_size

    def _cut_to_pages(self, tokens: Tokens) -> Tokens:
        return tokens[: self._count_pages(tokens) * self._cache.page_size * TOKEN_BYTES]

    def _take(self, request: Request, terms: LeaseTerms, tokens: Tokens, max_pages: int) -> None:
        assert request.namespace is not None
        if terms.end is not None:
            tokens = tokens[: min(terms.end, request.prompt_length) * TOKEN_BYTES]
        owner = find_scope(request.namespace) + request.tenant
        ends_at = self.now + terms.ttl_s
        is_pause = terms.kind == "tool_pause"
        lease = self._cache.lease(owner, request.namespace, tokens, ends_at, max_pages, is_pause)
        if lease is None:
            return
        claim = _Claim(terms.kind, Key(request.namespace, request.tenant, terms.key), request.id)
        self._claims[lease] = claim
        self._by_owner.setdefault(owner, {})[lease] = None
        if is_pause:
            self._of_replies[request.id] = lease
            self._undecided[request.id] = request
            self._end_earlier_pauses(lease)
        elif terms.key:
            self._replace(lease, claim.key, terms.most)
        else:
            self._absorb(lease)
        if len(self._by_owner[owner]) > MAX_LEASES:
            self._break(min(self._by_owner[owner], key=lambda lease: lease.break_order))

    def _replace(self, new: Lease, key: Key, most: int) -> None:
        """Ends the leases under the key that the new lease extends, then the oldest ones beyond `most`."""
        extended = set(self._cache.leases.on_path(new))
        for lease in list(self._by_key.get(key, ())):
            if lease.node is None or lease in extended:
                self._end(lease)
        leases = self._by_key.setdefault(key, [])
        leases.append(new)
        for lease in leases[: max(0, len(leases) - most)]:
            self._end(lease)

    def _absorb(self, new: Lease) -> None:
        """Ends leases without a key on the same path that the new one makes superfluous."""
        for lease in self._cache.leases.on_path(new):
            claim = self._claims.get(lease)
            is_alike = claim is not None and not claim.key.name and claim.kind != "tool_pause"
            if is_alike and lease.owner == new.owner and lease.ends_at <= new.ends_at:
                self._end(lease)

    def _end_earlier_pauses(self, new: Lease) -> None:
        for lease in self._cache.leases.on_path(new):
            claim = self._claims.get(lease)
            if claim is not None and claim.kind == "tool_pause" and lease.owner == new.owner:
                self._end(lease)

    def _extend(self, lease: Lease | None, seconds: float) -> None:
        if lease is not None and lease.node is not None and lease.ends_at < self.now + seconds:
            self._cache.leases.renew(lease, self.now + seconds)

    def _break(self, lease: Lease) -> None:
        self.num_broken += 1
        self._end(lease)

    def _end(self, lease: Lease) -> None:
        if lease.node is not None:
            self._cache.end_lease(lease)
        self._forget(lease)

    def _forget(self, lease: Lease) -> None:
        claim = self._claims.pop(lease, None)
        if claim is None:
            return
        if claim.kind == "pin":
            del self._pins[claim.key.name]
            return
        owned = self._by_owner[lease.owner]
        del owned[lease]
        if not owned:
            del self._by_owner[lease.owner]
        if claim.kind == "tool_pause":
            self._of_replies.pop(claim.request_id, None)
            self._undecided.pop(claim.request_id, None)
        elif claim.key.name:
            leases = self._by_key[claim.key]
            leases.remove(lease)
            if not leases:
                del self._by_key[claim.key]


def find_scope(name: str) -> str:
    """The scope at the beginning of a namespace's or an owner's name (`frontend/http/tenants.py`)."""
    return name[: name.rfind("/") + 1]
