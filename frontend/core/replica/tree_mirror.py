"""One radix tree of what the trees of all replicas have: for each prefix the replicas that have its pages."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ....runtime.messages import TOKEN_BYTES, Tokens

NO_PAGE = -1


class Expected(NamedTuple):
    """The first `pages` of a node, which a replica will soon have."""

    pages: int
    until: float


NOTHING = Expected(0, 0.0)


class MirrorNode:
    """An edge of full pages. Each replica in `pages` has a part of it that begins with its first page; the
    longest part has the whole edge. Replicas that have pages of a child have all of the edge."""

    __slots__ = ("children", "expected", "namespace", "pages", "parent", "tokens")

    def __init__(self, namespace: str, parent: MirrorNode | None, tokens: Tokens) -> None:
        self.namespace = namespace
        self.parent = parent  # None: a root, which has no edge
        self.tokens = tokens
        self.children: dict[Tokens, MirrorNode] = {}  # by the tokens of their first pages
        self.pages: dict[int, array[int]] = {}  # by replica: the ids of its pages
        self.expected: dict[int, Expected] = {}  # by replica


class TreeMirror:
    """Knows a page of a replica by its id. It is as large as the trees, without what they share."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size * TOKEN_BYTES
        self._roots: dict[str, MirrorNode] = {}
        self._nodes: dict[int, dict[int, MirrorNode]] = {}  # by replica and page
        self._expected: deque[tuple[float, int, MirrorNode]] = deque()
        """for each expected sequence its end, its replica and its last node; the first to end first"""

    def match(self, namespace: str, tokens: Tokens) -> dict[int, int]:
        """How many of the tokens' first pages each replica has or will soon have; without those that have
        none."""
        found: dict[int, int] = {}
        for node, before, common in self._walk(namespace, tokens):
            most = before + common
            for replica, pages in node.pages.items():
                count = before + len(pages)
                found[replica] = count if count < most else most  # min() takes twice as long
            for replica, expected in node.expected.items():
                count = before + expected.pages
                if (count := count if count < most else most) > found.get(replica, 0):
                    found[replica] = count
        return found

    def count(self, replica: int, namespace: str, tokens: Tokens) -> int:
        """How many of the tokens' first pages one replica has or will soon have."""
        found = 0
        for node, before, common in self._walk(namespace, tokens):
            pages, expected = node.pages.get(replica, ()), node.expected.get(replica, NOTHING)
            if pages or expected.pages:
                found = before + min(max(len(pages), expected.pages), common)
        return found

    def store(self, replica: int, namespace: str, after: int, tokens: Tokens, pages: array[int]) -> bool:
        """Adds pages of a replica after its page `after`, or at the beginning of the namespace. Returns False
        if it has no such page."""
        nodes = self._nodes.setdefault(replica, {})
        if after == NO_PAGE:
            node, offset = self._open_root(namespace), 0
        elif after in nodes:
            node = nodes[after]
            offset = node.pages[replica].index(after) + 1
        else:
            return False
        done = 0
        while done < len(pages):
            at = done * self._size
            if offset * self._size < len(node.tokens):
                common = self._count_common(node, tokens, at, offset)
                if not common:
                    node = self._split(node, offset)
                    continue
                taken = pages[done : done + common]
                node.pages.setdefault(replica, array("i")).extend(taken)
                nodes.update(dict.fromkeys(taken, node))
                offset, done = offset + common, done + common
            elif child := node.children.get(tokens[at : at + self._size]):
                node, offset = child, 0
            elif node.children or node.parent is None:
                node, offset = self._add(node, tokens[at:]), 0
            else:
                node.tokens += tokens[at:]
        return True

    def remove(self, replica: int, pages: array[int]) -> bool:
        """Removes pages of a replica, none before those that follow it. Returns False if it has not had
        them."""
        nodes, shrunk = self._nodes.get(replica, {}), None
        for page in pages:
            node = nodes.pop(page, None)
            if node is None or node.pages[replica].pop() != page:
                return False
            if not node.pages[replica]:
                del node.pages[replica]
            if shrunk is not node and shrunk is not None:
                self._shrink(shrunk)
            shrunk = node
        if shrunk is not None:
            self._shrink(shrunk)
        return True

    def clear(self, replica: int) -> None:
        """Removes all pages of a replica, and those that it was expected to have."""
        self._nodes.pop(replica, None)
        for node in reversed(list(self.list_nodes())):
            node.pages.pop(replica, None)
            node.expected.pop(replica, None)
            self._shrink(node)

    def expect(self, replica: int, namespace: str, tokens: Tokens, until: float) -> None:
        """Counts the full pages of a sequence as the replica's until a time. Times of calls don't fall."""
        node, position = self._open_root(namespace), 0
        end = len(tokens) // self._size * self._size
        while position < end:
            child = node.children.get(tokens[position : position + self._size])
            if child is None:
                child = self._add(node, tokens[position:end])
            common = self._count_common(child, tokens, position)
            position += common * self._size
            if common * self._size < len(child.tokens) and position < end:
                child = self._split(child, common)
            before = child.expected.get(replica)
            child.expected[replica] = Expected(max(common, before.pages if before else 0), until)
            node = child
        if node.parent is not None:
            self._expected.append((until, replica, node))
        else:
            self._drop_empty_root(node)

    def expire(self, now: float) -> None:
        """Drops what was expected until now."""
        while self._expected and self._expected[0][0] <= now:
            _, replica, node = self._expected.popleft()
            while node.parent is not None:
                expected = node.expected.get(replica)
                if expected is not None and expected.until <= now:
                    del node.expected[replica]
                self._shrink(node)
                node = node.parent

    def list_nodes(self) -> Iterator[MirrorNode]:
        """All nodes but the roots, parents before their children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack += node.children.values()

    def _walk(self, namespace: str, tokens: Tokens) -> Iterator[tuple[MirrorNode, int, int]]:
        """The nodes that have the tokens, each with the number of pages before it and of those in common."""
        size, position, node = self._size, 0, self._roots.get(namespace)
        while node is not None and (child := node.children.get(tokens[position : position + size])):
            common = self._count_common(child, tokens, position)
            yield child, position // size, common
            position += len(child.tokens)
            node = child if common * size == len(child.tokens) else None

    def _count_common(self, node: MirrorNode, tokens: Tokens, position: int, offset: int = 0) -> int:
        """How many pages the edge from page `offset` on shares with the tokens from `position` on."""
        edge = node.tokens[offset * self._size :] if offset else node.tokens
        if tokens.startswith(edge, position):
            return len(edge) // self._size
        length = min(len(edge), len(tokens) - position) // self._size * self._size
        if tokens.startswith(edge[:length], position):
            return length // self._size
        ours = np.frombuffer(edge, np.int32, length // TOKEN_BYTES)
        theirs = np.frombuffer(tokens, np.int32, length // TOKEN_BYTES, position)
        return int((ours != theirs).argmax()) * TOKEN_BYTES // self._size

    def _open_root(self, namespace: str) -> MirrorNode:
        return self._roots.setdefault(namespace, MirrorNode(namespace, None, b""))

    def _add(self, node: MirrorNode, tokens: Tokens) -> MirrorNode:
        child = MirrorNode(node.namespace, node, tokens)
        node.children[tokens[: self._size]] = child
        return child

    def _split(self, node: MirrorNode, count: int) -> MirrorNode:
        """Splits an edge after `count` pages. Returns the new upper node."""
        assert node.parent is not None, "a root has no edge"
        upper = self._add(node.parent, node.tokens[: count * self._size])
        node.tokens = node.tokens[count * self._size :]
        node.parent, upper.children = upper, {node.tokens[: self._size]: node}
        upper.pages = {replica: pages[:count] for replica, pages in node.pages.items()}
        node.pages = {replica: pages[count:] for replica, pages in node.pages.items() if len(pages) > count}
        for replica, pages in upper.pages.items():
            self._nodes[replica].update(dict.fromkeys(pages, upper))
        expected, node.expected = node.expected, {}
        for replica, each in expected.items():
            upper.expected[replica] = Expected(min(each.pages, count), each.until)
            if each.pages > count:
                node.expected[replica] = Expected(each.pages - count, each.until)
        return upper

    def _shrink(self, node: MirrorNode) -> None:
        """Cuts the edge to what some replica has or will have. Unlinks the node if that is nothing."""
        if node.children or node.parent is None:
            return
        parts = [len(pages) for pages in node.pages.values()]
        count = max([*parts, *(each.pages for each in node.expected.values())], default=0)
        if count * self._size == len(node.tokens):
            return
        key = node.tokens[: self._size]
        node.tokens = node.tokens[: count * self._size]
        if not count:
            del node.parent.children[key]
            self._drop_empty_root(node.parent)

    def _drop_empty_root(self, node: MirrorNode) -> None:
        if node.parent is None and not node.children:
            self._roots.pop(node.namespace, None)
