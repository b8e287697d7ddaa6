"""Downloads one file of the hub into its cache, from the byte at which an earlier download stopped."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

from ...runtime.errors import ConfigError

HEAD_BYTES = 32 << 20
"""more than the metadata of a GGUF file takes, with a vocabulary of 262,144 tokens"""


class HubFile(NamedTuple):
    """A file of a repository."""

    name: str
    bytes: int
    git_id: str
    sha256: str | None
    """the digest that the hub states; None for a small file, which git stores itself"""

    @property
    def blob(self) -> str:
        """The name of the file's content in the hub's cache."""
        return self.sha256 or self.git_id

    @property
    def is_resumed(self) -> bool:
        """Whether we download it. The hub's library starts a file over after the command was ended, but only
        the library can download the largest files."""
        from huggingface_hub import constants

        return self.sha256 is not None and self.bytes <= constants.MAX_HTTP_DOWNLOAD_SIZE


class _SharedBar(NamedTuple):
    """A bar as the hub's library wants it, which counts into another one."""

    update: Callable[[int], object]


def partial_bytes(place: Path, file: HubFile) -> int:
    """Bytes of the file that an earlier download has left. More bytes than the file has are of no use."""
    path = _partial(place, file)
    size = path.stat().st_size if file.is_resumed and path.exists() else 0
    return size if size <= file.bytes else 0


def download_file(place: Path, id: str, commit: str, file: HubFile, count: Callable[[int], object]) -> None:
    """Downloads what is missing of a file, and checks its digest. Raises ConfigError for another digest.

    place: the repository's directory in the cache
    count: gets the number of each piece's bytes
    """
    target = place / "blobs" / file.blob
    with _open_alone(_partial(place, file)) as partial:
        if target.exists():  # another process has downloaded it meanwhile
            _partial(place, file).unlink()
            return
        if partial.tell() > file.bytes:
            partial.seek(0)
            partial.truncate()
        _get(id, commit, file, partial, file.bytes, count)
        partial.seek(0)
        found = hashlib.file_digest(partial, "sha256").hexdigest()
        if found != file.sha256:
            _partial(place, file).unlink()
            raise ConfigError(
                f"MODEL {id}: {file.name} is not the file that the hub lists: its SHA-256 is {found}, not "
                f"{file.sha256}. It was deleted. Run the command again; if this repeats, the connection or "
                "HF_ENDPOINT is not to be trusted."
            )
        _partial(place, file).rename(target)


def download_head(id: str, commit: str, file: HubFile, target: Path) -> None:
    """Downloads the first bytes of a file. The rest of `target` is a hole, so that it has the file's size."""
    size = min(HEAD_BYTES, file.bytes)
    with target.open("wb") as head:
        _get(id, commit, file, head, size, lambda count: None, {"Range": f"bytes=0-{size - 1}"})
        head.truncate(file.bytes)


def _get(
    id: str,
    commit: str,
    file: HubFile,
    target: BinaryIO,
    size: int,
    count: Callable[[int], object],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Downloads bytes of a file from the position of `target` to `size`."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    http_get(
        hf_hub_url(id, file.name, revision=commit),
        target,
        resume_size=target.tell(),
        headers={**build_hf_headers(), "Accept-Encoding": "identity", **headers},
        expected_size=size,
        _tqdm_bar=_SharedBar(count),
    )


@contextmanager
def download_bar(model: str, total: int, done: int, *, quiet: bool) -> Iterator[Callable[[int], object]]:
    """Yields a function that counts bytes of a model on one bar. A file that is no terminal gets no bar."""
    from huggingface_hub.utils.tqdm import tqdm  # is silent if HF_HUB_DISABLE_PROGRESS_BARS is set

    with tqdm(  # type: ignore[no-untyped-call]
        total=total,
        initial=done,
        desc=model,
        unit="iB",
        unit_scale=True,
        unit_divisor=1024,
        dynamic_ncols=True,
        disable=True if quiet else None,
    ) as bar:
        yield bar.update


def _partial(place: Path, file: HubFile) -> Path:
    return place / "blobs" / f"{file.blob}.incomplete"


@contextmanager
def _open_alone(path: Path) -> Iterator[BufferedRandom]:
    """Opens the file at a path to append to it, once no other process has it open in this way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):  # the process before may have renamed or deleted it
                file.seek(0, os.SEEK_END)
                yield file
                return


def _is_at(path: Path, file: BufferedRandom) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
