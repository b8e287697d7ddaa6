"""The control groups of this process, which hold the limits of a container or a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""where the system's /proc and /sys are"""


def find_cgroups(controller: str) -> Iterator[Path]:
    """Yields the directory of this process's group and those of its parents, for version 2 and for version 1.

    A container may see the path that its group has outside, so directories may not exist; the first one that
    it has, the last of the parents, always does.
    """
    mounts = ROOT / "sys/fs/cgroup"
    try:
        lines = (ROOT / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            is_alone = (mounts / "cgroup.controllers").exists()
            yield from _with_parents(mounts if is_alone else mounts / "unified", path)
        elif controller in controllers.split(","):
            names = (name for name in (controllers, controller) if (mounts / name).exists())
            yield from _with_parents(mounts / next(names, controller), path)


def _with_parents(mount: Path, path: str) -> Iterator[Path]:
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])
