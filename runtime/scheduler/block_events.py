"""Describes the changes of the prefix cache as vLLM's KV events, in the form that routers decode.

A batch is an array and each event a map, as in vLLM from June 2026 on. The fields have vLLM's names.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from hashlib import blake2b

import msgspec

from ...radix_cache import NO_PAGE, PageKeys, PagesRemoved, PagesStored, TreeChange, split_keys
from ..messages import ADAPTER_MARK, TOKEN_BYTES

MEDIUM = "GPU"
"""what vLLM calls the memory of the KV cache; on a CPU too, so that routers count it as the fastest tier"""


class Event(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """A change. Its map has the class's name as `type`."""


class BlockStored(Event):
    """Blocks that follow each other, and the block before them; None: they begin a sequence."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    """always None: routers use the name"""
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    """for each block what else its hash depends on: the namespace, if it is a sequence's first block"""


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Event):
    """All earlier events are void."""


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[Event]
    data_parallel_rank: int


class BlockEvents:
    """Knows the key of each page in the tree.

    A key depends on the model's name, the namespace and all tokens up to the page's end, so a block has the
    same hash in all servers and after a restart: routers keep one table of all servers' hashes.
    """

    def __init__(
        self, model: str, num_pages: int, page_size: int, name_adapter: Callable[[str], str | None]
    ) -> None:
        """name_adapter: returns the name of the adapter with this digest, if it is loaded"""
        self._page_size = page_size
        self._page_keys = PageKeys(blake2b(model.encode()).digest(), page_size * TOKEN_BYTES)
        self._keys = [b""] * num_pages
        self._name_adapter = name_adapter
        self._adapters: dict[str, str] = {}  # names by digest; pages outlive their adapter

    def describe(self, changes: Iterable[TreeChange]) -> list[Event]:
        """The events of the changes since the last call."""
        return [
            BlockRemoved(self._list_hashes(change.pages), MEDIUM)
            if isinstance(change, PagesRemoved)
            else self._store(change)
            for change in changes
        ]

    def describe_all(self, pages: Iterable[PagesStored]) -> list[Event]:
        """The events by which a router learns the whole tree, whatever it knew.

        pages: those in the tree after the changes that were described
        """
        return [AllBlocksCleared(), *map(self._describe_stored, pages)]

    def _store(self, change: PagesStored) -> BlockStored:
        before = (
            self._page_keys.start(change.namespace) if change.after == NO_PAGE else self._keys[change.after]
        )
        keys = split_keys(self._page_keys.follow(before, change.tokens))
        for page, key in zip(change.pages, keys, strict=True):
            self._keys[page] = key
        return self._describe_stored(change)

    def _describe_stored(self, change: PagesStored) -> BlockStored:
        tenant, _, adapter = change.namespace.partition(ADAPTER_MARK)
        is_first = change.after == NO_PAGE
        return BlockStored(
            self._list_hashes(change.pages),
            None if is_first else self._list_hashes([change.after])[0],
            array("i", change.tokens).tolist(),
            self._page_size,
            None,
            MEDIUM,
            self._find_name(adapter) if adapter else None,
            [(tenant,), *[None] * (len(change.pages) - 1)] if tenant and is_first else None,
        )

    def _list_hashes(self, pages: Iterable[int]) -> list[int]:
        """The blocks' hashes: 62 bits of each key above 2^62, so that none is 0, which routers read as no
        block, nor encoded in fewer than 8 bytes, which some can't read, nor negative as a signed number."""
        keys, read = self._keys, int.from_bytes
        return [read(keys[page][:8], "big") >> 2 | 1 << 62 for page in pages]

    def _find_name(self, digest: str) -> str:
        if digest not in self._adapters and (name := self._name_adapter(digest)) is not None:
            self._adapters[digest] = name
        return self._adapters.get(digest, digest)
