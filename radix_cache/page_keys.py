"""The keys under which the slower tiers store pages and states: hashes of all tokens up to their ends."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from .node import Checkpoint, Node
from .packed import KEY_BYTES, split_keys
from .tree import RadixTree


class KeyedPages(NamedTuple):
    """Consecutive full pages and their concatenated keys."""

    namespace: str
    keys: bytes
    pages: list[int]


class KeyedState(NamedTuple):
    """The place of a checkpoint at the end of a page, and the key of its state."""

    namespace: str
    key: bytes
    place: int


class Missing(NamedTuple):
    """The keys of a sequence's full pages that are not in the tree, from page `first` on.

    With recurrent layers, `states` has the keys of the states at the ends of pages: of all pages that end
    after the last checkpoint in the tree.
    """

    first: int
    keys: bytes
    states: bytes = b""


class PageKeys:
    """The key of a full page: a hash of the model, the namespace and all tokens up to the page's end.

    Each key hashes the key before it and a page's tokens, so equal keys mean equal prefixes.
    `model`, at most 64 bytes, identifies everything else that a page's content depends on.
    """

    def __init__(self, model: bytes, page_bytes: int) -> None:
        self._model = model
        self._page_bytes = page_bytes

    def start(self, namespace: str) -> bytes:
        """The key from which the hash chain of a namespace starts."""
        return blake2b(namespace.encode(), digest_size=KEY_BYTES, key=self._model).digest()

    def follow(self, key: bytes, tokens: bytes) -> bytes:
        """The keys of the full pages of `tokens`, which follow the page with `key`; concatenated."""
        keys, size = [], self._page_bytes
        for at in range(0, len(tokens) - size + 1, size):
            key = blake2b(key + tokens[at : at + size], digest_size=KEY_BYTES).digest()
            keys.append(key)
        return b"".join(keys)

    def compute(self, node: Node) -> bytes:
        """The keys of a node's full pages; computed once."""
        unnamed = []
        for above in node.path():
            if len(above.keys) == self._full_pages(above) * KEY_BYTES and above.keys:
                break
            unnamed.append(above)
        for each in reversed(unnamed):
            self._complete(each)
        return node.keys

    def find_last(self, node: Node) -> bytes:
        """The key at the end of a node of full pages, or of a root."""
        if node.parent is None:
            assert node.namespace is not None, "nodes without a namespace have no keys"
            return self.start(node.namespace)
        return self.compute(node)[-KEY_BYTES:]

    def _complete(self, node: Node) -> None:
        if node.parent is None:
            return
        before = node.keys[-KEY_BYTES:] or node.parent.keys[-KEY_BYTES:] or self.find_last(node.parent)
        known = len(node.keys) // KEY_BYTES * self._page_bytes
        node.keys += self.follow(before, node.tokens[known:])

    def _full_pages(self, node: Node) -> int:
        return len(node.tokens) // self._page_bytes


def _name_state(page_key: bytes) -> bytes:
    """The key of the state after the page with this key."""
    return blake2b(page_key, digest_size=KEY_BYTES, person=b"state").digest()


class TreeKeys:
    """The keys of the tree's pages and checkpoints, and of what the tree has evicted."""

    def __init__(self, model: bytes, tree: RadixTree) -> None:
        """model: see `PageKeys`"""
        self._keys = PageKeys(model, tree.page_bytes)
        self._tree = tree
        self._evicted: list[KeyedPages] = []
        self._evicted_states: list[KeyedState] = []

    def take_evicted(self) -> list[KeyedPages]:
        """The full pages evicted since the last call. Their contents are intact until they are written."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def take_evicted_states(self) -> list[KeyedState]:
        """The checkpoints at ends of pages that were evicted since the last call, without superseded ones.
        Their states are intact until a step writes them."""
        evicted, self._evicted_states = self._evicted_states, []
        return evicted

    def note_evicted(self, leaf: Node) -> None:
        """Call it before the leaf loses its pages and its parent."""
        pages = self._key_node(leaf)
        if pages is not None:
            self._evicted.append(pages)
        for checkpoint in leaf.checkpoints.values():
            self.note_evicted_checkpoint(checkpoint)

    def note_evicted_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Call it before the checkpoint leaves its node."""
        state = None if checkpoint.is_superseded else self._key_checkpoint(checkpoint)
        if state is not None:
            self._evicted_states.append(state)

    def find_missing(self, namespace: str, tokens: bytes, start: int | None = None) -> Missing:
        """The full pages of `tokens` that are not in the tree. Changes nothing.

        start: with recurrent layers, the position of the last checkpoint in the tree
        """
        match = self._tree.find(namespace, tokens)
        inside = match.inside if match.inside_pages else None
        known = b"" if inside is None else self._keys.compute(inside)[: match.inside_pages * KEY_BYTES]
        before = known[-KEY_BYTES:] or self._keys.find_last(match.node)
        keys = self._keys.follow(before, tokens[match.full_pages * self._tree.page_bytes :])
        if start is None:
            return Missing(match.full_pages, keys)
        above = b"".join(reversed([self._keys.compute(node) for node in match.node.path()]))
        after_start = (above + known + keys)[start // self._tree.page_size * KEY_BYTES :]
        return Missing(match.full_pages, keys, self.name_states(after_start))

    def compute(self, namespace: str, tokens: bytes, after: bytes = b"") -> bytes:
        """Keys of all full pages of `tokens`, cached or not, concatenated.

        after: key of the preceding page if `tokens` does not start at the beginning
        """
        return self._keys.follow(after or self._keys.start(namespace), tokens)

    def name_states(self, keys: bytes) -> bytes:
        """For the key of each page the key of the state after that page; concatenated."""
        return b"".join(map(_name_state, split_keys(keys)))

    def list_pages(self) -> list[KeyedPages]:
        """All full pages in the tree, most recently used first, parents before their children."""
        return [pages for node in self._list_nodes() if (pages := self._key_node(node)) is not None]

    def list_states(self) -> list[KeyedState]:
        """All checkpoints in the tree at ends of pages, in the order of `list_pages`, without superseded
        ones."""
        return [
            state
            for node in self._list_nodes()
            for checkpoint in node.checkpoints.values()
            if not checkpoint.is_superseded and (state := self._key_checkpoint(checkpoint)) is not None
        ]

    def _key_node(self, node: Node) -> KeyedPages | None:
        """A node's full pages with their keys; None if it has no full page or no namespace."""
        if node.namespace is None:
            return None
        names = self._keys.compute(node)
        full = list(node.pages[: len(names) // KEY_BYTES])
        return KeyedPages(node.namespace, names, full) if full else None

    def _key_checkpoint(self, checkpoint: Checkpoint) -> KeyedState | None:
        """A checkpoint with its key; None if it is not at the end of a page, or has no namespace."""
        node, (pages, rest) = checkpoint.node, checkpoint.key
        if node is None or node.namespace is None or rest or not pages:
            return None
        page_key = self._keys.compute(node)[: pages * KEY_BYTES][-KEY_BYTES:]
        return KeyedState(node.namespace, _name_state(page_key), checkpoint.place)

    def _list_nodes(self) -> Iterator[Node]:
        """All nodes, most recently used first, but parents before their children."""
        listed: set[Node] = set()
        nodes = [node for root in self._tree.roots.values() for node in root.subtree()]
        for node in sorted(nodes, key=lambda node: node.last_use, reverse=True):
            fresh = [above for above in node.path() if above not in listed]
            listed.update(fresh)
            yield from reversed(fresh)
