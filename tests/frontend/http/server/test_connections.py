"""How long a connection may wait, how many there may be, and clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

import pytest
import pytest_asyncio
import uvloop
from arbora.frontend.http.server.limited_transport import LimitedTransport
from arbora.frontend.http.server.limits import Limits
from arbora.runtime.messages import Abort, Generate
from connection_objects import alive, without_collector
from http_world import HttpWorld, eventually, http_world
from raw_http import RawConnection, asked, connection, in_chunks, request

SHORT = Limits(head_seconds=0.4, body_seconds=0.4, body_step_bytes=1000, linger_seconds=0.4)
FEW = Limits(connections=20, refused_connections=10)
BODY = json.dumps({"prompt": "the cat", "max_tokens": 5}).encode()
VERSION = request("GET", "/version")
T = TypeVar("T")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(limits=SHORT) as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowded() -> AsyncIterator[HttpWorld]:
    async with http_world(limits=FEW) as world:
        yield world


async def opened(
    stack: AsyncExitStack, world: HttpWorld, count: int, data: bytes = b""
) -> list[RawConnection]:
    """`count` connections that have sent these bytes."""
    raws = [await stack.enter_async_context(connection(world.url)) for _ in range(count)]
    for raw in raws:
        await raw.send(data)
    return raws


async def while_dripping(raw: RawConnection, piece: bytes, awaited: Coroutine[None, None, T]) -> T:
    """The result of `awaited`, while a piece is sent every 0.05 s."""
    task = asyncio.create_task(awaited)
    while not task.done():
        await raw.send(piece)
        await asyncio.sleep(0.05)
    return task.result()


@contextlib.asynccontextmanager
async def long_stream(limits: Limits, words: int) -> AsyncIterator[tuple[HttpWorld, bytes]]:
    """A server that streams many words into small buffers, and the request for them."""
    async with http_world(limits=limits, context_length=100_000, send_buffer=16_384) as world:
        world.script = lambda request: world.ids("the cat sat on the mat ") * words
        fields = {"prompt": "the cat", "max_tokens": 5 * words, "stream": True, "logprobs": 5}
        body = json.dumps(fields).encode()
        yield world, request("POST", "/v1/completions", "Connection: close", body=body)


@pytest.mark.asyncio(loop_scope="module")
async def test_silent_connections_are_closed(world: HttpWorld) -> None:
    async with AsyncExitStack() as stack:
        raws = await opened(stack, world, 200)
        assert await asyncio.gather(*(raw.ends() for raw in raws)) == [True] * 200


@pytest.mark.parametrize("drip", [b"X: y\r\n", b"a", b"\r\n"])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_head_that_never_ends_is_refused(world: HttpWorld, drip: bytes) -> None:
    async with connection(world.url) as raw:
        if drip != b"\r\n":
            await raw.send(b"GET /version HTTP/1.1\r\nHost: localhost\r\n")

        if drip == b"\r\n":
            assert await while_dripping(raw, drip, raw.ends())
        else:
            answer = await while_dripping(raw, drip, raw.answer())
            assert answer.refusal == (408, "request_timeout")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_head_after_an_answer_has_its_own_time(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        await raw.send(VERSION)
        assert (await raw.answer()).status == 200
        await asyncio.sleep(0.8)  # longer than a head may take: an idle connection stays
        await raw.send(VERSION)
        assert (await raw.answer()).status == 200
        await raw.send(VERSION[:20])
        assert (await raw.answer()).status == 408
        assert await raw.ends()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_body_that_stops_arriving_is_refused(world: HttpWorld, chunked: bool) -> None:
    if chunked:
        head = request(
            "POST", "/v1/completions", "Transfer-Encoding: chunked", "Content-Type: application/json"
        )
        part = head + in_chunks(BODY, 5)[:20]
    else:
        part = request("POST", "/v1/completions", body=BODY)[:-10]
    async with connection(world.url) as raw:
        await raw.send(part)
        answer = await raw.answer()
        assert answer.refusal == (408, "request_timeout")
        assert await raw.ends()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_body_that_arrives_slowly_but_steadily_is_taken() -> None:
    """Each part of the body seems to take longer than `body_seconds`."""
    limits = Limits(body_seconds=60, body_step_bytes=1000, linger_seconds=0.2)
    body = json.dumps({"prompt": "the cat", "max_tokens": 5, "user": "u" * 20_000}).encode()
    *parts, last = (body[start : start + 2000] for start in range(0, len(body), 2000))
    async with http_world(limits=limits) as world, connection(world.url) as raw:
        await raw.send(request("POST", "/v1/completions", body=body)[: -len(body)])
        await eventually(lambda: any(_body_of(each) is not None for each in world.connections._open))
        (member,) = world.connections._open
        reading = _body_of(member)
        for number, part in enumerate(parts, 1):
            await raw.send(part)
            await eventually(lambda number=number: reading.received == 2000 * number)  # type: ignore[misc]
            reading._step_at = -61.0
            await eventually(lambda: reading._step_at > 0)
        await raw.send(last)
        assert (await raw.answer()).status == 200


def _body_of(connection: Any) -> Any:
    """The body that a connection is reading; None without one."""
    return connection._body


@pytest.mark.asyncio(loop_scope="module")
async def test_a_large_body_may_not_be_held_by_small_parts(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        await raw.send(request("POST", "/v1/completions", body=b" " * 400_000)[:-200_000])
        answer = await while_dripping(raw, b" " * 250, raw.answer())
        assert answer.refusal == (408, "request_timeout")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_body_must_end_soon_after_its_answer(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        await raw.send(request("POST", "/nothing", body=b" " * 400_000)[:-300_000])
        assert (await raw.answer()).status == 404
        assert await while_dripping(raw, b" " * 2500, raw.ends())


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_may_take_longer_than_its_head(world: HttpWorld) -> None:
    world.running.gate.clear()
    async with connection(world.url) as raw:
        await raw.send(request("POST", "/v1/completions", body=BODY))
        await asyncio.sleep(1.0)
        world.running.gate.set()
        assert (await raw.answer()).status == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_silent_connections_do_not_lock_others_out(crowded: HttpWorld) -> None:
    async with AsyncExitStack() as stack:
        raws = await opened(stack, crowded, 100)
        for _ in range(5):
            assert (await asked(crowded.url, VERSION)).status == 200
        assert await raws[0].ends()


@pytest.mark.parametrize("part", [VERSION[:30], request("POST", "/tokenize", body=BODY)[:-3]])
@pytest.mark.asyncio(loop_scope="module")
async def test_the_oldest_unfinished_request_is_ended_for_a_new_connection(
    crowded: HttpWorld, part: bytes
) -> None:
    async with AsyncExitStack() as stack:
        raws = await opened(stack, crowded, FEW.connections, part)
        await asyncio.sleep(0.1)
        assert (await asked(crowded.url, VERSION)).status == 200
        answer = await raws[0].answer()
        assert answer.refusal == (503, "too_many_connections")
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.asyncio(loop_scope="module")
async def test_the_connection_that_has_been_idle_longest_is_closed_for_a_new_one(crowded: HttpWorld) -> None:
    async with AsyncExitStack() as stack:
        first, second, *_ = await opened(stack, crowded, FEW.connections, VERSION)
        await first.answer()
        await second.answer()
        await first.send(VERSION)
        await first.answer()
        assert (await asked(crowded.url, VERSION)).status == 200
        assert await second.ends()
        await first.send(VERSION)
        assert (await first.answer()).status == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_beyond_the_most_connections_requests_get_503_and_open_ones_stay(
    crowded: HttpWorld,
) -> None:
    crowded.running.gate.clear()
    before = len(crowded.running.of_kind(Generate))
    async with AsyncExitStack() as stack:
        busy = await opened(stack, crowded, FEW.connections, request("POST", "/v1/completions", body=BODY))
        await eventually(lambda: len(crowded.running.of_kind(Generate)) == before + FEW.connections)
        for _ in range(3 * FEW.refused_connections):
            answer = await asked(crowded.url, request("POST", "/v1/completions", body=BODY))
            assert answer.refusal == (503, "too_many_connections")
            assert int(answer.headers["retry-after"]) > 0
        crowded.running.gate.set()
        assert [(await raw.answer()).status for raw in busy] == [200] * FEW.connections
    await eventually(lambda: crowded.engine.open_requests == 0)
    assert (await asked(crowded.url, VERSION)).status == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_that_does_not_read_its_stream_is_cut_off() -> None:
    limits = Limits(write_seconds=0.5)
    async with (
        long_stream(limits, words=18_000) as (world, asking),
        connection(world.url, limit=4096) as raw,
    ):
        await raw.send(asking)
        await eventually(lambda: bool(world.running.of_kind(Abort)))
        await eventually(lambda: world.engine.open_requests == 0)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_that_reads_its_stream_slowly_gets_it_whole() -> None:
    limits = Limits(write_seconds=1.5, head_seconds=1)
    received = b""
    async with (
        long_stream(limits, words=200) as (world, asking),
        connection(world.url, limit=30_000) as raw,
    ):
        await raw.send(asking)
        while part := await raw.reader.read(30_000):
            received += part
            await asyncio.sleep(0.1)
    assert received.endswith(b"0\r\n\r\n")
    assert b"data: [DONE]" in received


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_connection_ends_with_the_request_that_it_reads_while_the_server_stops(chunked: bool) -> None:
    coding = ("Transfer-Encoding: chunked",) if chunked else (f"Content-Length: {len(BODY)}",)
    body = in_chunks(BODY, 5) if chunked else BODY
    head = request("POST", "/tokenize", "Content-Type: application/json", *coding)
    async with http_world() as world, connection(world.url) as raw:
        await raw.send(head + body[:20])
        await eventually(lambda: any(_body_of(each) is not None for each in world.connections._open))
        world.stop()
        await asyncio.sleep(0.3)
        await raw.send(body[20:])
        answer = await raw.answer()
        assert (answer.status, answer.keeps_alive) == (200, False)
        assert await raw.ends()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(
    stream: bool, leaves: bool
) -> None:
    body = json.dumps({"prompt": "the cat", "max_tokens": 200 if leaves else 5, "stream": stream}).encode()
    async with http_world(limits=Limits()) as world:
        world.script = lambda _: world.ids("the cat sat on the mat ") * 40
        world.running.pauses = leaves  # after the first token of each request
        with without_collector():
            before = alive()
            for _ in range(3):
                world.running.gate.set()
                async with connection(world.url) as raw:
                    await raw.send(request("POST", "/v1/completions", body=body))
                    if not leaves:
                        assert (await raw.answer()).status == 200
                    elif stream:
                        assert await raw.reader.readexactly(9) == b"HTTP/1.1 "
                    await eventually(lambda: bool(world.engine.open_requests) == leaves)
                    assert alive() > before
                await eventually(lambda: not world.engine.open_requests)
            await eventually(lambda: alive() == before)


def test_writing_to_a_client_that_has_left_is_no_error() -> None:
    async def check() -> None:
        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.set_result(cast(asyncio.Transport, transport))

        loop = asyncio.get_running_loop()
        made: asyncio.Future[asyncio.Transport] = loop.create_future()
        server = await loop.create_server(Server, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        transport = await made
        limited = LimitedTransport(transport, Limits(), loop)
        transport.abort()
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError):
            transport.write(b"x")
        limited.write(b"x")
        limited.pause_reading()
        limited.resume_reading()
        limited.close(more_input=False)
        limited.check(loop.time() + 1000)
        writer.close()
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())


async def test_each_connection_input_and_request_counts_as_progress_of_the_process() -> None:
    marks = 0

    def progress() -> None:
        nonlocal marks
        marks += 1

    async with http_world(progress=progress) as world:
        for number in range(1, 6):
            assert (await asked(world.url, VERSION)).status == 200
            assert marks >= 3 * number
