# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Sequences of kernels that run in one parallel region: a CPU's counterpart of CUDA graphs.

Starting each kernel from Python takes longer than the work of a small one. A program starts once; its threads
take the work of one kernel after another and wait for each other in between.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from .numba_tools import fetch_add, pointer
from .threads import Call, Callback, thread_count

SPINS = 20_000
"""Looks at the counter, about 40 ns each, before a waiting thread offers its core to other processes."""


class Program:
    """Calls that `recorded_calls` gave. The caller keeps the tensors alive whose addresses they have."""

    def __init__(self, calls: Sequence[Call]) -> None:
        sizes = [1 + len(arguments) for _, arguments in calls]
        self._starts = np.cumsum([0, *sizes])[:-1]
        words = [word for _, arguments in calls for word in (0, *arguments)]
        self._arguments = np.array(words, np.int64)
        self._passed = self._arguments.copy()
        """what kernels get; they count in it"""
        self._functions = np.array([callback.address for callback, _ in calls], np.int64)
        self._places = self._passed.ctypes.data + 8 * self._starts
        self._callbacks = [callback for callback, _ in calls]

    def calls_of(self, kernel: Callback) -> list[int]:
        """The indices of the kernel's calls, in order."""
        return [index for index, callback in enumerate(self._callbacks) if callback is kernel]

    def change(self, calls: Sequence[int], arguments: dict[int, int]) -> None:
        """Give these calls other arguments: values by index, with the counter at 0."""
        starts = self._starts[list(calls)]
        for index, value in arguments.items():
            self._arguments[starts + index] = value

    def run(self) -> None:
        self._passed[:] = self._arguments
        addresses = (self._functions.ctypes.data, self._places.ctypes.data)
        callback().run((len(self._functions), *addresses, *_library_addresses()), thread_count())


def _run(arguments):
    """Arguments: the counter of arrivals, the number of kernels, the addresses of their functions and of
    their arguments, those of `omp_get_num_threads` (0: one thread) and `sched_yield`."""
    functions, places = pointer(arguments[2], np.int64(0)), pointer(arguments[3], np.int64(0))
    threads = _call_for_number(arguments[4]) if arguments[4] != 0 else np.int32(1)
    for index in range(arguments[1]):
        _call(functions[index], places[index])
        if threads > 1:
            target = (index + 1) * threads
            fetch_add(arguments, 1)
            spins = 0
            while _read(arguments) < target:
                _pause()
                spins += 1
                if spins >= SPINS:
                    _call_for_number(arguments[5])


@cache
def callback() -> Callback:
    return Callback(_run)


class _Addresses(NamedTuple):
    omp_get_num_threads: int
    sched_yield: int


@cache
def _library_addresses() -> _Addresses:
    library = ctypes.CDLL(None)
    try:
        library.GOMP_parallel  # noqa: B018
        threads = ctypes.cast(library.omp_get_num_threads, ctypes.c_void_p).value or 0
    except AttributeError:
        threads = 0
    return _Addresses(threads, ctypes.cast(library.sched_yield, ctypes.c_void_p).value or 0)


@intrinsic
def _call(typing, function, arguments):
    """Call the kernel at an address."""

    def generate(context, builder, signature, values):
        function, arguments = values
        number = ir.IntType(64).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [number]).as_pointer()
        builder.call(builder.inttoptr(function, kind), [builder.inttoptr(arguments, number)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _call_for_number(typing, function):
    """The int that the function without parameters at an address returns."""

    def generate(context, builder, signature, values):
        kind = ir.FunctionType(ir.IntType(32), []).as_pointer()
        return builder.call(builder.inttoptr(values[0], kind), [])

    return types.int32(types.int64), generate


@intrinsic
def _read(typing, counter):
    """An int64 that other threads change."""

    def generate(context, builder, signature, values):
        return builder.load_atomic(values[0], "seq_cst", 8)

    return types.int64(types.CPointer(types.int64)), generate


@intrinsic
def _pause(typing):
    """Tell the processor that this loop waits, if it has an instruction for that."""

    def generate(context, builder, signature, values):
        if binding.get_process_triple().startswith("x86_64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), generate
