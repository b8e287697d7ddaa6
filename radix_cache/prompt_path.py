"""The nodes that a sequence goes through, and how many branches of the tree share each of its places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from .lock import PrefixMatch
from .node import Node
from .packed import TOKEN_BYTES
from .tree import RadixTree

MAX_CHILDREN = 20_000  # children of one node that are compared with the sequence
MAX_COUNTED = 4_096  # nodes that are visited to count branches


class PathNode(NamedTuple):
    id: int | None  # id of the node's first page; None: the node is evicted
    tokens: int


def list_ghosts(tree: RadixTree, match: PrefixMatch, tokens: bytes) -> tuple[list[Node], int]:
    """The ghosts that continue the match, and the number of leading tokens in the tree and in them."""
    node, position = match.node, match.depth * TOKEN_BYTES
    if match.inside is not None and match.inside_pages == len(match.inside.tokens) // tree.page_bytes:
        node, position = match.inside, match.full_pages * tree.page_bytes
    ghosts: list[Node] = []
    while ghost := node.ghosts.get(tokens[position : position + tree.page_bytes]):
        ghosts.append(ghost)
        size = len(ghost.tokens)
        while size and not tokens.startswith(ghost.tokens[:size], position):
            size -= tree.page_bytes
        position += size
        if size < len(ghost.tokens):
            break
        node = ghost
    return ghosts, position // TOKEN_BYTES


def list_path(tree: RadixTree, match: PrefixMatch, tokens: bytes) -> list[PathNode]:
    """The nodes with at least a part of the sequence from the root down, evicted ones last."""
    nodes = _list_matched(match) + list_ghosts(tree, match, tokens)[0]
    return [PathNode(node.first_page, len(node.tokens) // TOKEN_BYTES) for node in nodes]


def count_other_branches(
    tree: RadixTree, match: PrefixMatch, tokens: bytes, ends: Sequence[int]
) -> list[int]:
    """For each end, a number of tokens, counts the other branches that have the sequence's tokens up to it.
    `ends` are ascending.

    A branch is a leaf. The leaf in whose last page the match ends is the sequence's own. The counts visit
    `MAX_COUNTED` nodes at most, the deepest places first, so in larger trees those near the root are lower
    bounds.
    """
    path = [*match.node.path()][::-1]
    count, others = _BranchCounter(), [0] * len(ends)
    own = _is_own_leaf(tree, match)
    depth = match.depth * TOKEN_BYTES  # bytes from the root to the end of `path[-1]`
    for place in range(len(ends) - 1, -1, -1):
        end = ends[place] * TOKEN_BYTES
        if end > match.paged * TOKEN_BYTES:
            continue
        while len(path) > 1 and depth > end:
            depth -= len(path.pop().tokens)
        branches = sum(map(count, _list_through(path[-1], tokens[depth:end])))
        others[place] = max(0, branches - own)
    return others


def _list_matched(match: PrefixMatch) -> list[Node]:
    nodes = [node for node in match.node.path() if node.parent is not None][::-1]
    return [*nodes, match.inside] if match.inside is not None else nodes


def _is_own_leaf(tree: RadixTree, match: PrefixMatch) -> bool:
    leaf = match.inside or match.node
    end = match.depth * TOKEN_BYTES + (len(leaf.tokens) if match.inside is not None else 0)
    return not leaf.children and end - match.paged * TOKEN_BYTES < tree.page_bytes


def _list_through(node: Node, rest: bytes) -> Iterator[Node]:
    """The nodes that end the branches through the place `rest` below the end of `node`."""
    if not rest:
        yield node
        return
    for child in islice(node.children.values(), MAX_CHILDREN):
        if child.tokens.startswith(rest):
            yield child


class _BranchCounter:
    """Counts the leaves below nodes. A node that was counted is not visited again."""

    def __init__(self) -> None:
        self._counted: dict[Node, int] = {}
        self._left = MAX_COUNTED

    def __call__(self, node: Node) -> int:
        found, stack = 0, [node]
        while stack and self._left > 0:
            each = stack.pop()
            if each in self._counted:
                found += self._counted[each]
                continue
            self._left -= 1
            found += not each.children
            stack += islice(each.children.values(), self._left + 1)
        self._counted[node] = found
        return found
