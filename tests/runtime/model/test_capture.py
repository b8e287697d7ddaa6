"""Graphs that can't be captured are left out; the model stays loaded and steps run without them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import interpreted_triton  # noqa: F401
import logged_steps
import pytest
import torch
from arbora.runtime.errors import ConfigError
from arbora.runtime.model import cuda_executor
from arbora.runtime.model.capture import CaptureError, Captures, GraphMemory, Replay
from arbora.runtime.model.cuda_executor import CudaExecutor
from checkpoints import random_model, save_model
from step_driver import device_of
from triton_device import cache_as_on_a_gpu, triton_kernels  # noqa: F401

REFUSED = "operation not permitted when stream is capturing"


def nothing() -> None:
    pass


def fail(work: Replay) -> Replay:
    raise RuntimeError(REFUSED)


def test_a_graph_that_fails_is_left_out_and_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    captures = Captures(fail)
    assert captures.capture(nothing, "512 tokens") is None
    assert captures.capture(nothing, "448 tokens") is None
    with caplog.at_level(logging.WARNING):
        captures.log_left_out("forward passes")
        captures.log_left_out("forward passes")
    (told,) = caplog.messages
    for words in ("forward passes", "512 tokens, 448 tokens", REFUSED, "--debug eager"):
        assert words in told


def test_a_graph_that_is_not_captured_counts_no_memory() -> None:
    def measure(work: Replay) -> GraphMemory:
        raise RuntimeError(REFUSED)

    assert Captures(fail, measure).measure(nothing, "512 tokens") == GraphMemory(0, 0)


def test_a_process_in_which_nothing_runs_any_more_after_a_failure_is_replaced() -> None:
    def broken() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(CaptureError, match="illegal memory access"):
        Captures(fail).capture(broken, "512 tokens")


def test_ranks_leave_out_no_graph() -> None:
    with pytest.raises(CaptureError, match="The CUDA graph of 512 tokens can't be captured: operation not"):
        Captures(fail, needs_all=True).capture(nothing, "512 tokens")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("none left"), RuntimeError("CUDA error: out of memory")]
)
def test_lack_of_memory_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Failing:
        def __call__(self, work: Replay) -> Replay:
            raise error

        measure: Any = __call__

    monkeypatch.setattr(cuda_executor, "CudaCapture", Failing)
    save_model(random_model("llama", num_hidden_layers=1), tmp_path)
    device = device_of(logged_steps.started(tmp_path, "cpu"))
    with triton_kernels(), pytest.raises(ConfigError, match=r"--kv-memory .*--debug eager") as caught:
        CudaExecutor(device.model, device.tables, device.states)
    assert type(caught.value) is ConfigError


def test_steps_run_as_before_if_no_graph_can_be_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        __call__ = staticmethod(fail)
        measure = staticmethod(fail)

    save_model(random_model("llama", num_hidden_layers=1), tmp_path)
    expected = logged_steps.started(tmp_path, "cpu")
    driver = logged_steps.started(tmp_path, "cpu")
    device = device_of(driver)
    with triton_kernels():
        monkeypatch.setattr(cuda_executor, "CudaCapture", Failing)
        monkeypatch.setattr(Captures, "capture", lambda self, work, name: None)
        executor = CudaExecutor(device.model, device.tables, device.states)
        executor.capture(device)
        driver.runner._executor = executor
        driver.start(0)
        got = [driver.prefill(0, [5, 17, 3]), *driver.decode([0])]
    expected.start(0)
    assert got == [expected.prefill(0, [5, 17, 3]), *expected.decode([0])]


def test_the_measured_memory_counts_for_every_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arbora.runtime.model.forward_graphs import ForwardGraphs

    save_model(random_model("llama", num_hidden_layers=1), tmp_path)
    runner = logged_steps.started(tmp_path, "cpu").runner
    tables, states = runner._tables, runner._states
    graphs = ForwardGraphs(runner._model.config.cache_spec, torch.zeros(4, 64), tables, states)
    captures = Captures(fail, lambda work: GraphMemory(driver=1 << 20, tensors=5))
    assert graphs.bytes(runner._model, runner._kvs, captures) == len(list(graphs._kinds())) * (1 << 20) + 5
