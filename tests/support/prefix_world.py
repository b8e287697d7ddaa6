"""A scheduler and a device in miniature around a real `PrefixCache`, and a naive model of what it holds.

All tokens up to a token, and the namespace, represent its KV, because the KV depends only on them.
Steps run in the order in which they were planned, after planning, as in the engine.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from arbora.radix_cache import Lease, Lock, PrefixCache
from arbora.radix_cache.node import Node

Kv = tuple[str | None, tuple[int, ...]]


def pack(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()


def unpack(tokens: bytes) -> tuple[int, ...]:
    return tuple(array("i", tokens))


def prefixes(namespace: str | None, tokens: tuple[int, ...]) -> set[Kv]:
    return {(namespace, tokens[:length]) for length in range(1, len(tokens) + 1)}


def take_pages(cache: PrefixCache, count: int) -> list[int] | None:
    """Allocates pages for a request that shares nothing and never ends; None if too few are available."""
    lock = cache.acquire(cache.match(None, b""))
    if cache.extend(lock, count * cache.page_size):
        return lock.pages
    cache.release(lock, b"")
    return None


@dataclass(eq=False)
class Request:
    namespace: str | None
    tokens: tuple[int, ...]
    prompt_length: int
    lock: Lock
    planned: int
    steps_in_flight: int = 0
    cancelled: bool = False

    @property
    def pages(self) -> list[int]:
        return self.lock.pages


@dataclass
class Step:
    request: Request
    start: int
    end: int
    pages: list[int]
    windows: list[list[int]]
    copies: bool


class LeaseEnd:
    """Where a lease ended before an operation. `is_free_leaf`: breaking it made pages evictable."""

    def __init__(self, node: Node, is_free_leaf: bool) -> None:
        self.node, self.is_free_leaf = node, is_free_leaf
        self.pages = {page for above in node.path() for page in above.pages}


@dataclass
class World:
    """Each method is one operation of the engine, and checks the invariants after it."""

    cache: PrefixCache
    num_pages: int
    requests: list[Request] = field(default_factory=list)
    steps: deque[Step] = field(default_factory=deque)
    cached: set[Kv] = field(default_factory=set)  # every prefix that a match must find
    slots: dict[int, list[Kv | None]] = field(default_factory=dict)  # page id -> KV
    pins: list[Lease] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)

    def __post_init__(self) -> None:
        groups, size = self.cache.windows, self.cache.page_size
        self.window_slots: list[list[list[Kv | None]]] = [
            [[None] * size for _ in range(group.num_pages)] for group in groups
        ]
        """by windowed group, page and slot"""

    def longest(self, namespace: str | None, tokens: tuple[int, ...], step: int = 1) -> int:
        """The longest match: a multiple of `step` whose tokens are cached, and whose next token finds all
        that it sees in the windowed pages of the nodes in which the tree found the tokens."""
        lengths = range(step, len(tokens) + 1, step)
        cached = [length for length in lengths if (namespace, tokens[:length]) in self.cached]
        if self.cache.windows:
            found = self.cache._tree.find(namespace, pack(tokens))
            nodes = [*reversed([*found.node.path()]), *([found.inside] if found.inside else [])]
            cached = [length for length in cached if self._is_served(nodes, length)]
        return max(cached, default=0)

    def _is_served(self, nodes: list[Node], length: int) -> bool:
        for number, group in enumerate(self.cache.windows):
            pages = [page for node in nodes if node.parent for page in node.windows[number]]
            for position in range(group.reach.find_first(length), length):
                page = pages[position // self.cache.page_size]
                if page is None or page.id < 0:
                    return False
        return True

    def window_pages(self, number: int) -> Iterator[tuple[str | None, tuple[int, ...], int, int]]:
        """Of each windowed page in the tree: namespace and tokens of its node, its first position, its id."""
        for root in self.cache._tree.roots.values():
            for node in root.subtree():
                tokens = unpack(node.sequence())
                first = len(tokens) - len(node.tokens) // 4
                for index, page in enumerate(node.windows[number] if node.parent else ()):
                    if page is not None and page.id >= 0:
                        yield node.namespace, tokens, first + index * self.cache.page_size, page.id

    def look_up(self, namespace: str | None, tokens: tuple[int, ...]) -> None:
        assert self.cache.match(namespace, pack(tokens)).length == self.longest(namespace, tokens)

    def admit(self, namespace: str | None, tokens: tuple[int, ...], prompt_length: int) -> Request:
        limit = prompt_length - 1
        expected = self.longest(namespace, tokens[:limit])
        found = self.cache.match(namespace, pack(tokens[:prompt_length]), limit)
        before, most = self.cache.stats(), self.cache.max_pages(found)
        without_tail = self.cache.match(namespace, pack(tokens[:prompt_length]), limit, whole_pages=True)
        most_without_tail = self.cache.max_pages(without_tail)
        assert self.cache.stats() == before
        assert most_without_tail - most in (0, 1) or self.cache.windows
        lock = self.cache.acquire(found, prompt_length)
        assert lock.matched == expected
        assert most == len(lock.pages) + self.cache.available()
        whole = lock.matched // self.cache.page_size
        tail = lock.matched % self.cache.page_size
        adopted = bool(tail) and lock.copy is None
        assert len(lock.pages) == whole + adopted
        assert lock.copy is None or lock.copy.tokens == tail
        lost = self.cached - self.reachable()
        assert lost <= prefixes(namespace, tokens[: lock.matched])
        assert adopted or not lost
        assert all(len(prefix) > whole * self.cache.page_size for _, prefix in lost)
        self.cached -= lost
        request = Request(namespace, tokens, prompt_length, lock, lock.matched)
        self.requests.append(request)
        return request

    def allocate(self, count: int, lock: Lock | None = None) -> list[int] | None:
        """Allocates pages, for a request if its lock is given."""
        before, available = self.cache.stats(), self.cache.available()
        leased, unleased = self.leased_tokens(), available - self.leased_pages()
        ends = self.lease_ends()
        if lock is None:
            pages = take_pages(self.cache, count)
        else:
            before_end = len(lock.pages)
            done = self.cache.extend(lock, lock.capacity + count * self.cache.page_size)
            pages = lock.pages[before_end:] if done else None
        if pages is None:
            assert count > available
            assert self.cache.stats() == before
            return None
        assert len(set(pages)) == count <= available
        evicted = max(count - before.free, 0)
        assert self.cache.stats().evicted_pages == before.evicted_pages + evicted
        remaining = self.reachable()
        assert remaining <= self.cached
        assert evicted or remaining == self.cached
        assert count > unleased or leased <= remaining, "leased pages are evicted last"
        self.check_broken(ends)
        self.cached = remaining
        for page in pages:
            self.slots[page] = [None] * self.cache.page_size
        return pages

    def plan(self, request: Request, count: int) -> None:
        """Plans up to `count` tokens of a request if there are pages for them."""
        end = min(request.planned + count, len(request.tokens))
        if end == request.planned:
            return
        # The request may have the pages already, if a windowed group lacked pages for its last plan.
        missing = max(0, -(-end // self.cache.page_size) - len(request.pages))
        if self.allocate(missing, request.lock) is None:
            return
        end = self.cache.extend_windows(request.lock, end)
        if end <= request.planned:
            return
        windows = [table.list_ids() for table in request.lock.windows]
        copies = request.lock.copy is not None and request.planned == request.lock.matched
        self.steps.append(Step(request, request.planned, end, list(request.pages), windows, copies))
        request.steps_in_flight += 1
        request.planned = end
        if end <= request.prompt_length:
            self.commit(request)

    def commit(self, request: Request) -> None:
        tokens = request.tokens[: request.planned]
        self.cache.commit(request.lock, pack(tokens))
        whole = len(tokens) // self.cache.page_size * self.cache.page_size
        self.keep(request.namespace, tokens[:whole])
        assert self.reachable() == self.cached

    def run_step(self) -> None:
        step = self.steps.popleft()
        request = step.request
        if step.copies:
            copy = request.lock.copy
            assert copy is not None
            target = request.lock.copy_target
            self.slots[target][: copy.tokens] = self.slots[copy.source][: copy.tokens]
            copies = request.lock.list_copies()[1:]
            for slots, (source, target) in zip(self.window_slots, copies, strict=True):
                slots[target] = list(slots[source])
        for position in range(step.start):
            assert self.read(step.pages, position) == (request.namespace, request.tokens[: position + 1])
        for position in range(step.start, step.end):
            page, slot = divmod(position, self.cache.page_size)
            self.slots[step.pages[page]][slot] = (request.namespace, request.tokens[: position + 1])
        self.run_windows(step)
        request.steps_in_flight -= 1
        if step.copies:
            self.cache.end_copy(request.lock)
        self.cache.shrink(request.lock, step.end)
        if request.cancelled and not request.steps_in_flight:
            self.release(request)

    def run_windows(self, step: Step) -> None:
        """A step's tokens find all that they see, although a page behind a window is given to others."""
        groups, size, request = self.cache.windows, self.cache.page_size, step.request
        for group, slots, table in zip(groups, self.window_slots, step.windows, strict=True):
            kv = [(request.namespace, request.tokens[: position + 1]) for position in range(step.end)]
            for position in range(group.reach.find_first(step.start), step.start):
                assert slots[table[position // size]][position % size] == kv[position]
            for position in range(step.start, step.end):
                slots[table[position // size]][position % size] = kv[position]

    def read(self, pages: list[int], position: int) -> Kv | None:
        page, slot = divmod(position, self.cache.page_size)
        return self.slots[pages[page]][slot]

    def cancel(self, request: Request) -> None:
        """Ends a request now, or with its last step in flight."""
        request.cancelled = True
        if not request.steps_in_flight:
            self.release(request)

    def release(self, request: Request) -> None:
        never_copied = request.lock.copy is not None and request.planned == request.lock.matched
        length = request.planned - (request.lock.copy.tokens if never_copied and request.lock.copy else 0)
        tokens = request.tokens[: request.planned]
        self.cache.release(request.lock, pack(tokens))
        self.requests.remove(request)
        self.keep(request.namespace, tokens[:length])
        assert self.reachable() == self.cached
        self.look_up(request.namespace, tokens)

    def keep(self, namespace: str | None, tokens: tuple[int, ...]) -> None:
        if namespace is not None:
            self.cached |= prefixes(namespace, tokens)

    def pin(self, namespace: str, tokens: tuple[int, ...]) -> None:
        """Pins the cached whole pages of the tokens."""
        pages = self.cache.whole_pages(namespace, pack(tokens))
        fresh = len(pages) - self.cache.leases.count_pinned(pages)
        before = self.cache.stats().pinned
        whole = pack(tokens[: len(pages) * self.cache.page_size])
        pin = self.cache.lease("pins", namespace, whole, 9.0, len(pages), is_breakable=False)
        size = self.cache.page_size
        assert len(pages) * size == self.longest(namespace, tokens, size)
        if pin is None:
            assert not pages
            return
        self.pins.append(pin)
        assert pin.tokens == len(pages) * size
        assert pin.pages == pages
        assert self.cache.stats().pinned == before + fresh

    def unpin(self, pin: Lease) -> None:
        self.pins.remove(pin)
        self.cache.end_lease(pin)
        assert self.reachable() == self.cached

    def lease(
        self,
        owner: str,
        namespace: str,
        tokens: tuple[int, ...],
        ends_at: int,
        most: int,
        *,
        is_estimate: bool,
    ) -> None:
        """Leases what is cached of the tokens. Nothing becomes locked, and nothing leaves the tree."""
        before, cut = self.cache.stats(), tokens[: most * self.cache.page_size]
        lease = self.cache.lease(owner, namespace, pack(tokens), ends_at, most, is_estimate)
        assert self.cache.stats() == before
        assert self.reachable() == self.cached
        whole = len(self.cache.whole_pages(namespace, pack(cut))) * self.cache.page_size
        if lease is None:
            assert not whole
            return
        assert whole <= lease.tokens <= self.longest(namespace, cut)
        self.leases.append(lease)

    def end_lease(self, lease: Lease) -> None:
        self.leases.remove(lease)
        if lease.node is not None:
            self.cache.end_lease(lease)
        assert self.reachable() == self.cached

    def leased_tokens(self) -> set[Kv]:
        ends = [lease.node for lease in self.leases if lease.node is not None]
        return {kv for node in ends for kv in prefixes(node.namespace, unpack(node.sequence()))}

    def leased_pages(self) -> int:
        """Leased pages that nothing locks."""
        paths = [node for lease in self.leases if lease.node is not None for node in lease.node.path()]
        return len({page for node in paths if not node.locks for page in node.pages})

    def lease_ends(self) -> dict[Lease, LeaseEnd]:
        self.cache.leases.take_ended()
        return {
            lease: LeaseEnd(lease.node, not lease.node.locks and not lease.node.children)
            for lease in self.leases
            if lease.node is not None
        }

    def check_broken(self, before: dict[Lease, LeaseEnd]) -> None:
        """Leases were broken only for their pages, and of two leaves the one whose last lease comes first in
        the order lost its leases first: estimates, the latest first, then promised times, the earliest first.

        The tokens of a broken lease may all be cached still: another node can begin with a tail's tokens.
        """
        broken = [lease for lease in self.cache.leases.take_ended() if lease.is_broken]
        kept = {page for _, _, pages in self.sequences() for page in pages}
        assert all(not before[lease].pages <= kept for lease in broken), "a lease was broken for nothing"
        last: dict[Node, tuple[bool, float]] = {}
        for lease, end in before.items():
            order = not lease.is_estimate, lease.ends_at * (-1) ** lease.is_estimate
            last[end.node] = max(order, last.get(end.node, order))
        spared = [end.node for lease, end in before.items() if end.is_free_leaf and not lease.is_broken]
        assert all(last[before[lease].node] <= last[node] for lease in broken for node in spared)

    def drop(self, namespace: str) -> None:
        """Only locked and pinned pages of the namespace stay; other namespaces lose nothing."""
        free = self.cache.stats().free
        dropped = self.cache.drop(namespace)
        assert self.cache.stats().free == free + dropped.pages
        remaining = self.reachable()
        assert {kv for kv in self.cached if kv[0] != namespace} <= remaining <= self.cached
        assert len(self.cached) - len(remaining) <= dropped.tokens
        self.cached = remaining
        kept = self.cache.reports.namespaces().get(namespace, 0)
        assert kept == sum(len(node.pages) for node in self.nodes(namespace) if node.locks)

    def nodes(self, namespace: str) -> list[Node]:
        root = self.cache._tree.roots.get(namespace)
        return list(root.subtree()) if root is not None else []

    def discard(self, request: Request) -> None:
        """Ends a request whose KV is wrong, after its last step."""
        assert not request.steps_in_flight
        self.cache.discard(request.lock)
        self.requests.remove(request)
        remaining = self.reachable()
        assert remaining <= self.cached
        assert self.cached - remaining <= prefixes(request.namespace, request.tokens)
        self.cached = remaining

    def claim_everything(self) -> None:
        """All available pages can be allocated, and not one more."""
        count = self.cache.available()
        assert self.allocate(count + 1) is None
        self.evict(count - self.cache.stats().free)
        assert self.cache.stats().free == count

    def evict(self, count: int) -> None:
        """Allocates so many pages that `count` of the tree's are evicted, and frees them at once."""
        lock = self.cache.acquire(self.cache.match("", b""))
        self.allocate(self.cache.stats().free + count, lock)
        self.cache.release(lock, b"")

    def evict_windows(self, count: int) -> None:
        """Allocates so many windowed pages that up to `count` cached ones are evicted, and frees them."""
        lock = self.cache.acquire(self.cache.match("", b""))
        for table in lock.windows:
            group = table.group
            table.extend(min(group.available, group.allocator.num_free + count))
        self.cache.release(lock, b"")

    def sequences(self) -> list[tuple[str | None, tuple[int, ...], list[int]]]:
        """The contents of the tree: namespace, tokens and pages down to each node."""
        return [
            (node.namespace, unpack(node.sequence()), [p for n in [*node.path()][::-1] for p in n.pages])
            for root in self.cache._tree.roots.values()
            for node in root.subtree()
        ]

    def reachable(self) -> set[Kv]:
        return {kv for namespace, tokens, _ in self.sequences() for kv in prefixes(namespace, tokens)}

    def check_locks(self) -> None:
        """Locked are the pages on the paths of open requests, the sources of their copies, and pins."""
        locked = {page for pin in self.pins for page in pin.pages}
        assert self.cache.stats().pinned == len(locked)
        for request in self.requests:
            assert request.lock.node is not None
            locked.update(page for node in request.lock.node.path() for page in node.pages)
            if request.lock.source is not None and request.lock.copy is not None:
                locked.add(request.lock.copy.source)
        assert self.cache.stats().locked == len(locked)

    def check_contents(self) -> None:
        """With no step in flight, every cached slot holds the KV of the tokens that lead to it."""
        if self.steps:
            return
        for namespace, tokens, pages in self.sequences():
            for position in range(len(tokens)):
                assert self.read(pages, position) == (namespace, tokens[: position + 1])
        size = self.cache.page_size
        for number, slots in enumerate(self.window_slots):
            for namespace, tokens, start, page in self.window_pages(number):
                for position in range(start, min(start + size, len(tokens))):
                    assert slots[page][position - start] == (namespace, tokens[: position + 1])
