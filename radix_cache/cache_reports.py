"""Reports on the contents of the tree, for clients. They change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, nlargest
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from .lock import Lock, PrefixMatch
from .node import Node
from .packed import TOKEN_BYTES
from .prompt_path import PathNode, count_other_branches, list_ghosts, list_path
from .tree import RadixTree

Prompt: TypeAlias = tuple[str | None, bytes]
"""the namespace of a request, None if it shares nothing, and its tokens as packed int32"""

# Limits that keep a report short:
MAX_VISITED = 4_096  # nodes visited besides the roots
MAX_LISTED = 20_000  # nodes listed, of which those with the most hits are visited


class Divergence(NamedTuple):
    """Where a sequence leaves the tree, how far evicted nodes continue it, and what the tree has instead."""

    matched: int  # leading tokens from which a request could start
    remembered: int  # leading tokens that are in the tree, even without all pages, or were evicted recently
    behind: bytes  # packed tokens that follow those in the tree, along the path that was used last
    paged: int  # leading tokens with all their pages; more than `matched` if no checkpoint is there


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node, a root, or an evicted node. Requests, pins and leases count at every node that they use. A
    waiting request counts at every node that it would use now, or only at the root if nothing matches."""

    id: int | None  # id of the node's first page; None: a root, or an evicted node
    parent: int | None  # index in the list of nodes; None: a root
    namespace: str
    lead: bytes  # last tokens before the node, packed int32
    head: bytes  # first tokens of the node, packed int32; a root has none
    tokens: int
    pages: int
    hits: int  # requests that matched it after the one that created it
    idle: int  # accesses since its last use; 0 while it is locked
    requests: int  # running requests that use the node
    waiting: int
    pins: int
    leases: int
    tokens_below: int  # tokens of the node's descendants
    folded: int  # descendants that the report's list leaves out
    keys: bytes  # page keys of an evicted node, concatenated; empty if the cache has no keys


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """All tokens from the root to the end of a node."""

    namespace: str
    head: bytes  # first tokens of the prefix, packed int32
    tail: bytes  # last tokens of the prefix, as many as in `head`
    tokens: int  # length of the prefix in tokens
    hits: int  # requests that began with the prefix
    idle: int  # accesses since its last use; 0 while it is locked


