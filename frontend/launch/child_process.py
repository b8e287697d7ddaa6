"""One child process: started in its own session, its stderr passed through, its end awaited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ...runtime.child import ChildArguments

LAST_LINES = 20
TAIL_BYTES = 16 * 1024
STOP_SECONDS = 3.0


class Command(NamedTuple):
    """How to start a child of a role; the child's arguments (`runtime.child`) are appended.

    `defaults` are environment variables that hold unless the user has set them.
    """

    role: str
    argv: tuple[str, ...]
    defaults: Mapping[str, str] = MappingProxyType({})


class ChildProcess:
    """A running child. It leads its own process group, which dies with it."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        self.role = role
        self.pid = process.pid
        self._process = process
        self._tail = b""
        self._pump = asyncio.create_task(self._pass_output_through())
        self._exit = asyncio.create_task(self._wait())

    async def exited(self) -> int:
        """The return code, once it is there: negative is the signal that killed it."""
        return await asyncio.shield(self._exit)

    async def kill(self) -> None:
        if not self._exit.done():
            _kill_group(self.pid)
        await self.exited()

    async def stop(self) -> None:
        """Ask it to end; insist after `STOP_SECONDS`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await asyncio.wait([self._exit], timeout=STOP_SECONDS)
        await self.kill()

    def last_lines(self) -> str:
        return "\n".join(self._tail.decode(errors="replace").splitlines()[-LAST_LINES:])

    async def _wait(self) -> int:
        returncode = await self._process.wait()
        _kill_group(self.pid)  # what it may have started itself
        await asyncio.wait([self._pump], timeout=1.0)
        return returncode

    async def _pass_output_through(self) -> None:
        output = self._process.stdout
        assert output is not None
        while chunk := await output.read(TAIL_BYTES):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            with contextlib.suppress(OSError, ValueError):  # our stderr is closed: keep reading all the same
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()


async def start_child(
    command: Command,
    arguments: ChildArguments,
    environment: Mapping[str, str],
    file_descriptors: Sequence[int] = (),
) -> ChildProcess:
    """Start `command` with this environment added to ours; the descriptors keep their numbers."""
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**command.defaults, **os.environ, "PYTHONSAFEPATH": "1", **environment},
        pass_fds=file_descriptors,
        start_new_session=True,
    )
    return ChildProcess(command.role, process)


def describe_exit(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by signal {-returncode} ({signal.strsignal(-returncode)})"
    return f"exited with code {returncode}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
