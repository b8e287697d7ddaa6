"""Programs in an event loop: their streams, their outlines and the prompts that are computed ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import wait
from typing import Any

import arbora as ab
import pytest
from arbora.frontend.language.backend import OnText, Prompt, Reply, TextPrompt
from arbora.frontend.language.state import State
from arbora.frontend.language.stream import AsyncStream, Stream
from scripted_backend import ScriptedBackend


@ab.program
def plain(s: State, name: str) -> None:
    s += f"Hello {name}," + ab.gen("first")
    s += " and" + ab.gen("second")


@ab.program
async def waiting(s: State, name: str) -> None:
    s += f"Hello {name}," + ab.gen("first")
    await s.value("first")
    s += " and" + ab.gen("second")


BOTH = pytest.mark.parametrize("program", [plain, waiting], ids=["threads", "event loop"])


class Endless(ScriptedBackend):
    """Says one word and does not end the reply."""

    is_cancelled = False

    async def reply(self, prompt: Prompt, sampling: Mapping[str, Any], on_text: OnText | None) -> Reply:
        assert on_text is not None
        on_text(" yes")
        try:
            await asyncio.sleep(1000)
        finally:
            self.is_cancelled = True
        raise AssertionError("it is cancelled before")


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@BOTH
async def test_pieces_arrive_while_the_event_loop_goes_on(program: Any) -> None:
    stream: AsyncStream = program.astream("Ann", backend=ScriptedBackend())
    parts = [part async for part in stream]
    assert [part.text for part in parts if part.name == "first"] == list(" yes")
    assert "".join(part.text for part in parts) == " yes yes"
    assert stream.state is not None
    assert stream.state["second"] == " yes"
    assert [part async for part in stream] == []


@BOTH
async def test_a_stream_that_is_left_cancels_its_program(program: Any) -> None:
    backend = Endless()
    async for part in program.astream("Ann", backend=backend):
        assert part == ("first", " yes")
        break
    await until(lambda: backend.is_cancelled)


@BOTH
async def test_a_timeout_around_a_stream_cancels_its_program(program: Any) -> None:
    backend = Endless()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10) as limit:
            async for part in program.astream("Ann", backend=backend):
                assert part.text == " yes"
                limit.reschedule(0)  # now that the reply has begun
    await until(lambda: backend.is_cancelled)


@BOTH
async def test_a_stream_that_is_closed_ends_its_loop_and_cancels_its_program(program: Any) -> None:
    backend = Endless()
    stream: AsyncStream = program.astream("Ann", backend=backend)
    async for part in stream:
        assert part.text == " yes"
        await stream.aclose()
    assert stream.state is None
    assert [part async for part in stream] == []
    await until(lambda: backend.is_cancelled)


@BOTH
def test_the_same_holds_without_an_event_loop(program: Any) -> None:
    backend = Endless()
    stream: Stream = program.stream("Ann", backend=backend)
    for part in stream:
        assert part.text == " yes"
        stream.close()
        wait([stream._program], timeout=10)  # its thread has ended
    assert stream.state is None
    assert list(stream) == []
    asyncio.run(until(lambda: backend.is_cancelled))


@BOTH
async def test_a_stream_raises_the_programs_error(program: Any) -> None:
    def say(prompt: Prompt, sampling: Mapping[str, Any]) -> str:
        raise ValueError("no")

    with pytest.raises(ab.ProgramError, match=r"no"):
        async for _ in program.astream("Ann", backend=ScriptedBackend(say)):
            pass


@ab.program
async def grading(s: State, essay: str) -> None:
    s += essay
    await s.finished()

    async def grade(fork: State, number: int) -> str:
        fork += f" Judge {number}:"
        fork += ab.gen("grade")
        await fork.finished()
        return str(await fork.value("grade"))

    async with asyncio.TaskGroup() as group:
        for number, fork in enumerate(s.fork(2)):
            group.create_task(grade(fork, number))
    s += ab.gen("verdict")


def test_the_outline_of_an_async_program_ends_where_it_reads() -> None:
    outline = ab.trace(grading, "An essay.")
    assert [call.prompt for call in outline.calls] == [
        TextPrompt(f"An essay. Judge {number}:") for number in range(2)
    ]
    assert outline.reads is not None
    assert 'await fork.value("grade")' in outline.reads


def test_an_async_program_that_reads_nothing_is_outlined_as_a_whole() -> None:
    @ab.program
    async def two(s: State) -> None:
        s += "Once" + ab.gen("first")
        await asyncio.sleep(0)
        await s.finished()
        s += ab.gen("second")

    outline = ab.trace(two)
    assert [call.name for call in outline.calls] == ["first", "second"]
    assert outline.reads is None


@pytest.mark.parametrize("read", [lambda forks: forks.values("x"), lambda forks: forks[0].value("x")])
def test_a_read_in_a_task_of_its_own_is_named(read: Any) -> None:
    @ab.program
    async def reads(s: State) -> None:
        forks = s.fork(2)
        forks += "Once" + ab.gen("x")
        await asyncio.gather(read(forks))

    outline = ab.trace(reads)
    assert "test_async_programs.py" in str(outline.reads)


@pytest.mark.filterwarnings("error")  # of coroutines that are never awaited
def test_values_of_a_call_that_one_copy_lacks_are_refused() -> None:
    @ab.program
    async def lacking(s: State) -> None:
        forks = s.fork(2)
        forks[0] += ab.gen("x")
        await forks.values("x")

    with pytest.raises(KeyError, match=r"no call is named"):
        lacking.run(backend=ScriptedBackend())


def test_an_error_of_an_async_program_is_raised_by_its_outline() -> None:
    @ab.program
    async def failing(s: State) -> None:
        raise LookupError("no such record")

    with pytest.raises(LookupError, match=r"no such record"):
        ab.trace(failing)


def test_known_prompts_of_an_async_program_are_computed_ahead() -> None:
    backend = ScriptedBackend()
    assert ab.prewarm(grading, "An essay.", backend=backend) == 10
    assert backend.prefilled == [TextPrompt(f"An essay. Judge {number}:") for number in range(2)]
    assert backend.prompts == []


async def test_in_an_event_loop_an_outline_is_made_in_a_thread() -> None:
    assert len((await asyncio.to_thread(ab.trace, grading, "An essay.")).calls) == 2
    with pytest.raises(RuntimeError, match=r"await asyncio.to_thread\(arbora.trace, program"):
        ab.trace(grading, "An essay.")
    with pytest.raises(RuntimeError, match=r"await asyncio.to_thread\(arbora.prewarm, program"):
        ab.prewarm(grading, "An essay.", backend=ScriptedBackend())
