"""Limits of processes that read clients' grammars, and how such a process ended.

Their timers have no handlers, so they end a process even inside native code.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import CompilerError, GrammarError, TooLargeError, encode_error
from .messages import Failed, Outcome

PR_SET_PDEATHSIG = 1


def measure_memory(process: int | str = "self") -> int:
    """The resident memory of a process in bytes."""
    return _pages(process, 1)


def measure_processor_s(process: int) -> float:
    """The seconds of processor time of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_limited(deadline_s: float, work: Callable[[], Outcome]) -> Outcome:
    """The outcome of `work`, or its error. Ends the process after `deadline_s` seconds of processor time."""
    signal.setitimer(signal.ITIMER_PROF, deadline_s)
    error: Exception
    try:
        return work()
    except (GrammarError, TooLargeError) as fault:
        error = fault
    except MemoryError:
        error = TooLargeError("it takes too much memory")
    except RecursionError:
        error = TooLargeError("it is nested too deep")
    except BaseException:  # an error in our code, or a panic of llguidance
        error = CompilerError(traceback.format_exc()[-4000:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Failed(encode_error(error))


def keep_to_limits(extra_bytes: int) -> None:
    """Limits a process just forked: to `extra_bytes` more memory, no core dumps, no input and no output. If
    the machine runs out of memory, the system kills this process first."""
    limit_memory(extra_bytes)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_memory(extra_bytes: int) -> None:
    """Limits the address space to its present size plus `extra_bytes`. The limit can only be lowered
    later."""
    limit = _pages("self", 0) + extra_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def die_with(parent: int) -> None:
    """Makes a process that `parent` has just forked end with it. `parent` must have a single thread."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the signal was set
        os._exit(0)


def describe_status(status: int) -> str:
    """An exit status, as `subprocess` gives it, in words."""
    if status >= 0:
        return f"exit status {status}"
    names = {number.value: number.name for number in signal.Signals}  # real-time signals have no names
    return names.get(-status, f"signal {-status}")


def _pages(process: int | str, field: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[field]) * resource.getpagesize()
