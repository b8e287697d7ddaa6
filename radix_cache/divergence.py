"""Where a sequence leaves the tree, how far evicted nodes continue it, and what the tree has instead."""

from __future__ import annotations

from typing import NamedTuple

from .node import Node
from .packed import TOKEN_BYTES
from .tree import Match, RadixTree


class Divergence(NamedTuple):
    """`matched` and `remembered` are numbers of leading tokens, those in the tree and those in it or evicted
    lately; `behind` are packed tokens that follow the match in the tree."""

    matched: int
    remembered: int
    behind: bytes


def divergence(tree: RadixTree, namespace: str | None, tokens: bytes, most: int) -> Divergence:
    """`behind` has at most `most` tokens, along the path that was used last. Changes nothing."""
    root = tree.roots.get(namespace)
    if root is None:
        return Divergence(0, 0, b"")
    match = tree.find(root, tokens, len(tokens) // TOKEN_BYTES)
    matched = match.depth + match.full_pages * tree.page_size + match.tail
    remembered = max(matched, _remembered(tree, match, tokens))
    return Divergence(matched, remembered, _behind(tree, match, most * TOKEN_BYTES))


def _remembered(tree: RadixTree, match: Match, tokens: bytes) -> int:
    """How many leading tokens are in matched nodes or in the ghosts that continue the match."""
    node, position = match.node, match.depth * TOKEN_BYTES
    if match.inside is not None and match.full_pages == len(match.inside.tokens) // tree.page_bytes:
        node, position = match.inside, position + match.full_pages * tree.page_bytes
    while ghost := node.ghosts.get(tokens[position : position + tree.page_bytes]):
        size = len(ghost.tokens)
        while size and not tokens.startswith(ghost.tokens[:size], position):
            size -= tree.page_bytes
        position += size
        if size < len(ghost.tokens):
            break
        node = ghost
    return position // TOKEN_BYTES


def _behind(tree: RadixTree, match: Match, most: int) -> bytes:
    node, found = match.node, b""
    if match.inside is not None:
        node = match.inside
        found = node.tokens[match.full_pages * tree.page_bytes + match.tail * TOKEN_BYTES :]
    while len(found) < most and node.children:
        node = max(node.children.values(), key=_last_used)
        found += node.tokens
    return found[:most]


def _last_used(node: Node) -> tuple[bool, int]:
    return node.locks > 0, node.last_use
