"""Opens the configured page store, and hashes everything that its pages depend on."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...byte_sizes import as_given, in_units
from ...config import ServeConfig
from ...errors import ConfigError
from ...system_memory import free_host_memory
from ..ranks import ONE_RANK, Rank
from .disk import FILE_NAME, DiskStore, ForeignFileError, least_limit
from .file_hashes import FileHashes
from .host_memory import HostMemory
from .host_pool import HostPool
from .lower_tiers import LowerTiers
from .page_store import PAGES_AT_ONCE, PageStore

if TYPE_CHECKING:
    from .remote import RemoteStore

HOST_BYTES_BEFORE_OTHERS = 1 << 30
"""bytes of host memory that buffer the lower tiers, if --host-cache is not set"""
HASHES_NAME = "weights.json"
LAYOUT = 2
"""version of the layout of a page's bytes"""
log = logging.getLogger(__name__)


def open_page_store(
    config: ServeConfig,
    page_bytes: int,
    device: torch.device,
    pieces: Sequence[int] = (1,),
    most: int = 1,
    rank: Rank = ONE_RANK.rank,
) -> PageStore | None:
    """Opens the page store; None if no tier is configured. An unreadable disk cache only causes a warning.

    On CUDA devices host memory is pinned in the background, so call it early. Raises ConfigError if there is
    less host memory, it cannot hold what a request needs at once, the disk cache cannot hold the pages that
    are written at once, or the remote cache's URL is invalid.

    page_bytes: of the group of layers that see all tokens. pieces: see `PageStore`. most: number of places
    that a request may need at once, with a page of that group and a state or all pages of windows. rank: the
    rank whose parts of pages are stored
    """
    directory, size, name = config.disk_cache, config.disk_cache_size, ""
    if rank.total > 1:
        name = f"rank-{rank.number}-of-{rank.total}"
        directory, size = directory and directory / name, size // rank.total
    tiers = LowerTiers(_open_disk(directory, size, page_bytes), _open_remote(config.remote_cache, name))
    if not config.host_cache and not tiers and not config.moves_prefill:
        return None
    store = PageStore(_open_pool(config, page_bytes, device), tiers, pieces)
    if store.pool.places < most:
        raise ConfigError(
            f"--host-cache {as_given(host_bytes(config))}: a page and the state or windows before its end "
            f"take {page_bytes * most:,} bytes in this model; raise it."
        )
    return store


def _open_pool(config: ServeConfig, page_bytes: int, device: torch.device) -> HostPool:
    given = as_given(host_bytes(config))
    size = host_bytes(config) // page_bytes * page_bytes
    if not size:
        raise ConfigError(f"--host-cache {given}: a page of this model takes {page_bytes:,} bytes; raise it.")
    free = free_host_memory()
    if device.type == "cuda" and size > free:
        raise ConfigError(f"--host-cache {given}: only {in_units(free)} of host memory are free: lower it.")
    try:
        return HostPool(HostMemory(size, pinned=device.type == "cuda"), page_bytes)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"--host-cache {given}: this much host memory can't be had ({error}): lower it."
        ) from error


def host_bytes(config: ServeConfig) -> int:
    """Bytes of host memory that the configured tiers take."""
    others = config.disk_cache or config.remote_cache or config.moves_prefill
    return config.host_cache or (HOST_BYTES_BEFORE_OTHERS if others else 0)


def page_model(
    store: PageStore, shape: object, dtype: torch.dtype, positions: bytes, weights: Collection[Path]
) -> bytes:
    """A hash (32 bytes) of everything that a page's content depends on beside its tokens and namespace.

    shape: parameters of the model and the pages. positions: see `Model.describe_positions`.
    weights: the files of weights, if pages may leave the process
    """
    state = hashlib.blake2b(f"{LAYOUT} {shape} {dtype}".encode() + positions, digest_size=32)
    if weights:
        disk = store.tiers.disk
        for digest in FileHashes(disk.directory / HASHES_NAME if disk is not None else None).hash_all(
            weights
        ):
            state.update(digest)
    return state.digest()


def _open_remote(url: str | None, part: str) -> RemoteStore | None:
    if url is None:
        return None
    from .remote import RemoteStore  # needs the package redis; a server without it does not start

    try:
        return RemoteStore(url, part)
    except ValueError as error:
        raise ConfigError(f"--remote-cache: {error}") from error


def _open_disk(directory: Path | None, limit: int, page_bytes: int) -> DiskStore | None:
    if directory is None:
        return None
    least = least_limit(PAGES_AT_ONCE * page_bytes)
    if limit < least:
        raise ConfigError(
            f"--disk-cache {directory},{as_given(limit)}: {PAGES_AT_ONCE} pages of this model, which are "
            f"written together, take {least:,} bytes; raise it."
        )
    try:
        disk = DiskStore(directory, limit)
        disk.shrink()
        return disk
    except OSError as error:
        problem = f"it can't be made or written ({error.strerror}): choose another directory"
    except sqlite3.OperationalError as error:
        problem = f"{directory / FILE_NAME} can't be opened ({error}): start again when it can"
    except (sqlite3.Error, ForeignFileError) as error:
        problem = (
            f"{directory / FILE_NAME} is no page store that can be read ({error}): "
            "move it away or choose another directory"
        )
    log.warning("--disk-cache %s is not used: %s", directory, problem)
    return None
