"""The scheduler's pool of processes that run one compiler."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from ..errors import BusyError
from .channel import Channel
from .compiler_process import CompilerProcess, GoOn
from .fork_client import RestartingForkServer
from .messages import CompileJob, Outcome

MAX_PROCESSES = 192  # processes that follow grammars; each takes about 4 MB, and its grammar's memory


class CompilerPool:
    """Processes forked from one server, which starts with the first job. A hostile grammar ends one of them
    and delays only its own request; the next job gets a new process within milliseconds. Thread-safe.

    max_message: maximal bytes of a message from a process
    charge: function that is called with the tenant and the seconds of each job
    """

    def __init__(
        self,
        server: RestartingForkServer,
        max_message: int,
        charge: Callable[[str, float], None],
    ) -> None:
        self.server = server
        self._max_message = max_message
        self._charge = charge
        self._lock = threading.Lock()
        self._idle: list[CompilerProcess] = []
        self._tenants: dict[int, str] = {}  # tenants by process number
        self._last_number = 0

    @property
    def live(self) -> int:
        """The number of processes that run a job, wait for one, or follow a grammar."""
        return len(self._tenants)

    def run(self, job: CompileJob, tenant: str, go_on: GoOn) -> tuple[Outcome, CompilerProcess]:
        """The job's outcome, and its process for the caller to keep or `release`. Raises the errors of
        `CompilerProcess.run`, and BusyError if the tenant has too many processes."""
        self.server.wait_ready()  # no tenant is charged for the server's start
        process = self._take_idle() or self._fork(tenant)
        began = time.monotonic()
        try:
            return process.run(job, go_on), process
        except Exception:
            self.release(process)
            raise
        finally:
            self._charge(tenant, time.monotonic() - began)

    def release(self, process: CompilerProcess) -> None:
        """Keeps a process that takes another job, and ends any other."""
        if process.takes_jobs():
            with self._lock:
                self._idle.append(process)
        else:
            process.end()

    def close(self) -> None:
        """Ends all processes and the jobs that they run. No job may be submitted later."""
        self.server.close()
        for process in self._idle:
            process.end()

    def _take_idle(self) -> CompilerProcess | None:
        """Takes the idle process that ran the last job, because its caches are the fullest."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.takes_jobs():
                    return process
                process.end()
        return None

    def _fork(self, tenant: str) -> CompilerProcess:
        running = self.server.wait_ready()
        with self._lock:
            if busy := self._find_shortage(tenant):
                raise BusyError(busy)
            self._last_number += 1
            number = self._last_number
            ours, theirs = socket.socketpair()
            self._tenants[number] = tenant
        channel = Channel(ours, self._max_message)
        process = CompilerProcess(
            running, number, channel, partial(self._forget, number), self.server.on_compiling
        )
        with theirs:
            running.fork(number, theirs)
        return process

    def _find_shortage(self, tenant: str) -> str:
        """Why the tenant can't get another process now; "" if it can. A tenant may have at most as many
        processes as are still available."""
        free = MAX_PROCESSES - self.live
        if free <= 0:
            return f"the server follows {MAX_PROCESSES} grammars already; try again later"
        held = list(self._tenants.values()).count(tenant)
        return f"the server follows {held} grammars of yours already; try again later" if held >= free else ""

    def _forget(self, number: int, channel: Channel) -> None:
        """Closes the channel, which ends the process."""
        channel.close()
        self._tenants.pop(number, None)  # atomic: this may run while the lock is held
