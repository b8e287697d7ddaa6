"""The invariants of the prefix cache between two operations; raises AssertionError if one is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

from .lock import Lock
from .node import Node
from .packed import KEY_BYTES, TOKEN_BYTES
from .page_allocator import PageAllocator
from .tree import RadixTree
from .windows import WindowGroup, WindowPage


def check(
    tree: RadixTree, allocator: PageAllocator, locks: Collection[Lock], windows: Sequence[WindowGroup]
) -> None:
    nodes = [node for root in tree.roots.values() for node in root.subtree()]
    _check_pages(tree, allocator, locks, nodes)
    for node in nodes:
        _check_shape(tree, node)
        _check_children(tree, node)
    _check_locks(tree, nodes, locks)
    _check_queue(tree, nodes)
    _check_history(tree, nodes)
    for lock in locks:
        _check_lock(tree, lock)
    _check_leases(tree, nodes)
    if tree.checkpoints is not None:
        live = [lock.state for lock in locks if lock.state is not None]
        pinned = [checkpoint for lock in locks for _, checkpoint in lock.checkpoints]
        pinned += [lease.checkpoint for lease in tree.leases if lease.checkpoint is not None]
        tree.checkpoints.check(live, nodes, pinned)
    for number, group in enumerate(windows):
        _check_window(tree, group, number, nodes, locks)


def _check_pages(
    tree: RadixTree, allocator: PageAllocator, locks: Collection[Lock], nodes: list[Node]
) -> None:
    free = [page for start, end in allocator.free_runs() for page in range(start, end)]
    cached = [page for node in nodes for page in node.pages]
    held = [page for lock in locks for page in lock.own_pages]
    owners = Counter([*free, *cached, *held])
    assert owners == Counter(range(allocator.num_pages)), "each page has exactly one owner"
    assert len(free) == allocator.num_free
    assert len(cached) == tree.num_pages
    in_namespace: Counter[str | None] = Counter()
    for node in nodes:
        in_namespace[node.namespace] += len(node.pages)
    assert in_namespace == tree.pages_in
    assert sum(len(node.pages) for node in nodes if not node.locks) == tree.num_evictable
    runs = allocator.free_runs()
    assert all(a[1] < b[0] for a, b in pairwise(runs)), "adjacent runs were merged"


def _check_shape(tree: RadixTree, node: Node) -> None:
    if node.parent is None:
        assert tree.roots[node.namespace] is node
        assert not node.tokens and not node.pages
        assert node.namespace is not None or not node.children, "nodes without a namespace are not kept"
        assert node.locks or node.children, "an empty root is dropped"
        return
    assert node.namespace == node.parent.namespace
    assert node.tokens, "an edge has tokens"
    assert len(node.tokens) % TOKEN_BYTES == 0
    assert len(node.pages) == -(-len(node.tokens) // tree.page_bytes), "an edge fills its pages in order"
    if len(node.tokens) % tree.page_bytes:
        assert not node.children and not node.ghosts, "a partial page ends a branch"
    if not node.locks and not node.parent.locks:
        assert node.last_use <= node.parent.last_use, "a node's last use is not before that of its children"


def _check_children(tree: RadixTree, node: Node) -> None:
    ordered = node.children if node.order is None else node.order
    assert list(ordered) == sorted(node.children), "siblings are sorted"
    for key, child in node.children.items():
        assert child.parent is node
        assert child.key == key == child.tokens[: tree.page_bytes]


def _check_locks(tree: RadixTree, nodes: list[Node], locks: Collection[Lock]) -> None:
    ends = Counter(lock.node for lock in locks)
    ends += Counter(lock.source for lock in locks if lock.source is not None)
    ends += Counter(lease.node for lease in tree.leases if not lease.is_breakable)
    for node in nodes:
        locked_children = sum(1 for child in node.children.values() if child.locks)
        assert node.locks == ends.pop(node, 0) + locked_children, "locks that end here, and locked children"
    assert not ends, "locks end in the tree"


def _check_queue(tree: RadixTree, nodes: list[Node]) -> None:
    leaves = [node for node in nodes if node.parent and not node.children and not node.locks]
    queued = [node for node in leaves if not node.leases]
    assert len(tree.policy) == len(queued), "exactly the unlocked leaves without leases are queued"


def _check_history(tree: RadixTree, nodes: list[Node]) -> None:
    ghosts: set[Node] = set()
    parents = list(nodes)
    for parent in parents:
        assert parent.children.keys().isdisjoint(parent.ghosts), "a page is cached or a ghost, not both"
        for key, ghost in parent.ghosts.items():
            assert ghost.parent is parent and ghost.key == key == ghost.tokens[: tree.page_bytes]
            assert not ghost.pages and not ghost.children and not ghost.locks, "a ghost holds nothing"
            assert len(ghost.tokens) % tree.page_bytes == 0, "a ghost has whole pages"
            num_keys = len(ghost.tokens) // tree.page_bytes if tree.on_evict is not None else 0
            assert len(ghost.keys) == num_keys * KEY_BYTES, "a ghost keeps its pages' keys"
            ghosts.add(ghost)
            parents.append(ghost)
    assert ghosts == tree.history.nodes.keys(), "the history has the tree's ghosts"
    pages = sum(len(ghost.tokens) for ghost in ghosts) // tree.page_bytes
    assert pages == tree.history.num_pages <= tree.policy.history


def _check_lock(tree: RadixTree, lock: Lock) -> None:
    assert lock.node is not None
    assert lock.depth == sum(len(node.pages) for node in lock.node.path()) * tree.page_size
    assert set(lock.duplicates).issubset(lock.pages), "a duplicate is in the page table"


def _check_leases(tree: RadixTree, nodes: list[Node]) -> None:
    leases = list(tree.leases)
    assert len(tree.leases) == len(leases)
    ends = Counter(lease.node for lease in leases)
    leased: dict[str, set[int]] = {}
    pinned: set[int] = set()
    for node in nodes:
        assert node.leases == ends.pop(node, 0), "a node counts the leases that end there"
    assert not ends, "leases end in the tree"
    for lease in leases:
        assert lease.node is not None and lease.node.parent is not None
        path = list(lease.node.path())
        assert lease.pages == [page for node in reversed(path) for page in node.pages]
        assert lease.tokens == sum(len(node.tokens) for node in path) // TOKEN_BYTES
        (leased.setdefault(lease.owner, set()) if lease.is_breakable else pinned).update(lease.pages)
    assert tree.leases.owners() == {owner: len(pages) for owner, pages in leased.items()}
    assert tree.leases.num_pages == len(set().union(*leased.values()))
    assert tree.leases.num_pinned == tree.leases.count_pinned(pinned) == len(pinned)
    for at_node in tree.leases.at.values():
        assert at_node == sorted(at_node, key=lambda lease: lease.break_order)
    may_break = {node for node in nodes if node.leases and not node.locks and not node.children}
    assert tree.leases.evictable == may_break, "exactly the unlocked leaves with leases may lose them"


def check_continues(lock: Lock, tokens: bytes) -> None:
    """A request's tokens only grow: they agree with the tokens that it has locked."""
    assert lock.node is not None
    assert tokens.startswith(lock.node.sequence()[: len(tokens)]), "tokens differ from those committed"


