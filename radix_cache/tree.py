"""The radix tree: matching, insertion, locks and eviction over nodes that own pages.

Nodes split only at page boundaries, so each page belongs to one node. Siblings may share a part of their
first page but never all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .checkpoints import Checkpoints
from .eviction import EvictionPolicy
from .history import History
from .leases import Lease, Leases
from .lock import PrefixMatch
from .node import Checkpoint, Node
from .packed import TOKEN_BYTES, common_bytes
from .page_allocator import PageAllocator
from .tree_changes import TreeChanges
from .windows import WindowPages, is_there


class RadixTree:
    """One tree for each namespace; all share the eviction order and the counts.

    With `on_evict` nodes keep their keys (page_keys.py) when they are evicted. It is called with each leaf
    before the leaf loses its pages and its parent. `changes`, if there are any observers, gets all changes of
    full pages.
    """

    def __init__(
        self,
        page_size: int,
        policy: EvictionPolicy,
        allocator: PageAllocator,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.roots: dict[str | None, Node] = {}
        self.num_pages = 0
        self.pages_in: Counter[str | None] = Counter()  # number of pages in each namespace
        self.num_evictable = 0  # number of pages of unlocked nodes
        self.policy = policy
        self.history = History(policy, self.page_bytes)
        self.leases = Leases()
        self.checkpoints = checkpoints
        self._allocator = allocator
        self.on_evict: Callable[[Node], None] | None = None
        self.changes: TreeChanges | None = None
        self.now = 0  # the time in accesses: tokens matched or computed, and unlocks

    def open_root(self, namespace: str | None) -> Node:
        """The root of a namespace, created if there is none. It exists while it is locked or has children."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(namespace, None, b"", b"", (), self.now)
        return root

    def find(self, namespace: str | None, tokens: bytes, limit: int | None = None) -> PrefixMatch:
        """The longest match of the first `limit` tokens, or of all; changes nothing."""
        page_bytes = self.page_bytes
        end = len(tokens) if limit is None else min(limit * TOKEN_BYTES, len(tokens))
        node, position = self.roots.get(namespace), 0
        if node is None:
            return self._match(Node(namespace, None, b"", b"", (), 0), 0, None, 0)
        while position + page_bytes <= end:
            child = node.children.get(tokens[position : position + page_bytes])
            if child is None:
                break
            edge = child.tokens
            length = len(edge)
            if not tokens.startswith(edge, position, end):
                common = common_bytes(edge, tokens[position : min(position + length, end)])
                return self._match(node, position, child, common)
            if length % page_bytes:
                return self._match(node, position, child, length)
            node = child
            position += length
        nearest, common = None, 0
        if node.children:
            nearest, common = node.nearest_child(tokens[position : min(position + page_bytes, end)])
        return self._match(node, position, nearest, common)

    def _match(self, node: Node, position: int, inside: Node | None, common: int) -> PrefixMatch:
        depth, size = position // TOKEN_BYTES, self.page_size
        pages, tail = divmod(common // TOKEN_BYTES, size)
        length = depth + pages * size + tail
        return PrefixMatch(length, depth // size + pages, node, depth, inside, pages, tail, length)

    def find_checkpoint(
        self, match: PrefixMatch, tokens: bytes, whole_pages: bool
    ) -> tuple[int, Checkpoint | None]:
        """The deepest checkpoint of a match of `tokens`, and its position; 0 and None if there is none.

        whole_pages: only a checkpoint at the end of a page
        """
        start = match.depth * TOKEN_BYTES
        node: Node | None = match.inside
        if node is None:
            node = match.node
            start -= len(node.tokens)
        best, found = 0, None
        while node is not None and found is None:
            for (pages, rest), checkpoint in node.checkpoints.items():
                page_end = start + pages * self.page_bytes
                position = (page_end + len(rest)) // TOKEN_BYTES
                fits = best < position <= match.length and not (rest and whole_pages)
                if fits and tokens.startswith(rest, page_end):
                    best, found = position, checkpoint
            node = node.parent
            start -= len(node.tokens) if node is not None else 0
        return best, found

    def attach(self, namespace: str | None, tokens: bytes, checkpoint: Checkpoint) -> None:
        """Enters the checkpoint after `tokens` into the tree, if the tree has all their pages."""
        assert self.checkpoints is not None
        match = self.find(namespace, tokens)
        if match.length == len(tokens) // TOKEN_BYTES:
            node, pages = match.node, len(match.node.pages)
            if match.inside is not None and match.inside_pages:
                node, pages = match.inside, match.inside_pages
            self.checkpoints.attach(checkpoint, node, (pages, tokens[match.full_pages * self.page_bytes :]))

    def observe_tail(self, match: PrefixMatch) -> None:
        """Tells the policy how much of a tail is used, if the match reaches a tail."""
        leaf = match.inside if match.length == match.paged else None
        if leaf is not None and match.inside_pages and match.inside_pages == len(leaf.pages) - 1:
            size = len(leaf.tokens) % self.page_bytes
            if size:
                self.policy.observe_tail(match.tail * TOKEN_BYTES / size)

    def split(self, node: Node, pages: int) -> Node:
        """Splits `node` after its first `pages` pages; returns the new upper node.

        The lower node stays the same object, so locks and queue entries that refer to it stay valid.
        """
        assert node.parent is not None and 0 < pages < len(node.pages), "a split inside an edge"
        above = node.parent
        upper = node.cut(pages)
        upper.locks = int(node.locks > 0)
        above.children[upper.key] = upper
        upper.link(node)
        return upper

    def use(self, node: Node, tokens: int) -> None:
        """Counts a request's use of the path to `node`, which has the first `tokens` of its tokens."""
        self.now += tokens
        self.policy.advance(self.now)
        current = node
        while current.parent is not None:
            self._hit(current)
            current = current.parent
            current.extended += 1

    def _hit(self, node: Node) -> None:
        node.hits += 1
        self.policy.hit(node)

    def insert(
        self, node: Node, tokens: bytes, pages: tuple[int, ...], windows: tuple[WindowPages, ...] = ()
    ) -> tuple[Node, list[int]]:
        """Inserts whole pages below `node` and moves one lock from it to the last node inserted.

        Returns that node, and the pages that the tree did not take because it already has their tokens. Of
        windowed groups it also takes pages whose tokens it has without them.
        """
        duplicates: list[int] = []
        done = 0
        self.now += len(tokens) // TOKEN_BYTES
        while done < len(pages):
            position = done * self.page_bytes
            child = node.children.get(tokens[position : position + self.page_bytes])
            if child is None:
                rest = tuple(window[done:] for window in windows)
                node, count = self._extend(node, tokens, position, pages[done:], rest)
                done += count
            else:
                shared = self._shared_pages(child, tokens, position)
                if shared < len(child.pages):
                    child = self.split(child, shared)
                self._move_lock(node, child)
                duplicates += pages[done : done + shared]
                fill_windows(child.windows, windows, done, shared)
                node, done = child, done + shared
        return node, duplicates

    def insert_tail(
        self, node: Node, tokens: bytes, page: int, windows: tuple[WindowPages, ...] = ()
    ) -> Node | None:
        """Like `insert`, for a partial page; None if the tree already has its tokens."""
        return None if node.covers(tokens) else self._append(node, tokens, (page,), windows)

    def _extend(
        self,
        node: Node,
        tokens: bytes,
        position: int,
        pages: tuple[int, ...],
        windows: tuple[WindowPages, ...],
    ) -> tuple[Node, int]:
        """Inserts `pages` below `node`, which has no child with these tokens. If a ghost has them,
        inserts only the ghost's number of pages.

        Returns the node where the inserted pages end, and their number.
        """
        ghost = self.history.recall(node, tokens, position)
        if ghost is not None:
            return self._revive(node, ghost, pages, windows)
        return self._append(node, tokens[position:], pages, windows), len(pages)

    def _revive(
        self, node: Node, ghost: Node, pages: tuple[int, ...], windows: tuple[WindowPages, ...]
    ) -> tuple[Node, int]:
        count = len(ghost.tokens) // self.page_bytes
        ghost.pages = pages[:count]
        ghost.windows = tuple(_enter(window[:count]) for window in windows)
        self._attach(node, ghost)
        self._hit(ghost)
        node.extended += 1
        return ghost, len(ghost.pages)

    def _append(
        self, node: Node, tokens: bytes, pages: tuple[int, ...], windows: tuple[WindowPages, ...]
    ) -> Node:
        """Extends a leaf that only this request has used; otherwise adds a child. Returns the last node."""
        used_by_others = node.locks > 1 or node.hits or node.leases or node.mark is not None
        if used_by_others or node.children or node.ghosts or node.parent is None:
            entered = tuple(_enter(list(window)) for window in windows)
            child = Node(node.namespace, node, tokens[: self.page_bytes], tokens, pages, self.now, entered)
            self._attach(node, child)
            return child
        self._count(node, len(pages))
        node.tokens += tokens
        node.pages += pages
        for mine, window in zip(node.windows, windows, strict=True):
            mine += _enter(window)
        if self.changes is not None:
            self.changes.note_stored(node, len(node.pages) - len(pages))
        return node

    def _attach(self, node: Node, child: Node) -> None:
        """Links a new child. The request's lock moves down to the child, which keeps `node` locked."""
        child.locks = 1
        self._count(child, len(child.pages))
        before = node.link(child)
        if self.changes is not None:
            self.changes.note_stored(child)
        if before is not None and child.key.startswith(before.tokens):
            self.free_covered_tail(before)

    def _count(self, node: Node, pages: int) -> None:
        self.num_pages += pages
        self.pages_in[node.namespace] += pages

    def _move_lock(self, node: Node, child: Node) -> None:
        self.lock(child)
        self.unlock(node)

    def _shared_pages(self, child: Node, tokens: bytes, position: int) -> int:
        """How many whole pages of `child` equal the tokens from `position` on."""
        if tokens.startswith(child.tokens, position):
            return len(child.tokens) // self.page_bytes
        return common_bytes(child.tokens, tokens[position : position + len(child.tokens)]) // self.page_bytes

    def remove(self, leaf: Node) -> None:
        """Removes an unlocked leaf without leaving a ghost. Returns its pages, which the caller frees."""
        parent = leaf.parent
        assert parent is not None and not leaf.locks and not leaf.children, "the node is locked or no leaf"
        self.policy.discard(leaf)
        self.leases.move_up(leaf)
        self.history.drop_below(leaf)
        self.policy.forget(leaf)
        if self.changes is not None:
            self.changes.note_removed(leaf)
        self._drop_checkpoints(leaf)
        self._count(leaf, -len(leaf.pages))
        self.num_evictable -= len(leaf.pages)
        _leave(leaf)
        parent.unlink(leaf)
        self._settle(parent)

    def clear(self, root: Node) -> list[Node]:
        """Removes all unlocked nodes below `root` and all ghosts; returns their pages."""
        removed = []
        for node in reversed(list(root.subtree())):
            self.history.drop_below(node)
            if node.parent is not None and not node.locks:
                self.remove(node)
                removed.append(node)
        return removed

    def prune(self, node: Node) -> None:
        """Frees `node` and its ancestors up to the first node that is locked or has other children."""
        while node.parent is not None and not node.locks and not node.children:
            parent = node.parent
            self.remove(node)
            self._allocator.free(node.pages)
            node = parent

    def lock(self, node: Node) -> None:
        """Locks `node` and its ancestors. Counts change only up to the first node that was already locked."""
        current: Node | None = node
        while current is not None:
            current.locks += 1
            if current.locks > 1:
                return
            self.num_evictable -= len(current.pages)
            self.policy.discard(current)
            self.leases.withhold(current)
            current = current.parent

    def unlock(self, node: Node, generated: int = 0) -> None:
        """Removes one lock; nodes that become unlocked count as just used.

        generated: length of the request's output in tokens
        """
        self.now += 1
        current: Node | None = node
        while current is not None:
            assert current.locks, "unlocked more often than locked"
            current.locks -= 1
            if current.locks:
                return
            self.num_evictable += len(current.pages)
            current.last_use = self.now
            if current.parent is not None:
                self.policy.rest(current, generated)
            self._settle(current)
            current = current.parent

    def end_at(self, match: PrefixMatch) -> Node:
        """The node that ends with the match's last full page, or with the tail if all of it matches."""
        leaf = match.inside
        if leaf is None:
            return match.node
        if match.length - match.depth == len(leaf.tokens) // TOKEN_BYTES:
            return leaf
        return self.split(leaf, match.inside_pages) if match.inside_pages else match.node

    def add_lease(self, lease: Lease) -> None:
        """Adds a lease. Its node is then evicted after all nodes without leases, or not at all."""
        node = lease.node
        assert node is not None
        if not lease.is_breakable:
            self.lock(node)
        if not node.leases and self._may_be_evicted(node):
            self.policy.discard(node)
        self.leases.add(lease)
        self._settle(node)

    def end_lease(self, lease: Lease) -> None:
        node = self.leases.remove(lease)
        if not lease.is_breakable:
            self.unlock(node)
        elif not node.leases:
            self._settle(node)
            self.free_covered_tail(node)

    def free_covered_tail(self, leaf: Node) -> None:
        """Frees a tail whose tokens begin a sibling's first page, unless it is locked or leased."""
        is_tail = leaf.parent is not None and len(leaf.tokens) < self.page_bytes
        if is_tail and not leaf.locks and not leaf.leases and leaf.is_covered:
            self.remove(leaf)
            self._allocator.free(leaf.pages)

    def _may_be_evicted(self, node: Node) -> bool:
        return not node.locks and not node.children

    def _settle(self, node: Node) -> None:
        """Queues an unlocked leaf for eviction, after all others if it has leases; drops a root without
        children."""
        if not self._may_be_evicted(node):
            return
        if node.leases:
            self.leases.offer(node)
        elif node.parent is not None:
            self.policy.add(node)
        else:
            self.history.drop_below(node)
            self._drop_checkpoints(node)
            del self.roots[node.namespace]
            del self.pages_in[node.namespace]

    def evict(self, count: int) -> list[int]:
        """Evicts `count` evictable pages from the ends of leaves, in the policy's order, leased ones last."""
        assert count <= self.num_evictable, f"asked to evict {count} of {self.num_evictable} pages"
        evicted = self._evict_tails(count)
        if len(evicted) < count:
            self._evict_leaves(evicted, count)
        self.num_pages -= count
        self.num_evictable -= count
        self.history.forget_oldest()
        return evicted

    def _evict_tails(self, count: int) -> list[int]:
        """Evicts at most `count` tails."""
        evicted: list[int] = []
        while len(evicted) < count and (leaf := self.policy.pop_tail()) is not None:
            evicted.append(leaf.pages[-1])
            if len(leaf.pages) > 1:
                leaf.pages = leaf.pages[:-1]
                _leave(leaf, len(leaf.pages))
                self.pages_in[leaf.namespace] -= 1
                self.history.drop_tail(leaf)
            else:
                self.policy.discard(leaf)
                self._settle(self._retire(leaf))
        return evicted

    def _evict_leaves(self, evicted: list[int], count: int) -> None:
        """Evicts leaves, adding their pages to `evicted` until it has `count` pages."""
        leaf = self._pop_leaf()
        while (left := len(evicted) + len(leaf.pages) - count) < 0:
            evicted += leaf.pages
            leaf = self._next_leaf(self._retire(leaf))
        if left:
            end = leaf.cut_end(left)
            evicted += end.pages
            self._remember(end)
            self.policy.add(leaf)
        else:
            evicted += leaf.pages
            self._settle(self._retire(leaf))

    def _retire(self, leaf: Node) -> Node:
        """Unlinks an evicted leaf and makes it a ghost; returns its parent."""
        parent = leaf.parent
        assert parent is not None
        parent.unlink(leaf)
        self._remember(leaf)
        return parent

    def _remember(self, leaf: Node) -> None:
        if self.on_evict is not None:
            self.on_evict(leaf)
        if self.changes is not None:
            self.changes.note_removed(leaf)
        self._drop_checkpoints(leaf)
        self.pages_in[leaf.namespace] -= len(leaf.pages)
        _leave(leaf)
        self.history.keep(leaf)

    def _drop_checkpoints(self, node: Node) -> None:
        if node.checkpoints:
            assert self.checkpoints is not None
            self.checkpoints.drop(node)

    def _next_leaf(self, parent: Node) -> Node:
        """The next leaf to evict after a child of `parent` was evicted."""
        if parent.parent is not None and self._may_be_evicted(parent) and not parent.leases:
            return self.policy.add_and_pop(parent)
        self._settle(parent)
        return self._pop_leaf()

    def _pop_leaf(self) -> Node:
        """The next leaf to evict. If all leaves are leased, breaks the leases of one."""
        if not len(self.policy):
            self._settle(self.leases.break_leaf())
        return self.policy.pop()


def _enter(window: WindowPages) -> WindowPages:
    """Notes that a node has these pages; returns them."""
    for page in window:
        if page is not None:
            page.group.enter(page)
    return window


def _leave(node: Node, first: int = 0) -> None:
    """Removes the node's windowed pages from index `first` on, and frees those that nobody uses."""
    for window in node.windows:
        for page in window[first:]:
            if page is not None:
                page.group.leave(page)
        del window[first:]


def fill_windows(
    windows: tuple[WindowPages, ...], more: tuple[WindowPages, ...], start: int, count: int
) -> None:
    """Replaces a node's first `count` windowed pages that are lost by those of `more` from `start` on."""
    for window, of_request in zip(windows, more, strict=True):
        for index, page in enumerate(of_request[start : start + count]):
            if page is not None and not is_there(window[index]):
                page.group.enter(page)
                window[index] = page
