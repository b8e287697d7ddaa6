"""A match in the prefix cache, and a request's lock on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .node import Node


class PrefixMatch(NamedTuple):
    """Where the longest match of a sequence ends. It holds until the tree changes.

    Callers of the cache read the first two fields; the others belong to it.
    """

    length: int  # leading tokens in the tree
    full_pages: int  # full pages of the leading tokens
    node: Node  # matched to its end; a root that is not in the tree if the namespace has none
    depth: int  # tokens from the root to the end of `node`
    inside: Node | None  # the child of `node` that the match enters
    inside_pages: int  # whole pages of `inside` that match
    tail: int  # tokens that match in the page after those, which need not be a leaf's tail


class Copy(NamedTuple):
    """A page to copy on the device before its request's first step."""

    source: int  # page id
    tokens: int  # the page's first tokens that match; the copy has the whole page


@dataclass(slots=True, eq=False)
class Lock:
    """The pages and nodes that a request uses, from `acquire` to `release`.

    Callers read the first four fields; the others belong to the cache.
    """

    page_size: int  # tokens
    matched: int  # tokens whose KV exists; the first position to compute
    pages: list[int]  # the request's page table, by position // page size; it begins with the matched pages
    copy: Copy | None  # the partial page that `copy_target` must become a copy of
    node: Node | None = field(repr=False)  # the deepest node it locks; None once released
    depth: int = field(repr=False)  # tokens from the root to the end of `node`
    source: Node | None = field(repr=False)  # source of `copy`, locked until the copy is made
    used: bool = field(default=False, repr=False)  # counted as a use of the match
    # the request's pages whose tokens the tree has from another request
    duplicates: list[int] = field(default_factory=list, repr=False)

    @property
    def capacity(self) -> int:
        """Tokens that the page table has pages for."""
        return len(self.pages) * self.page_size

    @property
    def own_pages(self) -> list[int]:
        """The pages that the request holds and the tree does not."""
        return self.duplicates + self.pages[self.depth // self.page_size :]

    @property
    def copy_target(self) -> int:
        """The request's own page that comes after the matched full pages."""
        return self.pages[self.matched // self.page_size]

    def pages_at(self, start: int, end: int) -> list[int]:
        """The pages of the positions [start, end)."""
        return self.pages[start // self.page_size : -(-end // self.page_size)]
