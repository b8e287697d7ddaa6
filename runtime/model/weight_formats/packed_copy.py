"""A file of a model's packed tensors, which later starts map into memory instead of packing the weights.

It begins with MAGIC, the size of the header and the header's SHA-256. The header has the place of each
tensor. Servers of the same model share the file's pages, which the system frees when it needs memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import mmap
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
from numba.core.registry import cpu_target

from ....kernels.common.processor import nodes
from ....kernels.common.teams import copy_by_node
from ...byte_sizes import in_units
from ...cache_directory import is_named_by_content, packed_directory
from ...checkpoint_json import config_text
from ...compiled_code import processor, version
from .checkpoint import Checkpoint
from .packing import Packing

MAGIC = b"arbora packed 1\n"
CODE = (Path(__file__).parents[3] / "kernels", Path(__file__).parents[1])
"""the folders whose sources decide which tensors are packed, and how"""
_START = struct.Struct("<16sQ32s")
ALIGNMENT = 64
"""bytes; PyTorch aligns its memory so too"""
MIN_BYTES = 16 << 20
"""Smaller models are packed in a fraction of a second."""
SHARE_OF_COPY, SHARE_OF_COPIES = 10, 5
"""A copy takes at most a tenth of the free disk space, and all copies together take at most a fifth."""
MAX_COPIES = 8
"""the least recently used ones are removed first"""
SUFFIX, UNFINISHED = ".packed", ".part-"
THREAD = "packed copy"
NICE = 10
"""lowers the priority of the thread that writes: it gets a tenth of a core that others want too"""
log = logging.getLogger(__name__)


class _Place(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """offset in the file in bytes"""

    def read(self, data: mmap.mmap) -> torch.Tensor:
        dtype, count = getattr(torch, self.dtype), math.prod(self.shape)
        flat = torch.frombuffer(memoryview(data), dtype=dtype, count=count, offset=self.begin)
        return flat.view(self.shape)


class _Header(msgspec.Struct, frozen=True):
    key: str
    bytes: int
    """size of the file"""
    packings: dict[str, Packing | None]
    tensors: dict[str, list[_Place]]


class _Mapped:
    """The copy of an earlier start."""

    def __init__(self, file: Path, key: str) -> None:
        """Raises OSError or ValueError for a file that is missing or not whole."""
        with file.open("rb") as opened:
            self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        if len(self._data) < _START.size:
            raise ValueError(f"it has only {len(self._data)} bytes")
        magic, size, digest = _START.unpack_from(self._data)
        text = self._data[_START.size : _START.size + size]
        if magic != MAGIC or hashlib.sha256(text).digest() != digest:
            raise ValueError("its header is damaged")
        self.header = msgspec.json.decode(text, type=_Header)
        if self.header.key != key:
            raise ValueError("it is of another model")
        if self.header.bytes != len(self._data):
            raise ValueError(f"it should have {self.header.bytes:,} bytes, but has {len(self._data):,}")
        with suppress(AttributeError, OSError):
            self._data.madvise(mmap.MADV_WILLNEED)  # reads ahead, faster than one page fault after another

    def read(self, name: str) -> list[torch.Tensor]:
        return [place.read(self._data) for place in self.header.tensors[name]]


class PackedCopy:
    """The tensors of a model's products, by names: mapped from the copy of an earlier start, or made now and
    noted until they are written."""

    def __init__(self, file: Path | None = None, key: str = "") -> None:
        """file: None: there is no copy. key: everything that decides the tensors, as text"""
        self._file, self._key = file, key
        self._mapped: _Mapped | None = None
        self._packings: dict[str, Packing | None] = {}
        self._made: dict[str, Sequence[torch.Tensor]] = {}
        if file is None:
            return
        try:
            self._mapped = _Mapped(file, key)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("%s: the packed copy is not used, and will be written again: %s", file, error)
            return
        mapped = in_units(self._mapped.header.bytes)
        log.info("the weights were packed before: %s are mapped from %s", mapped, file)
        with suppress(OSError):
            os.utime(file)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of weights in the file's pages, which the system counts as free. With several nodes there are
        none, because `take` copies the weights."""
        return 0 if self._mapped is None or len(nodes()) > 1 else self._mapped.header.bytes

    def take(self, name: str, make: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
        """The tensors of a name, which nobody may write to. `make` makes them if they aren't mapped."""
        if self._mapped is not None and name in self._mapped.header.tensors:
            return [copy_by_node(tensor) for tensor in self._mapped.read(name)]
        made = make()
        if self._file is not None and self._mapped is None:
            self._made[name] = made
        return made

    def choose(self, name: str, make: Callable[[], Packing | None]) -> Packing | None:
        """The packing of a projection."""
        if self._mapped is not None and name in self._mapped.header.packings:
            return self._mapped.header.packings[name]
        if name not in self._packings:
            self._packings[name] = make()
        return self._packings[name]

    def start_writing(self) -> threading.Thread | None:
        """Starts a thread that writes what was made. Returns None if there is nothing to write."""
        if self._file is None or self._mapped is not None:
            return None
        thread = threading.Thread(target=self._write, args=(self._file,), name=THREAD, daemon=True)
        thread.start()
        return thread

    def _write(self, file: Path) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        head, places = self._describe()
        size = places[-1][0].begin + places[-1][1].nbytes if places else 0
        try:
            if size >= MIN_BYTES and _make_room(file, size):
                _write_file(file, head, places)
                log.info("the next start will map the packed weights, %s in %s", in_units(size), file)
        except OSError as error:
            log.warning("the packed weights are not kept for the next start: %s", error)
        self._made.clear()  # the model has those that it needs

    def _describe(self) -> tuple[bytes, list[tuple[_Place, torch.Tensor]]]:
        """The file's beginning, and the tensors in order with their places."""
        tensors = [(name, tensor) for name, made in self._made.items() for tensor in made]
        start, head = 0, b""
        while not head or len(head) > start:  # the header's size depends on where the tensors begin
            start = _align(max(len(head), mmap.PAGESIZE) + len(head) // 8)
            head, places = self._encode(tensors, start)
        return head, places

    def _encode(
        self, tensors: Sequence[tuple[str, torch.Tensor]], start: int
    ) -> tuple[bytes, list[tuple[_Place, torch.Tensor]]]:
        named: dict[str, list[_Place]] = {name: [] for name in self._made}
        places, end = [], start
        for name, tensor in tensors:
            place = _Place(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _align(end))
            end = place.begin + tensor.nbytes
            named[name].append(place)
            places.append((place, tensor))
        text = msgspec.json.encode(_Header(self._key, end, self._packings, named))
        return _START.pack(MAGIC, len(text), hashlib.sha256(text).digest()) + text, places


def open_packed_copy(
    root: Path,
    model: Path,
    source: Path,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    batch_invariant: bool,
    architecture: str,
) -> PackedCopy:
    """Opens the copy below `root`, if there is one.

    source: the first file that the user's model has, after which the copy's directory is named. checkpoint:
    from which the model is loaded, perhaps a quantized copy. architecture: a name of what loads it, because
    each loads other tensors.
    """
    files = [_describe_file(path) for path in checkpoint.files]
    code = [version(folder) for folder in CODE], torch.__version__
    # numba may compile for another processor than the one that oneDNN finds.
    target = cpu_target.target_context.codegen().magic_tuple()
    facts = (files, config_text(model), str(dtype), batch_invariant, architecture, code, processor(), target)
    key = hashlib.sha256(repr(facts).encode()).hexdigest()
    return PackedCopy(packed_directory(root, source) / f"{key[:24]}{SUFFIX}", key)


def _describe_file(file: Path) -> tuple[object, ...]:
    """What changes with the content of a file."""
    target, found = file.resolve(), file.stat()
    if is_named_by_content(target):
        return target.name, found.st_size
    return str(target), found.st_size, found.st_mtime_ns, found.st_ino


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _write_file(file: Path, head: bytes, places: Sequence[tuple[_Place, torch.Tensor]]) -> None:
    descriptor, name = tempfile.mkstemp(prefix=UNFINISHED, dir=file.parent)
    try:
        with open(descriptor, "wb") as opened:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # until it is closed, with its final name
            opened.write(head)
            for place, tensor in places:
                opened.seek(place.begin)
                opened.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
            opened.flush()
            os.fsync(descriptor)
            os.replace(name, file)
    finally:
        Path(name).unlink(missing_ok=True)


def _make_room(file: Path, size: int) -> bool:
    """Makes the file's directory, and removes the least recently used copies beside it until another fits.
    Returns False, with a line in the log, if the disk has too little space."""
    file.parent.mkdir(parents=True, exist_ok=True)
    root = file.parent.parent
    free, copies = shutil.disk_usage(root).free, list(_find_copies(root, file))
    if SHARE_OF_COPY * size > free:
        log.info(
            "the packed weights are not kept for the next start: they would take %s, more than a tenth of "
            "the %s that are free on the disk of %s",
            in_units(size, up=True),
            in_units(free),
            root,
        )
        return False
    limit = (free + sum(each for _, each, _ in copies)) // SHARE_OF_COPIES
    total = size
    for number, (_, bytes, path) in enumerate(sorted(copies, reverse=True), start=2):
        total += bytes
        if total > limit or number > MAX_COPIES:
            path.unlink(missing_ok=True)
            if path.parent != file.parent:
                with suppress(OSError):
                    path.parent.rmdir()
    return True


def _find_copies(root: Path, own: Path) -> Iterator[tuple[float, int, Path]]:
    """The time of the last use, the size and the path of each copy but `own`. Removes those whose process has
    ended before they were complete."""
    for path in root.glob("*/*"):
        with suppress(OSError):
            found = path.stat()
            if path.name.startswith(UNFINISHED):
                _remove_abandoned(path)
            elif path.suffix == SUFFIX and path != own:
                yield found.st_mtime, found.st_size, path


def _remove_abandoned(path: Path) -> None:
    """Removes an unfinished copy that nobody writes. Raises OSError if one does."""
    with path.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
