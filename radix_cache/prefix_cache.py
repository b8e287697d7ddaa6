"""The interface of the prefix cache: match and lock, allocate, commit, release."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .cache_reports import TreeReports
from .checkpoints import Checkpoints
from .eviction import EvictionPolicy
from .gittins import GittinsPolicy
from .invariants import check, check_continues
from .leases import Lease, Leases
from .lock import Copy, Lock, PrefixMatch
from .node import Node
from .packed import TOKEN_BYTES
from .page_allocator import PageAllocator
from .page_keys import Missing, TreeKeys
from .path_windows import PathWindows
from .request_states import RequestStates
from .tree import RadixTree
from .tree_changes import ChangeFeed, PagesStored, TreeChanges, list_stored
from .windowed_groups import FullWindow, WindowedGroups
from .windows import Reach, WindowGroup


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Pages by state: free + held + evictable + locked = total."""

    total: int
    free: int
    held: int  # held by requests and not (yet) in the tree
    evictable: int  # pages in the tree that are not locked
    locked: int  # pages in the tree that a request or a pin locks
    pinned: int  # locked by a pin
    evicted_pages: int  # pages evicted since the start
    windows: tuple[tuple[int, int], ...]
    """for each windowed group the number of free pages, and of cached pages that nothing uses"""


class Dropped(NamedTuple):
    pages: int
    tokens: int


