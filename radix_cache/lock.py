"""A request's lock on the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .node import Node


class Copy(NamedTuple):
    """A page to copy on the device before its request's first step."""

    source: int  # page id
    tokens: int  # of them so many match; all of the page is copied


@dataclass(slots=True, eq=False)
class Lock:
    """The pages and nodes that a request uses from `acquire` to `release`.

    Callers read the first three fields; the others belong to the cache.
    """

    matched: int  # tokens whose KV exists; the first position to compute
    pages: list[int]  # the first pages of the request's page table
    copy: Copy | None  # the partial page that becomes page `len(pages)` of the table
    node: Node | None = field(repr=False)  # the deepest node it locks; None once released
    depth: int = field(repr=False)  # tokens from the root to the end of `node`
    source: Node | None = field(repr=False)  # source of `copy`, locked until the copy is made
    used: bool = field(default=False, repr=False)  # counted as a use of the match
    # the request's pages whose tokens the tree has from another request
    duplicates: list[int] = field(default_factory=list, repr=False)
