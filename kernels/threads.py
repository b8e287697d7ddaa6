"""Run compiled callbacks on the threads that PyTorch computes with.

PyTorch's OpenMP workers spin for a while after each operation. A second pool, such as numba's own, would
compete with them for the cores, so our parallel regions start through the same OpenMP library (GOMP_parallel,
which libgomp exports and libiomp5 mimics). Without it callbacks run on the calling thread.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
import torch

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Task:
    """A compiled callback and its int64 arguments, of which [0] is a work counter reset before each run."""

    def __init__(self, callback: int, arguments: int) -> None:
        self.arguments = np.zeros(arguments, dtype=np.int64)
        self._address = int(self.arguments.ctypes.data)
        self._callback = callback
        self._call = _CALLBACK(callback)

    def run(self, threads: int) -> None:
        """Call the callback on this many threads at once and wait for all."""
        self.arguments[0] = 0
        parallel = _gomp_parallel() if threads > 1 else None
        if parallel is None:
            self._call(self._address)
        else:
            parallel(self._callback, self._address, threads, 0)


def thread_count() -> int:
    return torch.get_num_threads()


@cache
def _gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function
