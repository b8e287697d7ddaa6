"""What one request holds in the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .node import Node


class Copy(NamedTuple):
    """A page to copy on the device before its request's first step."""

    source: int  # page id
    tokens: int  # leading slots of the page to copy


@dataclass(slots=True, eq=False)
class Lease:
    """A request's hold on the tree, from `acquire` to `release`, or that of a pin.

    A caller reads the first three; the rest is the cache's.
    """

    matched: int  # tokens that need no computing; the request's own begin at this position
    pages: list[int]  # the first pages of the request's page table
    copy: Copy | None  # into the page that follows `pages`, from which on the request allocates
    node: Node | None = field(repr=False)  # the deepest node it locks; None once released
    depth: int = field(repr=False)  # tokens down to the end of `node`
    source: Node | None = field(repr=False)  # locked until the copy has been made
    used: bool = field(default=False, repr=False)  # something was planned; else it was only tried
    duplicates: list[int] = field(
        default_factory=list, repr=False
    )  # its pages that the tree has from another
