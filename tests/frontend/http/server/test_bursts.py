"""Many connections and requests at the same moment: all are answered, and the event loop serves others
meanwhile."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
import uvloop
from arbora.frontend.app.apis import APIS
from arbora.frontend.http.apis import Api, Apis, route
from arbora.frontend.http.http_service import HttpService
from arbora.frontend.http.server.acceptor import Acceptor
from arbora.frontend.http.server.connection import Connection
from arbora.frontend.http.server.connections import Connections, StartLimit
from arbora.frontend.http.server.limits import MAX_READ_BYTES, Limits
from arbora.runtime.messages import Generate
from http_world import HttpWorld, eventually, http_world
from msgspec.structs import replace
from raw_http import Answer, RawConnection, asked, connection, in_chunks, request
from starlette.requests import Request
from starlette.responses import Response

CLOSES_SILENT = Limits(connections=20, refused_connections=10, head_seconds=60)
FEW = replace(CLOSES_SILENT, linger_seconds=60, spared_seconds=60)  # a slow machine reaches no deadline
BODY = json.dumps({"prompt": "the cat", "max_tokens": 5}).encode()
COMPLETION = request("POST", "/v1/completions", body=BODY)
BURST = 150


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowded() -> AsyncIterator[HttpWorld]:
    async with http_world(limits=FEW) as world:
        yield world


async def answer_and_close(raw: RawConnection) -> Answer:
    answer = await raw.answer()
    raw.writer.close()
    return answer


async def opened(stack: AsyncExitStack, world: HttpWorld, count: int) -> list[RawConnection]:
    return [await stack.enter_async_context(connection(world.url)) for _ in range(count)]


@pytest.mark.asyncio(loop_scope="module")
async def test_each_connection_of_a_burst_beyond_the_limit_gets_an_answer(crowded: HttpWorld) -> None:
    async with AsyncExitStack() as stack:
        raws = await opened(stack, crowded, BURST)  # before the first sends anything
        for raw in raws:
            raw.writer.write(COMPLETION)
        answers = await asyncio.gather(*map(answer_and_close, raws))
    statuses = Counter(answer.status for answer in answers)
    assert statuses[200] >= FEW.connections
    assert statuses[200] + statuses[503] == BURST
    for answer in answers:
        assert answer.status == 200 or answer.refusal == (503, "too_many_connections")


@pytest.mark.asyncio(loop_scope="module")
async def test_probes_are_answered_when_all_connections_are_busy(crowded: HttpWorld) -> None:
    crowded.running.gate.clear()
    before = len(crowded.running.of_kind(Generate))
    async with AsyncExitStack() as stack:
        busy = await opened(stack, crowded, FEW.connections)
        for raw in busy:
            await raw.send(COMPLETION)
        await eventually(lambda: len(crowded.running.of_kind(Generate)) == before + FEW.connections)
        for _ in range(2 * FEW.refused_connections):
            health = await asked(crowded.url, request("GET", "/health"))
            assert (health.status, health.keeps_alive) == (200, False)
        assert (await asked(crowded.url, request("GET", "/ping"))).status == 200
        models = await asked(crowded.url, request("GET", "/v1/models"))
        assert models.refusal == (503, "too_many_connections")
        crowded.running.gate.set()
        assert [(await raw.answer()).status for raw in busy] == [200] * FEW.connections


async def test_silent_connections_beyond_the_limit_are_closed_for_others() -> None:
    async with http_world(limits=CLOSES_SILENT) as world, AsyncExitStack() as stack:
        world.running.gate.clear()
        busy = await opened(stack, world, CLOSES_SILENT.connections)
        for raw in busy:
            await raw.send(COMPLETION)
        await eventually(lambda: len(world.running.of_kind(Generate)) == CLOSES_SILENT.connections)
        silent = await opened(stack, world, CLOSES_SILENT.refused_connections)
        health = await asked(world.url, request("GET", "/health"))
        assert health.status == 200
        assert await silent[0].ends()
        world.running.gate.set()
        assert [(await raw.answer()).status for raw in busy] == [200] * CLOSES_SILENT.connections


async def test_few_requests_start_in_one_turn_of_the_event_loop() -> None:
    turn, begun = 0, Counter[int]()

    async def count(http: HttpService, request: Request) -> Response:
        begun[turn] += 1
        return Response()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    loop = asyncio.get_running_loop()
    api = Api(lambda http: [route("GET", "/count", http, count)], APIS.default.error_json)
    async with http_world(apis=Apis(APIS.default, (api,))) as world, AsyncExitStack() as stack:
        raws = await opened(stack, world, BURST)
        for raw in raws:  # these connections are accepted before the burst
            await raw.send(request("GET", "/version"))
            assert (await raw.answer()).status == 200
        loop.call_soon(next_turn)
        for raw in raws:
            raw.writer.write(request("GET", "/count") * 2)
        answers = [(await raw.answer()).status for raw in raws for _ in range(2)]
        assert answers == [200] * 2 * BURST
        assert begun.total() == 2 * BURST
        assert max(begun.values()) <= 2 * Limits().started_per_turn


@pytest.mark.parametrize("path", ["/tokenize", "/nothing"])
def test_little_of_a_body_is_read_in_one_turn_of_the_event_loop(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, read = 0, Counter[int]()
    take = Connection.buffer_updated

    def count(self: Connection, nbytes: int) -> None:
        read[turn] += nbytes
        take(self, nbytes)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    async def check() -> None:
        async with http_world() as world, connection(world.url) as raw:
            next_turn()
            sent = request("POST", path, "Transfer-Encoding: chunked") + in_chunks(b" " * 300_000, 1)
            await raw.send(sent)
            assert (await raw.answer()).status == (404 if path == "/nothing" else 400)
            await raw.send(request("GET", "/version"))
            assert (await raw.answer()).status == 200
            assert read.total() > len(sent)
            assert max(read.values()) <= MAX_READ_BYTES

    monkeypatch.setattr(Connection, "buffer_updated", count)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())


def test_a_client_that_sends_all_of_a_long_body_gets_the_answer_that_came_before_its_end() -> None:
    async def answer_without_body(http: HttpService, request: Request) -> Response:
        await asyncio.sleep(0.1)  # until reading has stopped, as nothing takes the body
        return Response("early")

    async def check() -> None:
        api = Api(lambda http: [route("POST", "/early", http, answer_without_body)], APIS.default.error_json)
        async with http_world(apis=Apis(APIS.default, (api,))) as world, connection(world.url) as raw:
            await raw.send(request("POST", "/early", "Connection: close", body=bytes(8_000_000)))
            assert (await raw.answer()).body == b"early"
            assert await raw.ends()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())


async def test_waiting_requests_start_in_order_a_few_in_each_turn() -> None:
    limit, order = StartLimit(3), list[int]()
    for number in range(10):
        if limit.take(lambda number=number: order.append(number)):  # type: ignore[misc]
            order.append(number)
    seen = [list(order)]
    while len(order) < 10:
        await asyncio.sleep(0)
        seen.append(list(order))
    assert seen == [list(range(most)) for most in (3, 6, 9, 10)]


async def test_a_request_that_waits_long_for_its_turn_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, busy = Limits(head_seconds=2), True
    take, waiting = StartLimit.take, list[Callable[[], None]]()

    def take_later(limit: StartLimit, start: Callable[[], None]) -> bool:
        if busy:
            waiting.append(start)
        return not busy and take(limit, start)

    monkeypatch.setattr(StartLimit, "take", take_later)
    async with http_world(limits=limits) as world, connection(world.url) as raw:
        await raw.send(COMPLETION[:-1])
        await eventually(lambda: len(waiting) == 1)
        assert (await asked(world.url, request("GET", "/health"))).status == 200  # waits for no turn
        await asyncio.sleep(1.5 * limits.head_seconds)
        busy = False
        waiting.pop()()
        await raw.send(COMPLETION[-1:])
        assert (await raw.answer()).status == 200


class OutOfDescriptors(socket.socket):
    """A listening socket that accepts no connection until `is_free`."""

    is_free = False

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_free:
            return super().accept()
        raise OSError(errno.EMFILE, "Too many open files")


async def test_connections_wait_while_the_process_has_no_descriptor() -> None:
    accepted = 0

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal accepted
            accepted += 1
            transport.close()

    with OutOfDescriptors() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        acceptor = Acceptor(listener, Echo, Connections(FEW), FEW)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        await asyncio.sleep(0.3)
        assert accepted == 0
        listener.is_free = True
        assert await reader.read() == b""
        assert accepted == 1
        writer.close()
        acceptor.close()
