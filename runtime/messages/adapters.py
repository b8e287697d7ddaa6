"""Adapters: loading them while the server runs, and who knows which are loaded."""

from __future__ import annotations

from .base import Message, Part

ADAPTER_MARK = "@"
"""What stands in a namespace's name before the digest of an adapter."""


class Adapter(Part):
    """A LoRA adapter under the name that requests give as their model."""

    name: str
    path: str  # its directory
    digest: str  # hash of its weights and its config


class WatchAdapters(Message):
    """The tokenizer process wants an `AdapterList` now and after each change.

    known: what it knows from an earlier replica, whose successor loads these and no others. None: nothing
    """

    client: int
    known: list[Adapter] | None


class LoadAdapter(Message):
    client: int
    query: int
    name: str
    path: str
    replaces: bool  # whether the name may belong to an adapter already, which then gives it up


class UnloadAdapter(Message):
    """New requests can't use the adapter any more. Those that have arrived still do."""

    client: int
    query: int
    name: str


class AdapterList(Message):
    """The adapters that requests may use."""

    adapters: list[Adapter]


class AdapterChanged(Message):
    """The adapter was loaded or unloaded."""

    query: int
    adapter: Adapter


class ReadAdapter(Message):
    """Read the adapter in directory `path` into a free place. The log calls it by its name."""

    place: int
    path: str
    name: str


class DropAdapter(Message):
    place: int


class AdapterRead(Message):
    place: int
    digest: str
    error: str = ""  # why it can't be used; empty: it can
