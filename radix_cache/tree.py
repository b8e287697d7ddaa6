"""The radix tree: matching, insertion, locks and eviction over nodes that own pages.

Nodes split at page boundaries only, so a page has one node. Siblings may share the start of their
first page but never the whole of it.
"""

from __future__ import annotations

from typing import NamedTuple

from .eviction import EvictionPolicy, EvictionQueue
from .node import Node
from .packed import TOKEN_BYTES, common_bytes
from .page_allocator import PageAllocator


class Match(NamedTuple):
    """Where the longest match of a sequence ends.

    `node` is matched to its end. The match goes on into its child `inside`, if there is one, by `pages` whole
    pages and then `tail` tokens of the next; both may be 0.
    """

    node: Node
    depth: int  # tokens down to the end of `node`
    inside: Node | None
    pages: int
    tail: int


class RadixTree:
    """One tree for each namespace; all share the eviction order and the counts."""

    def __init__(self, page_size: int, policy: EvictionPolicy, allocator: PageAllocator) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.roots: dict[str, Node] = {}
        self.num_pages = 0
        self.num_evictable = 0  # pages of unlocked nodes
        self.queue = EvictionQueue(policy)
        self._allocator = allocator
        self._now = 0

    def open_root(self, namespace: str) -> Node:
        """The root of a namespace, made if need be; it lives while it is locked or has children."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(namespace, None, b"", [], self._now)
        return root

    def find(self, root: Node, tokens: bytes, limit: int) -> Match:
        """The longest match of the first `limit` tokens; changes nothing."""
        page_bytes = self.page_bytes
        end = min(limit * TOKEN_BYTES, len(tokens))
        node, position = root, 0
        while position + page_bytes <= end:
            child = node.children.get(tokens[position : position + page_bytes])
            if child is None:
                break
            if not tokens.startswith(child.tokens, position, end):
                common = common_bytes(child.tokens, tokens[position : min(position + len(child.tokens), end)])
                return self._match(node, position, child, common)
            node, position = child, position + len(child.tokens)
        nearest, common = node.nearest_child(tokens[position : min(position + page_bytes, end)])
        return self._match(node, position, nearest, common)

    def _match(self, node: Node, position: int, inside: Node | None, common: int) -> Match:
        pages, tail = divmod(common // TOKEN_BYTES, self.page_size)
        return Match(node, position // TOKEN_BYTES, inside, pages, tail)

    def split(self, node: Node, pages: int) -> Node:
        """Cuts `node` after its first `pages` pages; returns the new upper part.

        The lower part stays the same object, so leases that end there and queue entries hold.
        """
        cut = pages * self.page_bytes
        assert node.parent is not None and 0 < pages < len(node.pages), "a cut inside an edge"
        upper = Node(node.namespace, node.parent, node.tokens[:cut], node.pages[:pages], node.last_use)
        upper.locks = int(node.locks > 0)
        node.parent.children[self.key(upper)] = upper
        node.parent = upper
        node.tokens = node.tokens[cut:]
        node.pages = node.pages[pages:]
        upper.link(self.key(node), node)
        return upper

    def insert(self, node: Node, tokens: bytes, pages: list[int]) -> tuple[Node, list[int]]:
        """Puts whole pages below `node` and moves one lock from it down to where they end.

        Returns that node, and those of `pages` that it did not take because the tree has them already.
        """
        duplicates: list[int] = []
        done = 0
        while done < len(pages):
            position = done * self.page_bytes
            child = node.children.get(tokens[position : position + self.page_bytes])
            if child is None:
                return self._append(node, tokens[position:], pages[done:]), duplicates
            shared = (
                common_bytes(child.tokens, tokens[position : position + len(child.tokens)]) // self.page_bytes
            )
            if shared < len(child.pages):
                child = self.split(child, shared)
            self._move_lock(node, child)
            duplicates += pages[done : done + shared]
            node, done = child, done + shared
        return node, duplicates

    def insert_tail(self, node: Node, tokens: bytes, page: int) -> Node | None:
        """Like `insert`, for a page that is not full; None if the tree has its tokens already."""
        if node.covers(tokens):
            return None
        self._drop_covered_leaf(node, tokens)
        return self._add_child(node, tokens, [page])

    def _append(self, node: Node, tokens: bytes, pages: list[int]) -> Node:
        """An edge that nobody else uses grows in place: a sequence computed in chunks stays one node."""
        self._drop_covered_leaf(node, tokens[: self.page_bytes])
        if node.locks > 1 or node.children or node.parent is None:
            return self._add_child(node, tokens, pages)
        self.num_pages += len(pages)
        node.tokens += tokens
        node.pages += pages
        return node

    def _add_child(self, node: Node, tokens: bytes, pages: list[int]) -> Node:
        child = Node(node.namespace, node, tokens, pages, self._now)
        node.link(self.key(child), child)
        self.num_pages += len(pages)
        self.num_evictable += len(pages)
        self._move_lock(node, child)
        return child

    def _move_lock(self, node: Node, child: Node) -> None:
        self.lock(child)
        self.unlock(node)

    def _drop_covered_leaf(self, node: Node, key: bytes) -> None:
        """Frees an unlocked partial leaf whose tokens begin the new child `key`."""
        leaf = node.child_before(key)
        if leaf is not None and not leaf.locks and key.startswith(leaf.tokens):
            self.remove(leaf)
            self._allocator.free(leaf.pages)

    def remove(self, leaf: Node) -> None:
        """Takes an unlocked leaf out; its pages are the caller's."""
        parent = leaf.parent
        assert parent is not None and not leaf.locks and not leaf.children, "only an unlocked leaf"
        self.queue.discard(leaf)
        self.num_pages -= len(leaf.pages)
        self.num_evictable -= len(leaf.pages)
        parent.unlink(self.key(leaf))
        self._settle(parent)

    def prune(self, node: Node) -> None:
        """Frees `node` and then those above it, up to the first that is locked or leads elsewhere too."""
        while node.parent is not None and not node.locks and not node.children:
            parent = node.parent
            self.remove(node)
            self._allocator.free(node.pages)
            node = parent

    def lock(self, node: Node) -> None:
        """Keeps `node` and all above it. Counts go up only as far as the first that is locked already."""
        current: Node | None = node
        while current is not None:
            current.locks += 1
            if current.locks > 1:
                return
            self.num_evictable -= len(current.pages)
            self.queue.discard(current)
            current = current.parent

    def unlock(self, node: Node) -> None:
        """Takes one lock back, and marks what is now unlocked as just used."""
        self._now += 1
        current: Node | None = node
        while current is not None:
            assert current.locks, "unlocked more often than locked"
            current.locks -= 1
            if current.locks:
                return
            self.num_evictable += len(current.pages)
            current.last_use = self._now
            self._settle(current)
            current = current.parent

    def _settle(self, node: Node) -> None:
        """Queues a node that has become an unlocked leaf; drops a root that has nothing left."""
        if node.locks or node.children:
            return
        if node.parent is not None:
            self.queue.add(node)
        else:
            del self.roots[node.namespace]

    def evict(self, count: int) -> None:
        """Frees `count` pages, of which so many must be evictable, from the tails of the first leaves."""
        assert count <= self.num_evictable, f"asked to evict {count} of {self.num_evictable} pages"
        evicted: list[int] = []
        while len(evicted) < count:
            leaf = self.queue.pop()
            kept = max(len(leaf.pages) - (count - len(evicted)), 0)
            evicted += leaf.pages[kept:]
            if kept:
                self._cut_tail(leaf, kept)
            else:
                self.remove(leaf)
        self._allocator.free(evicted)

    def _cut_tail(self, leaf: Node, kept: int) -> None:
        removed = len(leaf.pages) - kept
        self.num_pages -= removed
        self.num_evictable -= removed
        del leaf.pages[kept:]
        leaf.tokens = leaf.tokens[: kept * self.page_bytes]
        self.queue.add(leaf)

    def key(self, node: Node) -> bytes:
        return node.tokens[: self.page_bytes]
