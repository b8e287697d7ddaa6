"""The commands that start a server's children, and one child process: it runs in its own session, and its
stderr is passed through."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, cast

from ...runtime.logs import CLEAR, PROGRESS_VARIABLE, is_on_terminal
from ...runtime.processes.child import ChildArguments

LAST_LINES = 20
TAIL_BYTES = 16 * 1024
STOP_SECONDS = 3.0


class Command(NamedTuple):
    """How to start a child of a role; the child's arguments (`runtime.processes.child`) are appended.

    `defaults` are environment variables that hold unless the user has set them.
    """

    role: str
    argv: tuple[str, ...]
    defaults: Mapping[str, str] = MappingProxyType({})


class ChildProcess(asyncio.SubprocessProtocol):
    """A child that runs once its transport is made. It leads its own process group, which dies with it."""

    pid: int
    _exit: asyncio.Task[int]

    def __init__(self, role: str, pass_on: Callable[[str], None]) -> None:
        self.role = role
        self._pass_on = pass_on
        self._tail = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._silent = asyncio.Event()

    async def exited(self) -> int:
        """The return code, once the child has ended. A negative one is the signal that killed it."""
        return await asyncio.shield(self._exit)

    def kill_now(self) -> None:
        if not self._exit.done():
            _kill_group(self.pid)

    async def kill(self) -> None:
        self.kill_now()
        await self.exited()

    async def stop(self) -> None:
        """Asks the child to end, and kills it after `STOP_SECONDS`.

        The transport's own methods may reap the child, so that asyncio doesn't learn how it ended.
        """
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
                os.kill(self.pid, signal.SIGCONT)  # wakes a stopped process, so that it handles SIGTERM
        await asyncio.wait([self._exit], timeout=STOP_SECONDS)
        await self.kill()

    def last_lines(self) -> str:
        """The last lines of the child's log, without progress bars that later text has replaced."""
        lines = self._tail.decode(errors="replace").split("\n")
        logged = [line.rpartition(CLEAR)[2].removesuffix("\r") for line in lines]
        return "\n".join([line for line in logged if line][-LAST_LINES:])

    async def _wait(self) -> int:
        await self._ended
        _kill_group(self.pid)  # also ends its children, which would keep its output open
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._silent.wait()
        self._transport.close()
        returncode = self._transport.get_returncode()
        assert returncode is not None
        return returncode

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid()
        self._exit = asyncio.create_task(self._wait())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        self._pass_on(self._decoder.decode(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._pass_on(self._decoder.decode(b"", final=True))
        self._silent.set()

    def process_exited(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


async def start_child(
    command: Command,
    arguments: ChildArguments,
    environment: Mapping[str, str],
    file_descriptors: Sequence[int] = (),
    pass_on: Callable[[str], None] | None = None,
) -> ChildProcess:
    """Starts `command` with our environment plus `environment`. File descriptors keep their numbers.
    `pass_on` gets the child's output, which is otherwise written to stderr."""
    _, child = await asyncio.get_running_loop().subprocess_exec(
        lambda: ChildProcess(command.role, pass_on or _pass_on),
        *command.argv,
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**command.defaults, **os.environ, "PYTHONSAFEPATH": "1", **_progress(), **environment},
        pass_fds=file_descriptors,
        start_new_session=True,
    )
    return child


def _pass_on(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # our stderr is closed, but reading must go on
        sys.stderr.write(text)
        sys.stderr.flush()


def _progress() -> dict[str, str]:
    return {PROGRESS_VARIABLE: "1"} if is_on_terminal() else {}


def describe_exit(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by signal {-returncode} ({signal.strsignal(-returncode)})"
    return f"exited with code {returncode}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# PyTorch's threads spin for a moment between operations, then sleep: the other processes share their
# cores. Huge pages for what malloc gives: weights are read through fewer page-table entries.
_MODEL_DEFAULTS = {"GOMP_SPINCOUNT": "1000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_PACKAGE = __name__.partition(".")[0]


class Place(NamedTuple):
    """Where a replica runs: the environment variables of its processes, and of each rank of its model further
    ones."""

    environment: Mapping[str, str] = MappingProxyType({})
    ranks: tuple[Mapping[str, str], ...] = (MappingProxyType({}),)


WHOLE_MACHINE = (Place(),)
"""one replica of one rank"""


class Commands(NamedTuple):
    """The commands of a replica (scheduler and model) and of any number of tokenizer processes."""

    scheduler: Command
    model: Command
    tokenizers: tuple[Command, ...]
    replicas: tuple[Place, ...] = WHOLE_MACHINE


def replica_commands(replicas: tuple[Place, ...] = WHOLE_MACHINE) -> Commands:
    """Returns the commands that start replicas for a client in this process."""
    model = _module("model", "runtime.model")._replace(defaults=_MODEL_DEFAULTS)
    return Commands(_module("scheduler", "runtime.scheduler"), model, (), replicas)


def server_commands(tokenizers: int = 1, replicas: tuple[Place, ...] = WHOLE_MACHINE) -> Commands:
    """The commands of replicas, and of `tokenizers` tokenizer processes, which serve HTTP."""
    serving_http = (_module("tokenizer", "frontend.app"),) * tokenizers
    return replica_commands(replicas)._replace(tokenizers=serving_http)


def _module(role: str, folder: str) -> Command:
    return Command(role, (sys.executable, "-m", f"{_PACKAGE}.{folder}.process"))
