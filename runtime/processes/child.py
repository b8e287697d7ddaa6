"""The start of every child process: arguments, end with its supervisor, limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from .sockets import Replica

LISTEN_FD_VARIABLE = "ARBORA_LISTEN_FD"  # the descriptor of the socket on which a tokenizer process listens
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client reads this variable when it is imported
CPUS_VARIABLE = "ARBORA_CPUS"  # the numbers of the CPUs of one of several replicas, with commas between
RANK_VARIABLE = "ARBORA_RANK"  # the number of a model process that is one of several ranks
RANK_FILE_VARIABLE = "ARBORA_RANK_FILE"  # the descriptor of the file that the ranks share, empty at first
PR_SET_PDEATHSIG = 1
SIGN_OF_LIFE_S = 1.0  # seconds between two messages that a child is alive


class ChildArguments(NamedTuple):
    """`directory` holds config.json, the vocabulary file and the ipc sockets. `number` is that of the
    tokenizer process, or of the replica of a scheduler or model process."""

    directory: Path
    epoch: int
    number: int
    supervisor_pid: int

    @property
    def replica(self) -> Replica:
        return Replica(self.directory, self.epoch, self.number)


def child_arguments() -> ChildArguments:
    """Parses `DIRECTORY EPOCH NUMBER SUPERVISOR_PID`, makes this process end with its supervisor, and keeps
    it on its replica's CPUs."""
    directory, epoch, number, supervisor_pid = sys.argv[1:]
    arguments = ChildArguments(Path(directory), int(epoch), int(number), int(supervisor_pid))
    _die_with_parent(arguments.supervisor_pid)
    _stay_on_cpus(os.environ.get(CPUS_VARIABLE, ""))
    raise_descriptor_limit()
    return arguments


def raise_descriptor_limit() -> None:
    """Raises the limit of open files and connections to the hard limit; the soft one is often 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS reports a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _stay_on_cpus(numbers: str) -> None:
    """Keeps this process, and the threads that it starts later, on the CPUs; without numbers on any."""
    if numbers and hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):  # libraries may have started threads when imported
            os.sched_setaffinity(int(thread), map(int, numbers.split(",")))


def _die_with_parent(supervisor_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor_pid:  # the supervisor ended before the signal was set
        sys.exit(0)