class PrefixCache:
    """Knows where every page of KV cache is, and which tokens' KV it holds.

    Token sequences are packed little-endian int32. Prefixes are shared within a namespace. Requests in the
    namespace None share nothing: they match nothing and leave nothing. A page is free, held by a request, or
    in the tree, where requests and pins lock the nodes that they use, and leases delay the eviction of
    others. A request's pages are in its lock's page table until `commit` or `release` gives them to the tree.

    A model with recurrent layers has `states` places for their states (see `checkpoints`). A match then ends
    at a checkpoint.

    With layers that see only the latest tokens a match needs pages of `WindowedGroups` too.

    model: identifies everything else that the pages' contents depend on (see `PageKeys`). With it `keys`
        reports what is evicted and the keys of what is missing
    slots: number of requests that hold a lock at once, if there are states
    windows: the reach and the number of pages of each windowed group
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        policy: EvictionPolicy | None = None,
        enabled: bool = True,
        check_invariants: bool = False,
        model: bytes = b"",
        states: int = 0,
        slots: int = 0,
        windows: Sequence[tuple[Reach, int]] = (),
    ) -> None:
        assert num_pages >= 0 and page_size >= 1, f"{num_pages} pages of {page_size} tokens"
        self.page_size = page_size
        self.num_pages = num_pages
        self.enabled = enabled
        self._check_invariants = check_invariants
        self._allocator = PageAllocator(num_pages)
        self.windows = [
            WindowGroup(reach, pages, page_size, number) for number, (reach, pages) in enumerate(windows, 1)
        ]
        if policy is None:
            policy = GittinsPolicy(num_pages, page_size)
        self.checkpoints = Checkpoints(states, slots) if states else None
        self._tree = RadixTree(page_size, policy, self._allocator, self.checkpoints)
        self.keys = TreeKeys(model, self._tree, self.windows) if model else None
        """None: no page store keeps what is evicted"""
        self._locks: set[Lock] = set()
        self._windowed = WindowedGroups(self.windows, self._locks, self.leases)
        self._states: RequestStates | None = None
        if self.checkpoints is not None:
            self._states = RequestStates(
                self.checkpoints, self._tree, self._locks, self.leases, self.stores_states
            )
        if self.keys is not None:
            self._tree.on_evict = self.keys.note_evicted
            for group in self.windows:
                group.on_evict = self.keys.note_evicted_window
            if self.checkpoints is not None:
                self.checkpoints.on_evict = self.keys.note_evicted_checkpoint
        self.reports = TreeReports(self._tree, self._locks, self._measure_served)
        self._evicted_pages = 0

    @property
    def stores_states(self) -> bool:
        """Whether a page store keeps checkpoints at ends of pages."""
        return self.keys is not None and self.checkpoints is not None

    def match(
        self,
        namespace: str | None,
        tokens: bytes,
        limit: int | None = None,
        whole_pages: bool = False,
        only_pages: bool = False,
    ) -> PrefixMatch:
        """Finds the longest match of the first `limit` tokens, by default of all, that every group of layers
        can serve and, with recurrent layers, after which a checkpoint stands. Changes nothing.

        Windowed groups serve a part of the path that shares the most tokens. If that path has lost a windowed
        page, other paths that share some tokens of this page are not tried.

        whole_pages: only a match that ends with a page
        only_pages: a match also if windowed pages or a checkpoint are lacking, which will be restored
        """
        found = self._tree.find(namespace, tokens, limit)
        if whole_pages:
            paged = found.length
            found = found.cut(found.full_pages * self.page_size, self.page_size)._replace(paged=paged)
        if only_pages:
            return found
        if self.checkpoints is None:
            return self._serve_windows(found)
        match, checkpoint = self._serve_windows(found), None
        while True:
            position, checkpoint = self._tree.find_checkpoint(match, tokens, whole_pages)
            if position == match.length:
                return match._replace(checkpoint=checkpoint)
            match = self._serve_windows(match.cut(position, self.page_size))

    def _measure_served(self, match: PrefixMatch, tokens: bytes) -> tuple[int, int]:
        """How many of a match's tokens a request can use, and of how many all pages are there."""
        paged = self._serve_windows(match).length
        if self.checkpoints is None:
            return paged, paged
        limit = match.length
        return self.match(match.node.namespace, tokens, limit).length, paged

    def _serve_windows(self, match: PrefixMatch) -> PrefixMatch:
        """The longest part of the match that all windowed groups can serve."""
        return self._windowed.serve(match, self.page_size)

    def path_windows(self, match: PrefixMatch) -> PathWindows:
        """The windowed pages of a match, to ask which shorter matches all groups can serve."""
        return self._windowed.path(match)

    def find_missing(self, namespace: str, tokens: bytes) -> Missing:
        """The keys under which a page store may have what the cache lacks of `tokens`. Changes nothing."""
        assert self.keys is not None, "a cache with a page store has keys"
        is_limited = self.checkpoints is not None or self.windows
        start = self.match(namespace, tokens).length if is_limited else 0
        return self.keys.find_missing(namespace, tokens, start)

    def list_lacking_windows(self, namespace: str, tokens: bytes, end: int) -> list[list[int]]:
        """The indices of each windowed group's pages that the token at `end` sees and the tree lacks."""
        match = self.match(namespace, tokens, end, whole_pages=True, only_pages=True)
        return [each.lacking for each in self.path_windows(match).needed(end)]

    def has_room(self, match: PrefixMatch, tokens: int, reserve: int, end: int = 0) -> bool:
        """Whether a request that acquires the match gets pages for a prompt of `tokens` tokens, and `reserve`
        more pages of each group are left. Changes nothing.

        end: see `acquire`
        """
        if self.count_pages(tokens) + reserve > self.max_pages(match):
            return False
        return self._windowed.have_room(match, tokens, reserve, end)

    def find_full_window(self, tokens: int, to_pin: int = 0) -> FullWindow | None:
        """See `WindowedGroups.find_full`."""
        return self._windowed.find_full(tokens, to_pin)

    def max_pages(self, match: PrefixMatch) -> int:
        """How many pages a request that acquires the match may have. Changes nothing."""
        locked = sum(len(node.pages) for node in match.node.path() if not node.locks)
        if match.inside and not match.inside.locks:
            locked += match.inside_pages + (match.tail > 0)
        return match.full_pages + self._adopts_tail(match) + self.available() - locked

    def acquire(self, match: PrefixMatch, tokens: int = 0, end: int = 0) -> Lock:
        """Locks a match for a prompt of `tokens` tokens.

        end: a later position up to which steps will restore pages; 0: there are none. Windowed pages that the
            token there sees are allocated if the tree lacks them (`WindowTable.lacking`). Call
            `enter_restored` with the step that restores them

        If the match ends inside a page, the caller copies that page before its first step (`Lock.copy`)
        and then calls `end_copy`. A partial page that matches to its end and is neither locked nor leased is
        adopted instead: it moves from the tree to the request as the last of `Lock.pages`, without a copy.
        """
        if match.node.parent is None:
            match = match._replace(node=self._tree.open_root(match.node.namespace))
        self._tree.observe_tail(match)
        adopts = self._adopts_tail(match)
        windows = self._windowed.use(match, tokens, match.tail > 0 and not adopts, end)
        if match.checkpoint is not None and self.checkpoints is not None:
            self.checkpoints.use(match.checkpoint)
        lock = self._lock_whole_pages(match)
        lock.windows = windows
        if match.inside and match.tail:
            lock.matched += match.tail
            self._take_tail(lock, match.inside, match.tail, adopts)
        self._verify()
        return lock

    def enter_restored(self, lock: Lock) -> None:
        """Gives the tree the windowed pages that the planned step restores. All pages before them are
        committed."""
        self._windowed.enter_restored(lock)
        self._key_windows(lock, min((table.first for table in lock.windows), default=0))
        self._verify()

    def end_copy(self, lock: Lock) -> None:
        """Call it when the step that made `Lock.copy` is done. Then the copy's source may be evicted."""
        assert lock.source is not None, "the lock has no copy to make"
        self._windowed.end_sources(lock)
        self._tree.unlock(lock.source)
        self._tree.free_covered_tail(lock.source)
        lock.source = None
        self._verify()

    def available(self) -> int:
        """Number of pages that requests can get: free pages and pages of unlocked nodes."""
        return self._allocator.num_free + self._tree.num_evictable

    def count_pages(self, tokens: int) -> int:
        """How many pages hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def extend(self, lock: Lock, tokens: int, reserve: int = 0) -> bool:
        """Allocates pages until the request's page table holds `tokens` tokens.

        Returns False, without allocating, unless `reserve` more pages than needed are available.
        """
        count = self.count_pages(tokens) - len(lock.pages)
        if count + reserve > self.available():
            return False
        if count > 0:
            has_own_pages = lock.capacity > lock.matched
            lock.pages += self._allocate(count, after=lock.pages[-1] if has_own_pages else None)
            self._verify()
        return True

    def extend_windows(self, lock: Lock, end: int) -> int:
        """Allocates windowed pages for the tokens before `end`, as far as other requests leave some.

        Returns up to which position all groups have pages, at most `end`.
        """
        end = self._windowed.extend(lock, end)
        if lock.windows:
            self._verify()
        return end

    def shrink(self, lock: Lock, position: int) -> None:
        """Gives back windowed pages that no token from `position` on sees. No step in flight reads them."""
        self._windowed.shrink(lock, position)
        if lock.windows:
            self._verify()

    def _allocate(self, count: int, after: int | None) -> list[int]:
        """Allocates `count` of the available pages and evicts as many as needed.

        Runs of consecutive ids are preferred, above all the run that follows page `after`.
        """
        lacking = count - self._allocator.num_free
        if lacking <= 0:
            return self._allocator.take(count, after)
        self._evicted_pages += lacking
        pages = sorted(self._allocator.take(count - lacking) + self._tree.evict(lacking))
        next_to = bisect(pages, after) if after is not None else 0
        return pages[next_to:] + pages[:next_to]

    def commit(self, lock: Lock, tokens: bytes) -> None:
        """Inserts the full pages of `tokens` into the tree; steps that are planned later may read them.

        tokens: the request's tokens from position 0 up to the end of its planned steps

        If the tree already has a page from another request, this request keeps its own copy until `release`.
        """
        self._use(lock)
        self._insert_full_pages(lock, tokens)
        if lock.checkpoints and self._states is not None:
            self._states.attach_passed(lock, tokens[: lock.depth * TOKEN_BYTES], self._keeps(lock))
        self._verify()

    def make_checkpoint(self, lock: Lock, position: int, is_shared: bool = False) -> int | None:
        """Returns the place to which a step copies the live state once it has computed `position` tokens;
        None if none can be had. The checkpoint enters the tree with the page of its position.

        is_shared: whether other requests begin with this prefix, so that the checkpoint is worth as much as
            one that they used
        """
        assert self._states is not None, "the model has no recurrent layers"
        return self._states.make_checkpoint(lock, position, is_shared)

    def drop_checkpoints(self, lock: Lock, start: int, end: int) -> None:
        """Ends the request's use of its checkpoints at positions [start, end)."""
        if self._states is not None:
            self._states.drop(lock, start, end)
        self._verify()

    def release(self, lock: Lock, tokens: bytes, generated: int = 0, keeps_state: bool = False) -> None:
        """Ends a lock: inserts `tokens`, frees the pages that the tree does not take, and unlocks nodes.

        tokens: tokens whose KV exists, from position 0; they may end inside a page
        generated: length of the request's output in tokens, which the eviction policy learns from
        keeps_state: whether the live state is the one after `tokens`; then it becomes a checkpoint

        No step in flight may use the pages. To undo an `acquire`, release the lock with the matched tokens.
        Without a call of `end_copy` the copy counts as not made.
        """
        if lock.source is not None:
            tokens = tokens[: lock.depth * TOKEN_BYTES]
            self.end_copy(lock)
        if len(tokens) > lock.matched * TOKEN_BYTES:
            self._use(lock)
        self._insert_full_pages(lock, tokens)
        rest = self._insert_tail(lock, tokens)
        self._allocator.free(lock.duplicates + rest)
        self._windowed.release(lock, len(tokens) // TOKEN_BYTES)
        if self._states is not None:
            self._states.release(lock, tokens, keeps_state, self._keeps(lock))
        self._unlock(lock, generated)
        self._verify()

    def discard(self, lock: Lock) -> None:
        """Ends a lock whose KV is wrong: its nodes leave the tree, unless others lock them.

        This includes the matched nodes, because the fault may have come from them.
        """
        if lock.source is not None:
            self._windowed.end_sources(lock)
            self._tree.unlock(lock.source)
        self._allocator.free(lock.own_pages)
        if self._states is not None:
            self._states.discard(lock)
        self._windowed.release(lock)
        self._tree.prune(self._unlock(lock))
        self._verify()

    def whole_pages(self, namespace: str | None, tokens: bytes) -> list[int]:
        """The full pages in the tree that hold a prefix of `tokens`. Changes nothing."""
        found = self._tree.find(namespace, tokens)
        match = self._serve_windows(found.cut(found.full_pages * self.page_size, self.page_size))
        pages = _list_pages_to(match.node)
        return [*pages, *match.inside.pages[: match.inside_pages]] if match.inside else pages

    def lease(
        self,
        owner: str,
        namespace: str,
        tokens: bytes,
        ends_at: float,
        max_pages: int,
        is_estimate: bool = False,
        is_breakable: bool = True,
    ) -> Lease | None:
        """Leases the first cached pages of `tokens`, at most `max_pages`; None if there are none.

        A tail is leased if all of it belongs to `tokens`. `ends_at` is in seconds since 1970.
        """
        match = self._serve_windows(self._tree.find(namespace, tokens, max_pages * self.page_size))
        windows = self.path_windows(match)  # before `end_at` may split the node in which the match ends
        node = self._tree.end_at(match)
        if node.parent is None:
            return None
        length = sum(len(each.tokens) for each in node.path()) // TOKEN_BYTES
        lease = Lease(owner, ends_at, node, _list_pages_to(node), length, is_estimate, is_breakable)
        self._windowed.lease(lease, windows, length)
        self._tree.add_lease(lease)
        if self._states is not None and not is_breakable:
            self._states.pin(lease, namespace, tokens)
        self._verify()
        return lease

    def end_lease(self, lease: Lease) -> None:
        self._tree.end_lease(lease)
        if self._states is not None:
            self._states.unpin(lease)
        self._verify()

    @property
    def leases(self) -> Leases:
        """The cache's leases, to read and renew. `lease` begins and `end_lease` ends a lease."""
        return self._tree.leases

    def drop(self, namespace: str) -> Dropped:
        """Frees the unlocked nodes of a namespace, ends their leases and drops its ghosts. Pins stay."""
        root = self._tree.roots.get(namespace)
        removed = self._tree.clear(root) if root is not None else []
        pages = [page for node in removed for page in node.pages]
        self._allocator.free(pages)
        self._verify()
        return Dropped(len(pages), sum(len(node.tokens) for node in removed) // TOKEN_BYTES)

    def list_pages(self) -> list[PagesStored]:
        """All full pages in the tree, parents before their children."""
        return list(list_stored(self._tree.roots.values(), self._tree.page_bytes))

    def watch_changes(self) -> ChangeFeed:
        """Returns a feed that collects the changes of the tree's full pages from now on. Empty it often by
        `take`, or end it by `stop_changes`: it grows without limit."""
        if self._tree.changes is None:
            self._tree.changes = TreeChanges(self._tree.page_bytes)
        feed = ChangeFeed()
        self._tree.changes.feeds.append(feed)
        return feed

    def stop_changes(self, feed: ChangeFeed) -> None:
        assert self._tree.changes is not None, "no feed is open"
        self._tree.changes.feeds.remove(feed)
        if not self._tree.changes.feeds:
            self._tree.changes = None

    def stats(self) -> CacheStats:
        return CacheStats(
            total=self.num_pages,
            free=self._allocator.num_free,
            held=self.num_pages - self._allocator.num_free - self._tree.num_pages,
            evictable=self._tree.num_evictable,
            locked=self._tree.num_pages - self._tree.num_evictable,
            pinned=self.leases.num_pinned,
            evicted_pages=self._evicted_pages,
            windows=tuple(group.count_unused() for group in self.windows),
        )

    def _lock_whole_pages(self, match: PrefixMatch) -> Lock:
        node = match.node
        if match.inside and match.inside_pages:
            node = self._tree.split(match.inside, match.inside_pages)
        self._tree.lock(node)
        pages = _list_pages_to(node)
        depth = len(pages) * self.page_size
        checkpoints = [] if match.checkpoint is None else [(match.length, match.checkpoint)]
        state = None if self.checkpoints is None else self.checkpoints.take_live()
        lock = Lock(self.page_size, depth, pages, None, state, checkpoints, node, depth, None)
        self._locks.add(lock)
        return lock

    def _adopts_tail(self, match: PrefixMatch) -> bool:
        """Whether a request that acquires the match adopts the page in which it ends."""
        leaf = match.inside
        if leaf is None or leaf.locks or leaf.leases or not match.tail:
            return False
        return len(leaf.tokens) == (match.length - match.depth) * TOKEN_BYTES

    def _take_tail(self, lock: Lock, leaf: Node, tail: int, adopts: bool) -> None:
        """Adopts the leaf's first page, in which the match ends after `tail` tokens, or locks it for
        copying."""
        if adopts:
            self._tree.remove(leaf)
            lock.pages += leaf.pages
        else:
            lock.source = self._tree.split(leaf, 1) if len(leaf.pages) > 1 else leaf
            self._tree.lock(lock.source)
            lock.copy = Copy(lock.source.pages[0], tail)

    def _use(self, lock: Lock) -> None:
        """Counts a use of the matched nodes, at most one per lock."""
        assert lock.node is not None, "the lock has ended"
        if not lock.used:
            lock.used = True
            self._tree.use(lock.node, lock.depth)

    def _unlock(self, lock: Lock, generated: int = 0) -> Node:
        """Ends the lock; returns the deepest node that it locked."""
        node = lock.node
        assert node is not None, "the lock has ended"
        self._tree.unlock(node, generated)
        lock.node = None
        self._locks.remove(lock)
        return node

    def _insert_full_pages(self, lock: Lock, tokens: bytes) -> None:
        assert lock.node is not None, "the lock has ended"
        if self._check_invariants:
            check_continues(lock, tokens)
        first, last = lock.depth // self.page_size, len(tokens) // self._tree.page_bytes
        if not self._keeps(lock) or last <= first:
            return
        assert last <= len(lock.pages), f"{last} full pages of tokens, a page table of {len(lock.pages)}"
        chunk = tokens[first * self._tree.page_bytes : last * self._tree.page_bytes]
        windows = tuple(table.list_cacheable(first, last) for table in lock.windows)
        lock.node, duplicates = self._tree.insert(lock.node, chunk, tuple(lock.pages[first:last]), windows)
        lock.depth = last * self.page_size
        lock.duplicates += duplicates
        self._key_windows(lock, first)

    def _key_windows(self, lock: Lock, first: int) -> None:
        if lock.windows and self.keys is not None and lock.node is not None:
            self.keys.name_windows(lock.node, lock.depth // self.page_size, first)

    def _insert_tail(self, lock: Lock, tokens: bytes) -> list[int]:
        """Inserts a partial last page; returns the request's pages that the tree did not take."""
        assert lock.node is not None
        first = lock.depth // self.page_size
        tail = tokens[lock.depth * TOKEN_BYTES :]
        if self._keeps(lock) and tail:
            windows = tuple(table.list_cacheable(first, first + 1) for table in lock.windows)
            leaf = self._tree.insert_tail(lock.node, tail, lock.pages[first], windows)
            if leaf is not None:
                lock.node = leaf
                first += 1
        return lock.pages[first:]

    def _keeps(self, lock: Lock) -> bool:
        assert lock.node is not None
        return self.enabled and lock.node.namespace is not None

    def _verify(self) -> None:
        if self._check_invariants:
            check(self._tree, self._allocator, self._locks, self.windows)


def _list_pages_to(node: Node) -> list[int]:
    """All pages from the root to the end of `node`."""
    pages: list[int] = []
    for above in reversed(list(node.path())):
        pages += above.pages
    return pages
