"""Counters that threads wait for: they read one for a while, then sleep until another thread wakes them."""

import platform
import sys

from llvmlite import ir
from numba.core import cgutils

from .emits import INT, VOID, emits
from .jit import compiled_fast
from .llvm import I64, size
from .numba_tools import fetch_add, pause, read_counter, yield_core

SPINS = 1_000
"""How often a waiting thread reads the counter before it sleeps; each time takes about 40 ns on x86. While it
sleeps, its core is free for another process, or for the thread that it waits for."""

FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
"""the number of Linux's system call `futex`, by kind of processor"""
WITHIN_PROCESS, BETWEEN_PROCESSES = 128, 0
"""added to the operation: whether the threads that wait for the counter are of one process or of several"""
FUTEX_WAIT, FUTEX_WAKE = 0, 1
ALL = 2**31 - 1


@compiled_fast
def wake_waiting(counter, sleeping, futex_call, sharing):
    """Wakes the threads that sleep until the counter changes.

    sleeping: counts them. futex_call: number of the system call; 0: no thread sleeps. sharing: WITHIN_PROCESS
    or BETWEEN_PROCESSES
    """
    if read_counter(sleeping) > 0 and futex_call != 0:
        system_call(futex_call, address_of(counter), FUTEX_WAKE + sharing, ALL)


@compiled_fast
def wait_until(counter, target, sleeping, futex_call, sharing):
    """Returns when the counter has reached the target. The other arguments are those of `wake_waiting`."""
    for _ in range(SPINS):
        if read_counter(counter) >= target:
            return
        pause()
    fetch_add(sleeping, 1)
    while True:
        arrived = read_counter(counter)
        if arrived >= target:
            break
        if futex_call != 0:
            system_call(futex_call, address_of(counter), FUTEX_WAIT + sharing, arrived)
        else:
            yield_core()
    fetch_add(sleeping, -1)


@emits(VOID, INT, INT, INT, INT)
def system_call(builder, number, first, second, third):
    """A system call of Linux with up to six arguments, of which the last three are 0."""
    kind = ir.FunctionType(I64, [I64], var_arg=True)
    call = cgutils.get_or_insert_function(builder.module, kind, "syscall")
    builder.call(call, [number, first, second, third, size(0), size(0), size(0)])


@emits(INT, None)
def address_of(builder, counter):
    return builder.ptrtoint(counter, I64)


def find_number(system_call: dict[str, int]) -> int:
    """The number of a system call on this machine; 0: the system does not have it."""
    return system_call.get(platform.machine(), 0) if sys.platform == "linux" else 0
