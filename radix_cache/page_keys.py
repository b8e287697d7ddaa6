"""Keys of pages by content; the slower tiers find pages by them."""

from __future__ import annotations

from hashlib import blake2b

from .node import Node
from .packed import KEY_BYTES


class PageKeys:
    """The key of a full page: a hash of the model, the namespace and all tokens up to the page's end.

    Each key hashes the key before it and a page's tokens, so equal keys mean equal prefixes.
    `model`, at most 64 bytes, identifies everything else that a page's content depends on.
    """

    def __init__(self, model: bytes, page_bytes: int) -> None:
        self._model = model
        self._page_bytes = page_bytes

    def start(self, namespace: str) -> bytes:
        """The start of a namespace's hash chain."""
        return blake2b(namespace.encode(), digest_size=KEY_BYTES, key=self._model).digest()

    def following(self, key: bytes, tokens: bytes) -> bytes:
        """The keys of the full pages of `tokens`, which follow the page with `key`; concatenated."""
        keys, size = [], self._page_bytes
        for at in range(0, len(tokens) - size + 1, size):
            key = blake2b(key + tokens[at : at + size], digest_size=KEY_BYTES).digest()
            keys.append(key)
        return b"".join(keys)

    def of(self, node: Node) -> bytes:
        """The keys of a node's full pages; computed once."""
        unnamed = []
        for above in node.path():
            if len(above.keys) == self._full_pages(above) * KEY_BYTES and above.keys:
                break
            unnamed.append(above)
        for each in reversed(unnamed):
            self._complete(each)
        return node.keys

    def last(self, node: Node) -> bytes:
        """The key at the end of a node of full pages, or of a root."""
        if node.parent is None:
            assert node.namespace is not None, "nodes without a namespace have no keys"
            return self.start(node.namespace)
        return self.of(node)[-KEY_BYTES:]

    def _complete(self, node: Node) -> None:
        if node.parent is None:
            return
        before = node.keys[-KEY_BYTES:] or node.parent.keys[-KEY_BYTES:] or self.last(node.parent)
        known = len(node.keys) // KEY_BYTES * self._page_bytes
        node.keys += self.following(before, node.tokens[known:])

    def _full_pages(self, node: Node) -> int:
        return len(node.tokens) // self._page_bytes
