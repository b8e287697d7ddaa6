"""Sequences of kernels that run in one parallel region: a CPU's counterpart of CUDA graphs.

Starting each kernel from Python takes longer than the work of a small one. A program starts once; its threads
take the work of one kernel after another and wait for each other in between.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from .emits import INT, VOID, emits
from .jit import compiled_fast
from .llvm import I32, I64
from .numba_tools import fetch_add, pointer, shift
from .processor import thread_masks
from .teams import LINE, TEAM_THREADS
from .threads import Call, ParallelKernel, thread_count
from .waiting import FUTEX, WITHIN_PROCESS, find_number, system_call, wait_until, wake_waiting

SET_AFFINITY = {"x86_64": 203, "aarch64": 122, "riscv64": 122}
"""the number of Linux's system call `sched_setaffinity`, by kind of processor"""

(
    ARRIVALS,
    SLEEPING,
    CALLS,
    FUNCTIONS,
    PLACES,
    GET_NUM_THREADS,
    GET_THREAD_NUM,
    FUTEX_CALL,
    MASKS,
    MASK_BYTES,
    AFFINITY_CALL,
) = range(11)
GROUPS = 3 * LINE
"""The places of the arguments of `run_calls`. ARRIVALS counts, for all kernels so far, the threads that have
ended a kernel, and SLEEPING the threads that sleep until the others end theirs. CALLS is the number of
kernels; FUNCTIONS and PLACES are the addresses of their functions and of their arguments. The others are the
fields of `_System` and `_Binding`.

More than TEAM_THREADS threads arrive in groups of TEAM_THREADS. Each group has a counter, from GROUPS on, and
no two counters share a cache line. ARRIVALS then counts the groups. A single counter would pass from core to
core for each thread."""