class TreeWalk:
    """The nodes of some namespaces, evicted ones included: the roots, then the nodes with the most hits,
    parents before their children. `is_complete`: the walk found all nodes."""

    def __init__(
        self,
        roots: Iterable[Node],
        now: int,
        requests: Counter[Node],
        waiting: Counter[Node],
        pins: Counter[Node],
    ) -> None:
        """`requests`, `waiting` and `pins`: how many requests, waiting requests and pins end at each node."""
        self._now = now
        self._requests, self._waiting, self._pins = requests, waiting, pins
        self._nodes = list(roots)
        self._parents = [-1] * len(self._nodes)  # index in `_nodes` of each node's parent
        self.is_complete = self._walk()

    def _walk(self) -> bool:
        """Finds the nodes below the roots. Returns whether all were found."""
        nodes, parents = self._nodes, self._parents
        num_roots = len(nodes)
        share_of_root = MAX_LISTED // max(1, num_roots)  # so that no namespace hides another
        queue: list[tuple[int, int, int, Node]] = []  # (-hits, order of listing, index of the parent, node)
        listed, all_listed = 0, True
        for place, node in enumerate(nodes):
            if node.children or node.ghosts:
                children = _list_children(node, share_of_root if place < num_roots else MAX_LISTED - listed)
                all_listed &= len(children) == len(node.children) + len(node.ghosts)
                for child in children:
                    heappush(queue, (-child.hits, listed, place, child))
                    listed += 1
            if queue and num_roots <= place + 1 < num_roots + MAX_VISITED:
                _, _, parent, child = heappop(queue)
                nodes.append(child)
                parents.append(parent)
        return all_listed and not queue

    def list_largest(self, most: int, shown_tokens: int, lead_tokens: int = 0) -> list[TreeNode]:
        """The `most` nodes whose branches have the most tokens, each with its first `shown_tokens` tokens and
        the last `lead_tokens` before it. Parents come before their children."""
        lengths = self._measure()
        tokens, sizes = self._sum(lengths), self._sum([1] * len(self._nodes))
        # A branch has no more tokens than its parent, and the parent comes first: so it is listed too.
        places = range(len(self._nodes))
        listed = sorted(nlargest(most, places, key=lambda place: (tokens[place], -place)))
        index = {place: number for number, place in enumerate(listed)}
        folded = {place: sizes[place] - 1 for place in listed}
        for place in listed:
            if self._parents[place] >= 0:
                folded[self._parents[place]] -= sizes[place]
        requests, waiting, pins = map(self._count, (self._requests, self._waiting, self._pins))
        leases = self._sum([node.leases for node in self._nodes])
        return [
            TreeNode(
                id=node.first_page,
                parent=index.get(self._parents[place]),
                namespace=node.namespace or "",
                lead=_read_before(node, lead_tokens * TOKEN_BYTES),
                head=node.tokens[: shown_tokens * TOKEN_BYTES],
                tokens=lengths[place],
                pages=len(node.pages),
                hits=node.hits,
                idle=self._measure_idle(node),
                requests=requests[place],
                waiting=waiting[place],
                pins=pins[place],
                leases=leases[place] - pins[place],
                tokens_below=tokens[place] - lengths[place],
                folded=folded[place],
                keys=b"" if node.pages else node.keys,
            )
            for place, node in ((place, self._nodes[place]) for place in listed)
        ]

    def list_top_prefixes(self, most: int, shown_tokens: int) -> list[CachedPrefix]:
        """The `most` prefixes that saved the most computing (hits × tokens), at most one from each branch,
        with their first and last `shown_tokens` tokens.

        A branch continues with a child that has at least half of its parent's hits. So if one reported prefix
        extends another, the shorter has at least twice the hits.
        """
        best: dict[int, tuple[int, Node, int]] = {}  # for each branch: saved tokens, node, its end in tokens
        for node, branch, end in self._find_branches():
            saved = node.hits * end
            if saved and (branch not in best or saved > best[branch][0]):
                best[branch] = saved, node, end
        largest = nlargest(most, best.values(), key=lambda found: found[0])
        return [self._describe(node, end, shown_tokens * TOKEN_BYTES) for _, node, end in largest]

    def read_edge(self, page: int, most: int) -> bytes | None:
        """The first `most` tokens of the node that begins with `page`; None if the walk did not find it."""
        found = (node.tokens[: most * TOKEN_BYTES] for node in self._nodes if node.first_page == page)
        return next(found, None)

    def _find_branches(self) -> Iterator[tuple[Node, int, int]]:
        """The nodes with pages, each with the index of its branch's first node and its end in tokens."""
        ends, branches = self._measure(), list(range(len(self._nodes)))
        continued: set[int] = set()  # indices of nodes whose first child, which has the most hits, was seen
        for place, (node, parent) in enumerate(zip(self._nodes, self._parents, strict=True)):
            if not node.pages:
                continue
            ends[place] += ends[parent]
            above = self._nodes[parent]
            if parent not in continued and above.parent is not None and 2 * node.hits >= above.hits:
                branches[place] = branches[parent]
            continued.add(parent)
            yield node, branches[place], ends[place]

    def _describe(self, node: Node, end: int, shown_bytes: int) -> CachedPrefix:
        assert node.namespace is not None, "nodes without a namespace are not kept"
        tokens = node.sequence()
        return CachedPrefix(
            namespace=node.namespace,
            head=tokens[:shown_bytes],
            tail=tokens[-shown_bytes:],
            tokens=end,
            hits=node.hits,
            idle=self._measure_idle(node),
        )

    def _measure(self) -> list[int]:
        """The length of each node's edge in tokens."""
        return [len(node.tokens) // TOKEN_BYTES for node in self._nodes]

    def _measure_idle(self, node: Node) -> int:
        return 0 if node.locks else self._now - node.last_use

    def _count(self, ends: Counter[Node]) -> list[int]:
        return self._sum([ends[node] for node in self._nodes])

    def _sum(self, values: Sequence[int]) -> list[int]:
        """The sum of the values over each node's branch."""
        sums = list(values)
        places = range(len(sums) - 1, -1, -1) if any(sums) else range(0)
        for place in places:
            if sums[place] and self._parents[place] >= 0:
                sums[self._parents[place]] += sums[place]
        return sums


class TreeReports:
    def __init__(
        self,
        tree: RadixTree,
        locks: Collection[Lock],
        serve: Callable[[PrefixMatch, bytes], tuple[int, int]],
    ) -> None:
        """`locks`: the locks of all requests. `serve`: see `PrefixCache._measure_served`."""
        self._tree, self._locks, self._serve = tree, locks, serve

    def namespaces(self, scope: str = "") -> dict[str, int]:
        """Number of pages in the tree for each namespace whose name begins with `scope`."""
        pages_in = self._tree.pages_in.items()
        return {
            name: pages for name, pages in pages_in if name is not None and pages and name.startswith(scope)
        }

    def divergence(self, namespace: str | None, tokens: bytes, most: int) -> Divergence:
        """Where `tokens` leave the tree, and at most `most` tokens that the tree has there instead."""
        match = self._tree.find(namespace, tokens)
        remembered = max(match.length, list_ghosts(self._tree, match, tokens)[1])
        matched, paged = self._serve(match, tokens)
        return Divergence(matched, remembered, _read_behind(match, most * TOKEN_BYTES), paged)

    def path(
        self, namespace: str | None, tokens: bytes, ends: Sequence[int]
    ) -> tuple[list[PathNode], list[int]]:
        """The nodes that `tokens` go through, and how many other branches go through each of the `ends`."""
        match = self._tree.find(namespace, tokens)
        nodes = list_path(self._tree, match, tokens)
        return nodes, count_other_branches(self._tree, match, tokens, ends)

    def walk(self, namespaces: Iterable[str], waiting: Iterable[Prompt] = ()) -> TreeWalk:
        """The nodes of these namespaces. `waiting` are the prompts of waiting requests."""
        roots = (self._tree.roots[name] for name in namespaces if name in self._tree.roots)
        requests = Counter(lock.node for lock in self._locks if lock.node is not None)
        pins = Counter(each.node for each in self._tree.leases if each.node and not each.is_breakable)
        return TreeWalk(roots, self._tree.now, requests, self._count_ends(waiting), pins)

    def _count_ends(self, prompts: Iterable[Prompt]) -> Counter[Node]:
        """How many of the prompts' longest matches end in each node, or at a root if nothing matches."""
        ends = Counter[Node]()
        for namespace, tokens in prompts:
            match = self._tree.find(namespace, tokens)
            partly = match.inside if match.length > match.depth else None
            ends[partly or match.node] += 1
        return ends


def _list_children(node: Node, most: int) -> list[Node]:
    """The children, evicted ones included. If there are more than `most`, or than may be visited, returns
    those with the most hits."""
    most = min(most, MAX_VISITED)
    children = [*node.children.values(), *node.ghosts.values()]
    if len(children) <= most:
        return children
    hit = nlargest(most, (child for child in children if child.hits), key=attrgetter("hits"))
    return list(islice(chain(hit, (child for child in children if not child.hits)), most))


def _read_behind(match: PrefixMatch, most: int) -> bytes:
    """At most `most` bytes of the tokens that follow the match, along the path that was used last."""
    node, found = match.node, b""
    if match.inside is not None:
        node = match.inside
        found = node.tokens[(match.length - match.depth) * TOKEN_BYTES :]
    while len(found) < most and node.children:
        node = max(node.children.values(), key=lambda child: (child.locks > 0, child.last_use))
        found += node.tokens
    return found[:most]


def _read_before(node: Node, most: int) -> bytes:
    """At most `most` bytes of the tokens between the root and the beginning of the node."""
    found = b""
    while len(found) < most and node.parent is not None:
        node = node.parent
        found = node.tokens[-(most - len(found)) :] + found
    return found
