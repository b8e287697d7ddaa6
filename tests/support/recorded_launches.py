"""CUDA graphs without a GPU: what a function launches is recorded once, and replayed with the same tensors.

What the host does between the launches is not repeated, and what it would read of the device is an error, as
on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import interpreted_triton  # noqa: F401
import pytest
import torch
from arbora.runtime.model.capture import Capture, CudaCapture, Replay
from interpreted_triton import DEVICE
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import GridExecutor

Launch = Callable[[], None]
READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


class _Operations(TorchDispatchMode):
    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in READS, f"{func} reads the device"
        kwargs = kwargs or {}
        out = func(*args, **kwargs)

        def again() -> None:
            new = func(*args, **kwargs)
            if isinstance(new, torch.Tensor) and new is not out:
                out.copy_(new)
            elif func.namespace == "c10d":  # an exchange between ranks
                _, running = new
                running.wait()

        if not func.name().startswith("aten::empty") and not func.name().startswith("aten::new_empty"):
            self._launches.append(again)
        return out


@contextmanager
def _recorded(launches: list[Launch]) -> Iterator[None]:
    run = GridExecutor.__call__

    def launch(kernel: GridExecutor, *args: Any, **kwargs: Any) -> None:
        launches.append(lambda: run(kernel, *args, **kwargs))
        with _disable_current_modes():
            run(kernel, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, _Operations(launches):
        patch.setattr(GridExecutor, "__call__", launch)
        yield


def record(work: Replay) -> Replay:
    launches: list[Launch] = []
    with _recorded(launches):
        work()

    def replay() -> None:
        for launch in launches:
            launch()

    return replay


def capture() -> Capture:
    """The capture of CUDA graphs on a GPU."""
    return CudaCapture() if DEVICE.type == "cuda" else record
