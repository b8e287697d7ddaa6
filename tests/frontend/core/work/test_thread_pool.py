"""Long work takes turns between clients, and ends when its client leaves."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from arbora.frontend.core.work.caller import Caller, ClientGoneError
from arbora.frontend.core.work.thread_pool import FairThreadPool, Steps
from arbora.runtime.errors import RequestError
from http_world import eventually


def counted(count: int, log: list[str], name: str, gate: threading.Event | None = None) -> Steps[str]:
    for _ in range(count):
        if gate is not None:
            gate.wait(10)
        log.append(name)
        yield
    return name


async def test_a_job_gives_its_result() -> None:
    assert await FairThreadPool().run(Caller("a"), counted(3, [], "done")) == "done"


async def test_an_error_reaches_the_caller() -> None:
    def fails() -> Steps[None]:
        yield
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await FairThreadPool().run(Caller("a"), fails())


class PanicError(BaseException):
    """Like the exceptions of libraries that are written in Rust."""


async def test_a_panic_is_an_error_and_leaves_the_threads_working() -> None:
    work = FairThreadPool(threads=1)

    def panics() -> Steps[None]:
        yield
        raise PanicError("out of range")

    def panics_at_the_end(log: list[str]) -> Steps[None]:
        try:
            while True:
                log.append("step")
                yield
        finally:
            raise PanicError("when it is closed")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of range"):
            await asyncio.wait_for(work.run(Caller("a"), panics()), 10)
        log: list[str] = []
        caller = Caller("a", partial(eventually, partial(bool, log)))
        with pytest.raises(ClientGoneError):
            await asyncio.wait_for(work.run(caller, panics_at_the_end(log)), 10)
    assert await asyncio.wait_for(work.run(Caller("a"), counted(3, [], "done")), 10) == "done"


async def test_without_a_thread_the_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    work = FairThreadPool(threads=2)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(3):
            with pytest.raises(RequestError, match="can't start a thread") as refused:
                await asyncio.wait_for(work.run(Caller("a"), counted(3, [], "done")), 10)
            assert refused.value.status == 503
    assert await asyncio.wait_for(work.run(Caller("a"), counted(3, [], "done")), 10) == "done"


async def test_threads_that_run_do_the_work_when_no_more_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    work, log, gate = FairThreadPool(threads=3), list[str](), threading.Event()
    first = asyncio.ensure_future(work.run(Caller("a"), counted(1, log, "a", gate)))
    await asyncio.sleep(0)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    second = asyncio.ensure_future(work.run(Caller("b"), counted(1, log, "b")))
    await asyncio.sleep(0)
    gate.set()
    assert list(await asyncio.wait_for(asyncio.gather(first, second), 10)) == ["a", "b"]


async def test_clients_take_turns_however_many_jobs_one_of_them_has() -> None:
    work, log, gate = FairThreadPool(threads=1), list[str](), threading.Event()
    jobs = [asyncio.ensure_future(work.run(Caller("many"), counted(5, log, "many", gate))) for _ in range(6)]
    await asyncio.sleep(0)
    jobs.append(asyncio.ensure_future(work.run(Caller("one"), counted(5, log, "one", gate))))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*jobs)
    last = max(place for place, name in enumerate(log) if name == "one")
    assert last <= 2 * 5 + 1


async def test_one_client_never_occupies_all_threads() -> None:
    work, log, gate = FairThreadPool(threads=2), list[str](), threading.Event()
    stuck = [
        asyncio.ensure_future(work.run(Caller("stuck"), counted(1, log, "stuck", gate))) for _ in range(4)
    ]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(work.run(Caller("other"), counted(3, log, "other")), 10) == "other"
    assert "stuck" not in log
    gate.set()
    await asyncio.gather(*stuck)


async def test_work_ends_when_its_client_leaves() -> None:
    work, log, gone = FairThreadPool(), list[str](), asyncio.Event()

    async def left() -> None:
        await gone.wait()

    running = asyncio.ensure_future(work.run(Caller("a", left), counted(1_000_000, log, "step")))
    await eventually(lambda: len(log) > 10)
    gone.set()
    with pytest.raises(ClientGoneError):
        await running
    await eventually(lambda: not threads_of_ours())
    done = len(log)
    await asyncio.sleep(0.05)
    assert len(log) == done < 1_000_000


async def test_work_that_is_cancelled_ends() -> None:
    work, log = FairThreadPool(), list[str]()
    running = asyncio.ensure_future(work.run(Caller("a"), counted(1_000_000, log, "step")))
    await eventually(lambda: len(log) > 10)
    running.cancel()
    await eventually(lambda: not threads_of_ours())
    assert len(log) < 1_000_000


async def test_threads_end_with_the_work_and_start_again() -> None:
    work = FairThreadPool()
    for _ in range(3):
        await work.run(Caller("a"), counted(2, [], "done"))
        await eventually(lambda: not threads_of_ours())


def threads_of_ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "arbora-long-work"]