class Program:
    """Runs the calls of `recorded_calls`. The caller keeps alive the tensors whose addresses they contain."""

    def __init__(self, calls: Sequence[Call]) -> None:
        sizes = [1 + len(arguments) for _, arguments in calls]
        self._starts = np.cumsum([0, *sizes])[:-1]
        words = [word for _, arguments in calls for word in (0, *arguments)]
        self._arguments = np.array(words, np.int64)
        self._passed = self._arguments.copy()
        """the arguments that kernels get, with their counters"""
        self._functions = np.array([kernel.address for kernel, _ in calls], np.int64)
        self._places = self._passed.ctypes.data + 8 * self._starts
        self._kernels = [kernel for kernel, _ in calls]
        addresses = (self._functions.ctypes.data, self._places.ctypes.data)
        self._threads = thread_count() if _system().omp_get_num_threads else 1
        """The number of threads at the recording, for which the kernels have scratch memory."""
        arguments = (0, len(calls), *addresses, *_system(), *_binding(self._threads))
        groups = -(-self._threads // TEAM_THREADS)
        self._run_arguments = (*arguments, *([0] * (GROUPS + LINE * groups - 1 - len(arguments))))
        """the arguments of `run_calls`"""

    def calls_of(self, kernel: ParallelKernel) -> list[int]:
        """The indices of the kernel's calls, in order."""
        return [index for index, each in enumerate(self._kernels) if each is kernel]

    def places_of(self, calls: Sequence[int], arguments: Sequence[int]) -> NDArray[np.int64]:
        """Where `change` changes these arguments of calls, [calls, arguments]. arguments: indices, with the
        counter at 0"""
        places: NDArray[np.int64] = self._starts[list(calls)][:, None] + np.array(arguments)
        return places

    def change(self, places: NDArray[np.int64], values: Sequence[int]) -> None:
        """Gives calls other arguments: `values` [arguments] at `places` [calls, arguments]."""
        self._arguments[places] = values

    def run(self) -> None:
        self._passed[:] = self._arguments
        run_calls.run(self._run_arguments, self._threads)


@ParallelKernel
def run_calls(arguments):
    """Runs the kernels on this thread and the others."""
    functions = pointer(arguments[FUNCTIONS], np.int64(0))
    places = pointer(arguments[PLACES], np.int64(0))
    threads = np.int32(1)
    if arguments[GET_NUM_THREADS] != 0:
        threads = _call_for_number(arguments[GET_NUM_THREADS])
    masks, number = arguments[MASKS], np.int32(0)
    if threads > 1:
        number = _call_for_number(arguments[GET_THREAD_NUM])
    if masks != 0:
        _set_affinity(arguments, masks + (1 + number) * arguments[MASK_BYTES])
    for index in range(arguments[CALLS]):
        _call(functions[index], places[index])
        if threads > 1:
            _wait_for_all(arguments, index, number, threads)
    if masks != 0:
        _set_affinity(arguments, masks)


@compiled_fast
def _set_affinity(arguments, mask):
    """Lets this thread run on the CPUs of a mask only."""
    system_call(arguments[AFFINITY_CALL], 0, arguments[MASK_BYTES], mask)


@compiled_fast
def _wait_for_all(arguments, index, number, threads):
    """Returns when all threads have ended kernel `index`. number: of this thread"""
    arrivals, is_last = np.int64(threads), True
    if threads > TEAM_THREADS:
        group, arrivals = number // TEAM_THREADS, (threads + TEAM_THREADS - 1) // TEAM_THREADS
        some = min(TEAM_THREADS, threads - group * TEAM_THREADS)
        is_last = fetch_add(shift(arguments, GROUPS + LINE * group), 1) == (index + 1) * some - 1
    target, sleeping = (index + 1) * arrivals, shift(arguments, SLEEPING)
    if is_last and fetch_add(arguments, 1) == target - 1:
        wake_waiting(arguments, sleeping, arguments[FUTEX_CALL], WITHIN_PROCESS)
        return
    wait_until(arguments, target, sleeping, arguments[FUTEX_CALL], WITHIN_PROCESS)


class _System(NamedTuple):
    omp_get_num_threads: int
    """address; 0: one thread"""
    omp_get_thread_num: int
    """address"""
    futex: int
    """number of the system call; 0: threads can't sleep, and offer their core again and again"""


class _Binding(NamedTuple):
    """If there is a thread for each core, each has a core of its own while a program runs.

    Otherwise the system may run two threads on one core while another core is idle, for many steps in a row,
    after a third thread used a core for a moment. With several NUMA nodes, fewer threads have a node each. If
    the system refuses, threads run where they would have.
    """

    masks: int
    """address of `thread_masks`; 0: threads are not bound"""
    mask_bytes: int
    set_affinity: int
    """number of the system call"""


@cache
def _system() -> _System:
    library = ctypes.CDLL(None)
    try:
        library.GOMP_parallel  # noqa: B018
        threads, number = (
            ctypes.cast(function, ctypes.c_void_p).value or 0
            for function in (library.omp_get_num_threads, library.omp_get_thread_num)
        )
    except AttributeError:
        threads = number = 0
    return _System(threads, number, find_number(FUTEX))


def _binding(threads: int) -> _Binding:
    set_affinity, masks = find_number(SET_AFFINITY), thread_masks(threads)
    if masks is None or set_affinity == 0:
        return _Binding(0, 0, 0)
    return _Binding(masks.ctypes.data, masks.shape[1], set_affinity)


@emits(VOID, INT, INT)
def _call(builder, function, arguments):
    """Call the kernel at an address."""
    kind = ir.FunctionType(ir.VoidType(), [I64.as_pointer()]).as_pointer()
    builder.call(builder.inttoptr(function, kind), [builder.inttoptr(arguments, I64.as_pointer())])


@emits(types.int32, INT)
def _call_for_number(builder, function):
    """The int that the function without parameters at an address returns."""
    return builder.call(builder.inttoptr(function, ir.FunctionType(I32, []).as_pointer()), [])
