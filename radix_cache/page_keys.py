"""The keys under which the slower tiers store pages and states: hashes of all tokens up to their ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from .node import Checkpoint, Node
from .packed import KEY_BYTES, split_keys
from .path_windows import PathWindows
from .tree import RadixTree
from .windows import WindowGroup, WindowPage

NO_KEY = bytes(KEY_BYTES)


class KeyedPages(NamedTuple):
    """Full pages of a group and their concatenated keys."""

    namespace: str
    keys: bytes
    pages: list[int]
    group: int = 0  # 0: the layers that see all tokens; see `WindowGroup.number`


class KeyedState(NamedTuple):
    """The place of a checkpoint at the end of a page, and the key of its state."""

    namespace: str
    key: bytes
    place: int


class NeededKeys(NamedTuple):
    """The keys of the windowed pages, or of the states, that a request needs beside full pages to start at
    the end of a page."""

    keys: bytes
    """for consecutive pages up to the sequence's last full one; NO_KEY for one that is in the tree"""
    needed: list[int]
    """for each end where the request may start, of how many pages before it; the last end last"""


class Missing(NamedTuple):
    """The keys of a sequence's full pages that are not in the tree, from page `first` on.

    With recurrent layers or windowed groups, a request may start at the end of each page after the first
    `start` tokens, which the tree can serve: `others` has what it needs there, of the states or of each
    group.
    """

    first: int
    keys: bytes
    start: int = 0
    others: Sequence[NeededKeys] = ()


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


def _name_window(page_key: bytes, group: int) -> bytes:
    """The key of a windowed group's page with the tokens of the page with this key."""
    return blake2b(page_key, digest_size=KEY_BYTES, person=b"window%d" % group).digest()


class TreeKeys:
    """The keys of the tree's pages and checkpoints, and of what the tree has evicted."""

    def __init__(self, model: bytes, tree: RadixTree, groups: Sequence[WindowGroup] = ()) -> None:
        """model: see `PageKeys`. groups: the windowed groups"""
        self._keys = PageKeys(model, tree.page_bytes)
        self._tree = tree
        self._groups = groups
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
        for page in chain.from_iterable(leaf.windows):
            if page is not None:
                self.note_evicted_window(page)

    def note_evicted_window(self, page: WindowPage) -> None:
        """Call it before the page loses its place. A page that no later match needs is not kept."""
        if page.is_worth_storing and page.name is not None:
            self._evicted.append(KeyedPages(*page.name, [page.id], page.group.number))

    def note_evicted_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Call it before the checkpoint leaves its node."""
        state = None if checkpoint.is_superseded else self._key_checkpoint(checkpoint)
        if state is not None:
            self._evicted_states.append(state)

    def find_missing(self, namespace: str, tokens: bytes, start: int = 0) -> Missing:
        """The full pages of `tokens` that are not in the tree. Changes nothing.

        start: with recurrent layers or windowed groups, how many tokens the tree can serve
        """
        match = self._tree.find(namespace, tokens)
        inside = match.inside if match.inside_pages else None
        known = b"" if inside is None else self._keys.compute(inside)[: match.inside_pages * KEY_BYTES]
        before = known[-KEY_BYTES:] or self._keys.find_last(match.node)
        keys = self._keys.follow(before, tokens[match.full_pages * self._tree.page_bytes :])
        if self._tree.checkpoints is None and not self._groups:
            return Missing(match.full_pages, keys)
        above = b"".join(reversed([self._keys.compute(node) for node in match.node.path()]))
        all_keys, served = above + known + keys, start // self._tree.page_size
        names = split_keys(all_keys)
        ends = range(served + 1, len(names) + 1)
        if not ends:
            return Missing(match.full_pages, keys, start)
        if self._tree.checkpoints is not None:
            states = b"".join(map(_name_state, names[served:]))
            return Missing(match.full_pages, keys, start, [NeededKeys(states, [1] * len(ends))])
        windows = PathWindows(match, self._groups)
        others = [_find_needed(group, windows, names, ends) for group in self._groups]
        return Missing(match.full_pages, keys, start, others)

    def compute(self, namespace: str, tokens: bytes, after: bytes = b"") -> bytes:
        """Keys of all full pages of `tokens`, cached or not, concatenated.

        after: key of the preceding page if `tokens` does not start at the beginning
        """
        return self._keys.follow(after or self._keys.start(namespace), tokens)

    def name_others(self, keys: bytes) -> list[bytes]:
        """For the keys of full pages those of the states after these pages, or those of the same tokens'
        pages in each windowed group; concatenated. Empty if the model has neither."""
        names = split_keys(keys)
        if self._tree.checkpoints is not None:
            return [b"".join(map(_name_state, names))]
        return [b"".join(_name_window(name, group.number) for name in names) for group in self._groups]

    def name_windows(self, node: Node, end: int, first: int) -> None:
        """Names the windowed pages from index `first` on of the path to `node`, which has `end` pages."""
        for above in node.path():
            if end <= first or above.namespace is None:
                return
            end -= len(above.pages)
            names = split_keys(self._keys.compute(above))
            for window in above.windows:
                for index in range(max(0, first - end), len(names)):
                    page = window[index]
                    if page is not None and page.name is None:
                        page.name = above.namespace, _name_window(names[index], page.group.number)

    def list_pages(self) -> list[KeyedPages]:
        """All full pages in the tree, most recently used first, parents before their children; then each
        node's windowed pages that a later match may need."""
        listed = list[KeyedPages]()
        for node in self._list_nodes():
            if (pages := self._key_node(node)) is not None:
                listed.append(pages)
            listed += [
                KeyedPages(*page.name, [page.id], page.group.number)
                for page in chain.from_iterable(node.windows)
                if page is not None and page.is_worth_storing and page.name is not None
            ]
        return listed

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


def _find_needed(group: WindowGroup, windows: PathWindows, names: Sequence[bytes], ends: range) -> NeededKeys:
    """What a request needs of a windowed group at each of `ends`. names: the keys of all full pages"""
    firsts = [group.find_first(end * group.page_size) for end in ends]
    keys = [
        NO_KEY if windows.has(group, index) else _name_window(names[index], group.number)
        for index in range(firsts[0], len(names))
    ]
    return NeededKeys(b"".join(keys), [end - first for end, first in zip(ends, firsts, strict=True)])
