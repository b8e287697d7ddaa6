"""A node of the radix tree: an edge of packed tokens and the pages that hold their KV."""

from __future__ import annotations

from collections.abc import Iterator

from .packed import KEY_BYTES, TOKEN_BYTES, SortedKeys, common_bytes
from .windows import WindowPages

# Shared by all nodes without children, which are the majority.
_NO_CHILDREN: dict[bytes, Node] = {}
_NO_CHECKPOINTS: dict[tuple[int, bytes], Checkpoint] = {}


class Checkpoint:
    """The state of recurrent layers after some prefix, in a place of the memory for states."""

    __slots__ = ("hits", "is_superseded", "key", "node", "pins", "place")

    def __init__(self, place: int, hits: int = 0) -> None:
        self.place = place
        self.hits = hits  # requests that started from it
        self.node: Node | None = None  # its node; None: it is not in the tree
        self.key = (0, b"")  # its key in `Node.checkpoints`
        self.pins = 0  # requests that may load it
        self.is_superseded = False  # the only request that started from it has left a later one


class Node:
    """A run of pages below its parent.

    A leaf's last page may be partial (a tail); other nodes have full pages only. A root has neither edge nor
    pages. A ghost (history.py) has an edge of whole pages but no pages, and only ghosts below it.
    """

    __slots__ = (
        "checkpoints",
        "children",
        "extended",
        "ghosts",
        "hits",
        "key",
        "keys",
        "last_use",
        "leases",
        "locks",
        "mark",
        "namespace",
        "order",
        "pages",
        "parent",
        "tokens",
        "windows",
    )

    def __init__(
        self,
        namespace: str | None,
        parent: Node | None,
        key: bytes,
        tokens: bytes,
        pages: tuple[int, ...],
        last_use: int,
        windows: tuple[WindowPages, ...] = (),
    ) -> None:
        self.namespace = namespace  # None: not shared between requests
        self.parent = parent
        self.key = key  # the first page's tokens, which are the node's key in `parent.children`
        self.tokens = tokens  # all tokens of the edge, packed int32
        self.pages = pages
        self.windows = windows  # for each windowed group, the pages of the same tokens that are still there
        self.last_use = last_use  # the time when the node was last unlocked, in accesses
        self.hits = 0  # requests that matched the node after the one that created it
        self.extended = 0  # how many of the hits also matched a child or a ghost below the node
        self.locks = 0  # number of locks that end here, plus number of locked children
        self.leases = 0  # number of leases that end here
        self.mark: object = None  # the eviction policy's data about the node
        self.children = _NO_CHILDREN  # child nodes by `key`
        self.order: SortedKeys | None = None  # the keys of `children`, once there are two children
        self.ghosts = _NO_CHILDREN  # ghosts below the node by `key`
        # Checkpoints by the number of the node's whole pages before them, and the tokens after these, less
        # than a page. Those tokens are in a child; so a checkpoint stays when children come and go.
        self.checkpoints = _NO_CHECKPOINTS
        self.keys = b""  # concatenated keys (page_keys.py) of the first pages; the rest is not computed yet

    def cut(self, pages: int) -> Node:
        """Returns a new node with the first `pages` pages, under the same parent.

        This node keeps the rest and all its children. The caller links both nodes.
        """
        position = pages * len(self.key)
        upper = Node(
            self.namespace,
            self.parent,
            self.key,
            self.tokens[:position],
            self.pages[:pages],
            self.last_use,
            tuple(window[:pages] for window in self.windows),
        )
        upper.hits = upper.extended = self.hits
        upper.mark = self.mark
        self.parent = upper
        self.tokens = self.tokens[position:]
        self.key = self.tokens[: len(self.key)]
        self.pages = self.pages[pages:]
        self._divide_checkpoints(pages, upper, self)
        self.windows = tuple(window[pages:] for window in self.windows)
        upper.keys, self.keys = self.keys[: pages * KEY_BYTES], self.keys[pages * KEY_BYTES :]
        return upper

    def cut_end(self, pages: int) -> Node:
        """Returns a new node with a leaf's pages after the first `pages`, and its ghosts.

        This node stays in the tree with its first pages and becomes the parent. The caller links the new one.
        """
        size = len(self.key)
        tokens = self.tokens[pages * size :]
        windows = tuple(window[pages:] for window in self.windows)
        end = Node(self.namespace, self, tokens[:size], tokens, self.pages[pages:], self.last_use, windows)
        end.hits, end.extended, self.extended = self.hits, self.extended, self.hits
        end.mark = self.mark
        end.ghosts, self.ghosts = self.ghosts, _NO_CHILDREN
        for ghost in end.ghosts.values():
            ghost.parent = end
        self.tokens = self.tokens[: pages * size]
        self.pages = self.pages[:pages]
        self._divide_checkpoints(pages, self, end)
        self.windows = tuple(window[:pages] for window in self.windows)
        end.keys, self.keys = self.keys[pages * KEY_BYTES :], self.keys[: pages * KEY_BYTES]
        return end

    def _divide_checkpoints(self, pages: int, upper: Node, lower: Node) -> None:
        """Divides this node's checkpoints after its first `pages` pages."""
        checkpoints = self.checkpoints
        if checkpoints:
            upper.checkpoints, lower.checkpoints = {}, {}
        for (before, rest), checkpoint in checkpoints.items():
            node = upper if before <= pages else lower
            checkpoint.node = node
            checkpoint.key = (before if node is upper else before - pages, rest)
            node.checkpoints[checkpoint.key] = checkpoint

    def link(self, child: Node) -> Node | None:
        """Adds a child. Returns the previous sibling in key order if both start with the same token."""
        if not self.children:
            self.children = {child.key: child}
            return None
        if self.order is None:
            self.order = SortedKeys(self.children)
        self.children[child.key] = child
        before = self.order.add(child.key)
        return self.children[before] if before else None

    def unlink(self, child: Node) -> None:
        if len(self.children) == 1:
            self.children, self.order = _NO_CHILDREN, None
            return
        del self.children[child.key]
        if self.order is not None:
            self.order.count_removed()

    def link_ghost(self, ghost: Node) -> None:
        if self.ghosts is _NO_CHILDREN:
            self.ghosts = {}
        self.ghosts[ghost.key] = ghost

    def nearest_child(self, tokens: bytes) -> tuple[Node | None, int]:
        """The child that shares the most leading bytes with `tokens` (at most a page), and their number.

        Among sorted keys, one of the two neighbours of `tokens` shares the longest prefix.
        """
        best, best_common = None, 0
        for key in self._find_around(tokens):
            if key:
                common = common_bytes(key, tokens)
                if common > best_common:
                    best, best_common = self.children[key], common
        return best, best_common

    def covers(self, tokens: bytes) -> bool:
        """Whether the first page of a child begins with `tokens`."""
        _, key = self._find_around(tokens)
        return key is not None and key.startswith(tokens)

    @property
    def is_covered(self) -> bool:
        """Whether a sibling's first page begins with the tokens of this node, a tail of less than a page."""
        assert self.parent is not None
        _, key = self.parent._find_around(self.key + b"\0")
        return key is not None and key.startswith(self.key)

    def tails_beside(self) -> Iterator[Node]:
        """The siblings shorter than a page whose tokens are the beginning of this node's first page."""
        siblings = self.parent.children if self.parent is not None else {}
        if len(siblings) > 1:
            for end in range(TOKEN_BYTES, len(self.key), TOKEN_BYTES):
                if (tail := siblings.get(self.key[:end])) is not None:
                    yield tail

    def _find_around(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The children's keys just below `key` and from `key` on; None for one that shares no token."""
        if self.order is not None:
            return self.order.find_around(key)
        for only in self.children:
            return (only, None) if only < key else (None, only)
        return None, None

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def first_page(self) -> int | None:
        """The id of the node's first page; None if it has no pages."""
        return self.pages[0] if self.pages else None

    def subtree(self) -> Iterator[Node]:
        """This node and all its descendants."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def sequence(self) -> bytes:
        """All packed tokens from the root to the end of this node."""
        return b"".join(reversed([node.tokens for node in self.path()]))
