"""A runner whose steps replay graphs, with a log of what the host asks of the device.

On a GPU the graphs are captured; without one their launches are recorded, interpreted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.kernels.common import upload as transfers
from arbora.kernels.common.upload import FixedArrays
from arbora.runtime.model import cuda_executor, forward_graphs, runner, sampling_graphs
from arbora.runtime.model.capture import GraphMemory, Replay
from arbora.runtime.model.cuda_executor import CudaExecutor
from arbora.runtime.model.devices import HostCopies
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.ranks import ONE_RANK, Ranks
from byte_grammars import byte_vocabulary
from recorded_launches import capture
from step_driver import StepDriver, device_of, serve_config
from triton.runtime.interpreter import GridExecutor
from triton_device import DEVICE, triton_kernels

SLOTS, MAX_TOKENS = 4, 10


class Log:
    """Events in their order: "copy" to the device, "graph", "kernel" outside a graph, "read" (a copy to the
    host is queued), "wait"."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.graphs: list[list[str]] = []
        """the Triton kernels of each captured graph, in the interpreter"""
        self._in_graph = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        upload, set_arrays, run = transfers.upload, FixedArrays.set, GridExecutor.__call__

        def logged_upload(arrays: Sequence[Any], device: torch.device) -> list[torch.Tensor]:
            self.events.append("copy")
            return upload(arrays, device)

        def logged_set(fixed: FixedArrays, values: Any) -> None:
            self.events.append("copy")
            set_arrays(fixed, values)

        def launch(kernel: GridExecutor, *args: Any, **kwargs: Any) -> None:
            if not self._in_graph:
                self.events.append("kernel")
            run(kernel, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            for module in list(sys.modules.values()):
                if getattr(module, "upload", None) is upload:
                    patch.setattr(module, "upload", logged_upload)
            patch.setattr(FixedArrays, "set", logged_set)
            patch.setattr(GridExecutor, "__call__", launch)
            patch.setattr(runner, "HostCopies", self._copies())
            yield

    def graph(self, replay: Replay) -> Replay:
        def logged() -> None:
            self.events.append("graph")
            self._in_graph = True
            replay()
            self._in_graph = False

        return logged

    def _copies(self) -> type[HostCopies]:
        events = self.events

        class LoggedCopies(HostCopies):
            """Says that the device is busy until the host has asked twice."""

            def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
                super().__init__(tensors)
                events.append("read")
                self._asked = 0

            def ready(self) -> bool:
                self._asked += 1
                return self._asked > 2

            def wait(self) -> list[torch.Tensor]:
                events.append("wait")
                return super().wait()

        return LoggedCopies


@contextmanager
def _noted_kernels() -> Iterator[list[str]]:
    """The names of the kernels that are launched in the block, in the interpreter."""
    run, names = GridExecutor.__call__, list[str]()

    def launch(kernel: GridExecutor, *args: Any, **kwargs: Any) -> None:
        names.append(kernel.fn.__name__)
        run(kernel, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", launch)
        yield names


class _LoggedCapture:
    def __init__(self, log: Log) -> None:
        self._log, self._capture = log, capture()

    def __call__(self, work: Replay) -> Replay:
        with _noted_kernels() as names:
            replay = self._capture(work)
        self._log.graphs.append(names)
        return self._log.graph(replay)

    def measure(self, work: Replay) -> GraphMemory:
        return GraphMemory(0, 0)


def started(model: Path, device: str, ranks: Ranks = ONE_RANK) -> StepDriver:
    """On both devices it makes no drafts, as on a GPU by default."""
    fields = {"page_size": 4, "max_model_len": 60, "max_running": SLOTS, "enforce_eager": True}
    config = serve_config(model, device=device, speculate="off", tp=ranks.rank.total, **fields)
    loaded = load_model(config, byte_vocabulary, ranks)
    return StepDriver(loaded.runner, loaded.ready)


def with_graphs(model: Path, log: Log, ranks: Ranks = ONE_RANK) -> StepDriver:
    """Run its steps inside `triton_kernels()`. `log.attached()` logs what follows."""
    driver = started(model, DEVICE.type, ranks)
    device = device_of(driver)
    with triton_kernels(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_executor, "CudaCapture", lambda: _LoggedCapture(log))
        patch.setattr(forward_graphs, "MAX_TOKENS", MAX_TOKENS)
        patch.setattr(forward_graphs, "choose_sizes", lambda most: sorted({3, most}))
        patch.setattr(sampling_graphs, "choose_sizes", lambda most: [most])
        executor = CudaExecutor(device.model, device.tables, device.states, rank=ranks.rank)
        executor.capture(device)
        driver.runner._executor = executor
    return driver
