"""A node of the radix tree: an edge of packed tokens and the pages that hold their KV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .packed import KEY_BYTES, TOKEN_BYTES, common_bytes
from .sorted_keys import SortedKeys

# Most nodes are leaves: they share this until they have a child.
_NO_CHILDREN: dict[bytes, Node] = {}


@dataclass(slots=True, eq=False)
class Node:
    """One run of pages below its parent.

    A full node's edge is a whole number of pages. A partial leaf's edge is shorter than one page, and
    it has no children. A root has neither edge nor pages. A remembered node (history.py) has an edge but no
    pages, and nothing but remembered nodes below it.
    """

    namespace: str | None  # None: of requests that share with nobody
    parent: Node | None
    tokens: bytes  # the edge, packed int32
    pages: list[int]
    last_use: int  # when its last lock went
    hits: int = 0  # requests that went through it since
    led_on: int = 0  # those of them that went on into what was below it, or remembered there
    locks: int = 0  # leases that end here + children that are locked
    mark: object = None  # the eviction policy's
    children: dict[bytes, Node] = field(
        default_factory=lambda: _NO_CHILDREN
    )  # by the first page of their edge
    order: SortedKeys | None = None  # the keys of `children`, from the second on
    ghosts: dict[bytes, Node] = field(
        default_factory=lambda: _NO_CHILDREN
    )  # remembered ones, by their first page
    keys: bytes = b""  # of its first pages, as far as they are known (page_keys.py)

    def cut(self, position: int, pages: int) -> Node:
        """Makes a node of the first `position` bytes and `pages` pages, under the same parent.

        This one keeps the rest and whatever hangs below it. Linking them is the caller's.
        """
        upper = Node(
            self.namespace,
            self.parent,
            self.tokens[:position],
            self.pages[:pages],
            self.last_use,
            self.hits,
            led_on=self.hits,
        )
        self.parent = upper
        self.tokens = self.tokens[position:]
        self.pages = self.pages[pages:]
        upper.keys, self.keys = self.keys[: pages * KEY_BYTES], self.keys[pages * KEY_BYTES :]
        return upper

    def link(self, key: bytes, child: Node) -> None:
        if not self.children:
            self.children = {key: child}
            return
        if self.order is None:
            self.order = SortedKeys(self.children)
        self.children[key] = child
        self.order.add(key)

    def unlink(self, key: bytes) -> None:
        if len(self.children) == 1:
            self.children, self.order = _NO_CHILDREN, None
            return
        del self.children[key]
        if self.order is not None:
            self.order.remove(key)

    def link_ghost(self, key: bytes, ghost: Node) -> None:
        if self.ghosts is _NO_CHILDREN:
            self.ghosts = {}
        self.ghosts[key] = ghost

    def nearest_child(self, tokens: bytes) -> tuple[Node | None, int]:
        """The child that shares the most leading bytes with `tokens` (at most a page), and how many.

        Among sorted strings the longest common prefix with a new one is found at its neighbours. One that
        differs in the first token shares none.
        """
        best, best_common = None, 0
        first = tokens[:TOKEN_BYTES]
        for key in self._around(tokens):
            if key and key.startswith(first):
                common = common_bytes(key, tokens)
                if common > best_common:
                    best, best_common = self.children[key], common
        return best, best_common

    def covers(self, tokens: bytes) -> bool:
        """Whether some child's first page begins with `tokens`."""
        _, key = self._around(tokens)
        return key is not None and key.startswith(tokens)

    def child_before(self, key: bytes) -> Node | None:
        """The child whose key sorts just before `key`."""
        before, _ = self._around(key)
        return self.children[before] if before else None

    def _around(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The last child's key below `key`, and the first that is not below it."""
        if self.order is not None:
            return self.order.around(key)
        for only in self.children:
            return (only, None) if only < key else (None, only)
        return None, None

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Node]:
        """This node and all below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def sequence(self) -> bytes:
        """All packed tokens from the root to the end of this node."""
        return b"".join(reversed([node.tokens for node in self.path()]))
