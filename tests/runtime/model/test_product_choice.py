"""The clock that chooses products, with a graph and events of its own making, and the lines that it logs."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain

import pytest
import torch
from arbora.kernels.linear import Choice
from arbora.kernels.linear.few_rows_cuda import Tiling
from arbora.runtime.model import product_choice
from arbora.runtime.model.product_choice import RUNS, ReplayClock, describe


class FakeEvent:
    """Records how much work is done, in milliseconds."""

    def __init__(self, done: list[float]) -> None:
        self._done, self._at = done, 0.0

    def record(self) -> None:
        self._at = sum(self._done)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: FakeEvent) -> float:
        return other._at - self._at


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The milliseconds of each piece of work that replays did."""
    pieces: list[float] = []
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent(pieces))
    return pieces


def test_the_shortest_of_some_replays_counts(done: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_choice, "CudaCapture", lambda: lambda work: work)
    timed = [9.0, 4.0, 2.0, 7.0, 7.0]
    assert len(timed) == RUNS
    times = chain.from_iterable((1.0, each) for each in timed)  # each one follows a replay that is not timed
    seconds = ReplayClock(torch.zeros(1)).seconds(lambda: done.append(next(times)))
    assert seconds == 2e-3 and len(done) == 2 * RUNS


def test_weights_that_the_cache_holds_after_a_run_are_read_from_memory_in_the_next(
    done: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Others(torch.Tensor):
        """Takes the place of the work's weights in the cache."""

        def amax(self, *_: object, **__: object) -> torch.Tensor:
            cached.clear()
            done.append(5.0)
            return self

    def work() -> None:
        done.append(1.0 if cached else 3.0)
        cached.append("weights")

    cached: list[str] = []
    monkeypatch.setattr(product_choice, "CudaCapture", lambda: lambda work: work)
    others = torch.zeros(1).as_subclass(Others)
    assert ReplayClock(others).seconds(work) == 3e-3


def test_work_that_cannot_be_captured_takes_for_ever(
    done: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(product_choice, "CudaCapture", lambda: fails)
    clock = ReplayClock(torch.zeros(1))
    assert clock.seconds(lambda: None) == math.inf and not done
    clock.log_failures()
    assert "operation not permitted" in caplog.text


def test_the_log_has_a_line_for_each_shape() -> None:
    choices = [
        Choice(6144, 4096, 1, 14e-6, 12.34e-6, Tiling(4, 1024)),
        Choice(6144, 4096, 2, 14e-6, 15e-6, None),
        Choice(4096, 12288, 1, 25e-6, 24.9e-6, None),
    ]
    assert describe(choices) == [
        "products 4096 → 6144: 1 row by our kernel in 12.3 µs (cuBLAS 14.0), "
        "2 rows by cuBLAS in 14.0 µs (our kernel 15.0)",
        "products 12288 → 4096: 1 row by cuBLAS in 25.0 µs (our kernel 24.9)",
    ]
