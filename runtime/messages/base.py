"""The two kinds of structs on the wire, and types that several modules share."""

from __future__ import annotations

from typing import Literal

import msgspec

Tokens = bytes
"""token ids, packed little-endian int32"""
TOKEN_BYTES = 4
PAGE_ID_BYTES = 4
"""page ids are packed int32 too"""
FinishReason = Literal["stop", "length", "abort", "error"]


class Message(msgspec.Struct, tag=True, array_like=True):
    """Base of top-level messages. Each carries a type tag, by which the receiver decodes it."""


class Part(msgspec.Struct, array_like=True):
    """Base of structs inside a message."""


class StoreCounts(Part):
    """The present contents of the page store, and its counters since the start of the epoch."""

    host_pages: int = 0
    host_bytes: int = 0
    disk_pages: int = 0
    disk_bytes: int = 0
    saved_pages: int = 0
    lost_pages: int = 0  # pages not saved, because host memory was full of pages in use or not written yet
    host_hits: int = 0  # pages fetched from host memory
    disk_hits: int = 0  # pages fetched from disk
    remote_hits: int = 0  # pages fetched from the remote store
    prefill_hits: int = 0  # pages that prefill servers computed
    prefill_pages: int = 0  # pages sent to decode servers
    restored_pages: int = 0
