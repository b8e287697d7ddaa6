"""The faults: each is injected into a running server and removed once the server has recovered."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from server_process import processes_by_role

MAX_FILE_BYTES = 4096
BROKEN_BYTES = 1 << 16
Undo = Callable[[], None]


@dataclass(frozen=True)
class World:
    """The target of faults. `disk` is the directory of the disk tier."""

    supervisor: int
    disk: Path
    redis: subprocess.Popen[bytes] | None
    rng: random.Random


@dataclass(frozen=True)
class Fault:
    """`replaces` names the role whose process must be replaced; None if none must be."""

    name: str
    do: Callable[[World], Undo]
    replaces: str | None = None


def send_signal(role: str, number: signal.Signals) -> Callable[[World], Undo]:
    def do(world: World) -> Undo:
        process = _process(world, role)
        if process is None:
            return _nothing
        process.send_signal(number)
        return lambda: _resume(process) if number == signal.SIGSTOP else None

    return do


def limit(role: str, kind: int, most: Callable[[psutil.Process], int]) -> Callable[[World], Undo]:
    """Sets a soft limit of a process and restores it afterwards."""

    def do(world: World) -> Undo:
        process = _process(world, role)
        if process is None:
            return _nothing
        before = resource.prlimit(process.pid, kind)
        resource.prlimit(process.pid, kind, (most(process), before[1]))
        return lambda: _restore(process.pid, kind, before)

    return do


def break_disk_files(world: World) -> Undo:
    """Overwrites a part of each file of the disk tier with random bytes."""
    for path in world.disk.rglob("*"):
        if path.is_file() and path.stat().st_size > 0:
            with path.open("r+b") as file:
                file.seek(world.rng.randrange(path.stat().st_size))
                file.write(world.rng.randbytes(BROKEN_BYTES))
    return _nothing


def delete_disk_files(world: World) -> Undo:
    for path in world.disk.rglob("*"):
        if path.is_file():
            path.unlink()
    return _nothing


def stop_redis(world: World) -> Undo:
    assert world.redis is not None
    world.redis.send_signal(signal.SIGSTOP)
    return lambda: os.kill(world.redis.pid, signal.SIGCONT) if world.redis else None


def _files_now(process: psutil.Process) -> int:
    return int(process.num_fds())


MAIN = ("tokenizer", "scheduler", "model")
FAULTS: tuple[Fault, ...] = (
    *(Fault(f"kill the {role} process", send_signal(role, signal.SIGKILL), role) for role in MAIN),
    Fault("kill a grammar process", send_signal("worker", signal.SIGKILL)),
    *(Fault(f"stop the {role} process", send_signal(role, signal.SIGSTOP), role) for role in MAIN),
    Fault("stop a grammar process", send_signal("worker", signal.SIGSTOP)),
    *(
        Fault(
            f"no descriptor is left to the {role} process",
            limit(role, resource.RLIMIT_NOFILE, _files_now),
        )
        for role in MAIN
    ),
    Fault(
        "the disk of the disk tier is full", limit("model", resource.RLIMIT_FSIZE, lambda _: MAX_FILE_BYTES)
    ),
    Fault("the disk tier's files are overwritten", break_disk_files),
    Fault("the disk tier's files are deleted", delete_disk_files),
)
REDIS_FAULTS = (Fault("the Redis server hangs", stop_redis),)


def _process(world: World, role: str) -> psutil.Process | None:
    """One of the role's processes; a random one where it has several."""
    found = processes_by_role(world.supervisor)
    named = [process for name, process in found.items() if name.split()[0] == role]
    return world.rng.choice(named) if named else None


def _resume(process: psutil.Process) -> None:
    if process.is_running():
        process.send_signal(signal.SIGCONT)


def _restore(pid: int, kind: int, limits: tuple[int, int]) -> None:
    if psutil.pid_exists(pid):
        resource.prlimit(pid, kind, limits)


def _nothing() -> None:
    pass