def _check_window(
    tree: RadixTree, group: WindowGroup, number: int, nodes: list[Node], locks: Collection[Lock]
) -> None:
    tables = [lock.windows[number] for lock in locks]
    used = Counter(page for table in tables for page in table.pages if page is not None)
    used += Counter(table.source for table in tables if table.source is not None)
    leases = list(tree.leases)
    used += Counter(
        page for each in leases if not each.is_breakable for page in each.windows if page.group is group
    )
    assert all(page.users == count for page, count in used.items()), "a page counts its users"
    cached: list[WindowPage] = []
    for node in nodes:
        if node.parent is not None:
            assert len(node.windows[number]) == len(node.pages), "an edge has a place for each page"
            cached += [page for page in node.windows[number] if page is not None and page.id >= 0]
            full = node.windows[number][: len(node.tokens) // tree.page_bytes]
            named = [page.name is not None for page in full if page is not None]
            assert all(named) or tree.on_evict is None, "a page store knows the names of full pages"
    assert len(cached) == len(set(cached)) and all(page.is_cached for page in cached)
    assert set(group.idle) == set(cached) - set(used), "the cached pages that nobody uses may be evicted"
    free = [page for start, end in group.allocator.free_runs() for page in range(start, end)]
    owned = [page.id for page in {*cached, *used}]
    assert Counter([*free, *owned]) == Counter(range(group.num_pages)), "each page has exactly one owner"
    for table in tables:
        assert all(page is None for page in table.pages[: table.first]), "pages behind the window are left"
        assert all(page is not None for page in table.pages[table.first :]), "a request has its window"
