"""A match in the prefix cache, and a request's lock on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .node import Checkpoint, Node
from .packed import TOKEN_BYTES
from .windows import WindowTable


class PrefixMatch(NamedTuple):
    """Where the longest match of a sequence ends. It holds until the tree changes.

    Callers read the first two fields and `paged`; the others belong to the cache.
    """

    length: int  # leading tokens of the sequence that are in the tree
    full_pages: int  # number of full pages among the matched tokens
    node: Node  # deepest node that matches to its end; a root that is not in the tree if the namespace is not
    depth: int  # tokens from the root to the end of `node`
    inside: Node | None  # the child of `node` inside which the match ends; None if it ends at `node`
    inside_pages: int  # whole pages of `inside` that match
    tail: int  # tokens that match in the page after the full ones, which may be a partial page or not
    paged: int  # leading tokens in the tree; more than `length` if some of their windowed pages or a
    # checkpoint are not there
    checkpoint: Checkpoint | None = None  # the recurrent layers' state after `length` tokens

    def cut(self, length: int, page_size: int) -> PrefixMatch:
        """The match of the first `length` of its tokens, without a checkpoint."""
        if length == self.length:
            return self
        node, depth, inside = self.node, self.depth, self.inside
        while depth > length:
            assert node.parent is not None
            inside, node = node, node.parent
            depth -= len(inside.tokens) // TOKEN_BYTES
        pages, tail = divmod(length - depth, page_size)
        inside = inside if length > depth else None
        return PrefixMatch(length, length // page_size, node, depth, inside, pages, tail, self.paged)


class Copy(NamedTuple):
    """A page to copy on the device before its request's first step."""

    source: int  # id of the page to copy from; `WindowTable.source` has those of windowed groups
    tokens: int  # number of leading tokens in the page that match, although the whole page is copied


@dataclass(slots=True, eq=False)
class Lock:
    """The pages and nodes that a request uses, from `acquire` to `release`.

    Callers read the first six fields; the others belong to the cache.
    """

    page_size: int  # tokens per page
    matched: int  # leading tokens whose KV exists: the position of the first token to compute
    pages: list[int]  # the request's page table, by position // page size; it begins with the matched pages
    copy: Copy | None  # the partial page that `copy_target` must become a copy of
    state: int | None  # the place of its live state; None: the model has no recurrent layers
    # Checkpoints that the request may load, by position: from where it started, and those that it made.
    checkpoints: list[tuple[int, Checkpoint]]
    node: Node | None = field(repr=False)  # the deepest node that the request locks; None once released
    depth: int = field(repr=False)  # tokens from the root to the end of `node`
    source: Node | None = field(repr=False)  # owner of page `copy.source`, locked until the copy is made
    used: bool = field(default=False, repr=False)  # whether it was counted as a use of the matched nodes
    # the request's pages whose tokens the tree has from another request
    duplicates: list[int] = field(default_factory=list, repr=False)
    windows: list[WindowTable] = field(default_factory=list, repr=False)  # its pages of windowed groups

    # checkpoints that it used before, by position; some have lost their places
    passed: list[tuple[int, Checkpoint]] = field(default_factory=list, repr=False)

    @property
    def capacity(self) -> int:
        """Number of tokens for which the page table has pages."""
        return len(self.pages) * self.page_size

    @property
    def own_pages(self) -> list[int]:
        """The pages that the request holds and the tree does not."""
        return self.duplicates + self.pages[self.depth // self.page_size :]

    @property
    def copy_target(self) -> int:
        """The request's own page after the matched full pages, into which `copy` is made."""
        return self.pages[self.matched // self.page_size]

    def list_copies(self) -> list[tuple[int, int]]:
        """The source and the target of the copy in each group; empty if there is no copy to make."""
        if self.copy is None:
            return []
        index = self.matched // self.page_size
        copies = [(self.copy.source, self.pages[index])]
        for table in self.windows:
            target = table.pages[index]
            assert table.source is not None and target is not None
            copies.append((table.source.id, target.id))
        return copies

    def newest_checkpoint(self, position: int) -> tuple[int, Checkpoint | None]:
        """The last checkpoint up to `position`, and its position; 0 and None if there is none."""
        earlier = (each for each in self.checkpoints if each[0] <= position)
        return max(earlier, key=lambda each: each[0], default=(0, None))

    def list_checkpoints(self) -> list[tuple[int, Checkpoint]]:
        """All its checkpoints that have a place, also those that it may no longer load, in order."""
        in_tree = [each for each in self.passed if each[1].node is not None]
        return sorted([*in_tree, *self.checkpoints], key=lambda each: each[0])

    @property
    def lacks_windows(self) -> bool:
        """Whether a step must restore windowed pages before the request's first row."""
        return any(table.lacking for table in self.windows)

    def pages_at(self, start: int, end: int) -> list[int]:
        """The pages of the positions [start, end)."""
        return self.pages[start // self.page_size : -(-end // self.page_size)]

    def list_written(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The group and page of all pages of the positions [start, end)."""
        yield from ((0, page) for page in self.pages_at(start, end))
        for number, table in enumerate(self.windows, 1):
            some = table.pages[start // self.page_size : -(-end // self.page_size)]
            yield from ((number, page.id) for page in some if page is not None)
