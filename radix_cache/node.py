"""A node of the radix tree: an edge of packed tokens and the pages that hold their KV."""

from __future__ import annotations

from collections.abc import Iterator

from .packed import KEY_BYTES, common_bytes
from .sorted_keys import SortedKeys

# Shared by the nodes that have none: most.
_NO_CHILDREN: dict[bytes, Node] = {}


class Node:
    """One run of pages below its parent.

    The last page may be not full; then there is nothing below it. A root has neither edge nor pages. A
    remembered node (history.py) has an edge of whole pages but no pages, and nothing but remembered nodes
    below it.
    """

    __slots__ = (
        "children",
        "ghosts",
        "hits",
        "key",
        "keys",
        "last_use",
        "led_on",
        "locks",
        "mark",
        "namespace",
        "order",
        "pages",
        "parent",
        "tokens",
    )

    def __init__(
        self,
        namespace: str | None,
        parent: Node | None,
        key: bytes,
        tokens: bytes,
        pages: tuple[int, ...],
        last_use: int,
    ) -> None:
        self.namespace = namespace  # None: of requests that share with nobody
        self.parent = parent
        self.key = key  # the first page of the edge, by which its parent finds it
        self.tokens = tokens  # the edge, packed int32
        self.pages = pages
        self.last_use = last_use  # when its last lock went
        self.hits = 0  # requests that went through it since
        self.led_on = 0  # those of them that went on into what was below it, or remembered there
        self.locks = 0  # leases that end here + children that are locked
        self.mark: object = None  # the eviction policy's
        self.children = _NO_CHILDREN  # by their keys
        self.order: SortedKeys | None = None  # the keys of `children`, from the second on
        self.ghosts = _NO_CHILDREN  # remembered ones, by their keys
        self.keys = b""  # of its first pages, as far as they are known (page_keys.py)

    def cut(self, pages: int) -> Node:
        """Makes a node of the first `pages` pages, under the same parent.

        This one keeps the rest and whatever hangs below it. Linking them is the caller's.
        """
        position = pages * len(self.key)
        upper = Node(
            self.namespace,
            self.parent,
            self.key,
            self.tokens[:position],
            self.pages[:pages],
            self.last_use,
        )
        upper.hits = upper.led_on = self.hits
        upper.mark = self.mark
        self.parent = upper
        self.tokens = self.tokens[position:]
        self.key = self.tokens[: len(self.key)]
        self.pages = self.pages[pages:]
        upper.keys, self.keys = self.keys[: pages * KEY_BYTES], self.keys[pages * KEY_BYTES :]
        return upper

    def cut_end(self, pages: int) -> Node:
        """Makes a node of what a leaf has behind its first `pages` pages, remembered nodes included.

        Its parent is this one, which keeps its place and those pages. Linking it is the caller's.
        """
        size = len(self.key)
        tokens = self.tokens[pages * size :]
        end = Node(self.namespace, self, tokens[:size], tokens, self.pages[pages:], self.last_use)
        end.hits, end.led_on, self.led_on = self.hits, self.led_on, self.hits
        end.mark = self.mark
        end.ghosts, self.ghosts = self.ghosts, _NO_CHILDREN
        for ghost in end.ghosts.values():
            ghost.parent = end
        self.tokens = self.tokens[: pages * size]
        self.pages = self.pages[:pages]
        end.keys, self.keys = self.keys[pages * KEY_BYTES :], self.keys[: pages * KEY_BYTES]
        return end

    def link(self, child: Node) -> Node | None:
        """Returns the child whose key sorts last before the new one's, if both begin with the same token."""
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
            self.order.removed()

    def link_ghost(self, ghost: Node) -> None:
        if self.ghosts is _NO_CHILDREN:
            self.ghosts = {}
        self.ghosts[ghost.key] = ghost

    def nearest_child(self, tokens: bytes) -> tuple[Node | None, int]:
        """The child that shares the most leading bytes with `tokens` (at most a page), and how many.

        Among sorted strings the longest common prefix with a new one is found at its neighbours. One that
        differs in the first token shares none.
        """
        best, best_common = None, 0
        for key in self._around(tokens):
            if key:
                common = common_bytes(key, tokens)
                if common > best_common:
                    best, best_common = self.children[key], common
        return best, best_common

    def covers(self, tokens: bytes) -> bool:
        """Whether some child's first page begins with `tokens`."""
        _, key = self._around(tokens)
        return key is not None and key.startswith(tokens)

    def _around(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The last child's key below `key`, and the first that is not; each only if it may share a token."""
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
