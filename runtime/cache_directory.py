"""The directories for files that Arbora can make again."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_HASH = re.compile(r"(sha256-)?([0-9a-f]{40}|[0-9a-f]{64})")
KEPT_S = 30 * 24 * 3600.0  # seconds; another checkout or a running server may use a directory


def cache_directory(name: str) -> Path:
    """`$XDG_CACHE_HOME/arbora/name`, by default in `~/.cache`. It need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arbora" / name


def is_named_by_content(file: Path) -> bool:
    """Whether a file's name is a hash of its content, as in the hub's cache."""
    target = file.resolve()
    return target.parent.name == "blobs" and _HASH.fullmatch(target.name) is not None


def packed_directory(root: Path, source: Path) -> Path:
    """Names the directory, below `root`, of the packed copies of a model. source: the model's first file"""
    target = source.resolve()
    name = os.fsencode(target.name if is_named_by_content(target) else target)
    return root / hashlib.sha256(name).hexdigest()[:24]


@contextmanager
def made_at_once(target: Path, prefix: str) -> Iterator[Path]:
    """Makes an empty directory beside `target` and renames it to `target` at the end. Its name begins with
    `prefix`.

    If another process has made `target` meanwhile, that one is kept. Raises OSError if the directory can't be
    written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield scratch
        try:
            scratch.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def note_use(used: Path, names: str = "*", most: int = 0) -> None:
    """Notes that a directory is used now, and deletes those beside it that were not used for a month.

    Only directories whose names match `names` are deleted, and none of the `most` last used ones.
    """
    with suppress(OSError):
        os.utime(used)
    last_used: list[tuple[float, Path]] = []
    for path in used.parent.glob(names):
        with suppress(OSError):
            last_used.append((path.stat().st_mtime, path))
    for at, path in sorted(last_used, reverse=True)[most:]:
        if path != used and time.time() - at > KEPT_S:
            shutil.rmtree(path, ignore_errors=True)
