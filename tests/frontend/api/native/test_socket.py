"""GET /generate/socket with the `websockets` client and a scripted scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.api.native import socket as native_socket
from arbora.frontend.http.server.exchange import UPGRADE, Upgrade
from arbora.frontend.http.server.limits import Limits
from arbora.runtime.api_keys import plain_key
from arbora.runtime.messages import Abort
from connection_objects import alive, without_collector
from fake_scheduler import long_turn
from http_world import HttpWorld, eventually, http_world, last_generate
from reply_schemas import check, schema_of
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")
START = b'{"type":"generate","id":"a","request":{"prompt":"Hello"}}'
TEXT = "the cat sat on the mat"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=1024) as world:
        world.script = world.says(TEXT)
        yield world


@contextlib.asynccontextmanager
async def opened(world: HttpWorld, **options: Any) -> AsyncIterator[ClientConnection]:
    url = world.url.replace("http", "ws", 1) + "/generate/socket"
    async with connect(url, **options) as socket:
        yield socket


async def send(socket: ClientConnection, id: str, **request: Any) -> None:
    await socket.send(json.dumps({"type": "generate", "id": id, "request": request}))


async def received(socket: ClientConnection) -> Any:
    async with asyncio.timeout(60):
        return json.loads(await socket.recv())


async def until_end(socket: ClientConnection, id: str) -> list[Any]:
    """The messages of a request, to its last."""
    found: list[Any] = []
    while not found or found[-1]["type"] == "event":
        message = await received(socket)
        if message["id"] == id:
            found.append(message)
    return found


async def close_code(socket: ClientConnection) -> tuple[int, str]:
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(60):
            while True:
                await socket.recv()
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


ATTEMPTS = 10  # on a busy machine all tokens of a short reply may come in one event


async def test_a_socket_that_has_closed_is_freed_without_the_garbage_collector() -> None:
    async with http_world() as world:
        with without_collector():
            before = alive()
            for _ in range(3):
                async with opened(world) as socket:
                    await send(socket, "a", prompt="Hello")
                    assert (await until_end(socket, "a"))[-1]["type"] == "reply"
                    assert alive() > before
            await eventually(lambda: alive() == before)


async def test_a_stream_has_the_events_of_post_generate(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.running, "after_step", long_turn)
    fields: Any = {"prompt": "Hello", "logprobs": 1, "seed": 1}
    whole = (await world.http.post("/generate", json=fields)).json()
    async with opened(world) as socket:
        for _ in range(ATTEMPTS):
            await send(socket, "a", stream=True, **fields)
            *events, last = await until_end(socket, "a")
            if len(events) > 1:
                break
    assert len(events) > 1
    (choice,) = whole["choices"]
    parts = [message["event"] for message in events]
    assert "".join(part["text"] for part in parts) == choice["text"] == TEXT
    for name in ("token_ids", "logprobs", "top_logprobs"):
        assert [each for part in parts for each in part[name]] == choice[name]
    assert last["type"] == "end" and last["end"]["usage"] == whole["usage"]


async def test_without_stream_one_message_has_the_whole_answer(world: HttpWorld) -> None:
    fields: Any = {"prompt_token_ids": [5, 6, 7], "prompt_logprobs": 1, "n": 2}
    whole = (await world.http.post("/generate", json=fields)).json()
    async with opened(world) as socket:
        await send(socket, "a", **fields)
        (message,) = await until_end(socket, "a")
    assert message["type"] == "reply"
    assert {**message["reply"], "id": 0} == {**whole, "id": 0}


async def test_requests_of_one_connection_run_together_and_ids_can_be_used_again(world: HttpWorld) -> None:
    async with opened(world) as socket:
        for _ in range(2):
            for number in range(5):
                await send(socket, str(number), prompt=f"Hello {number}", stream=True)
            ends = set[str]()
            texts = dict.fromkeys("01234", "")
            while len(ends) < 5:
                message = await received(socket)
                if message["type"] == "end":
                    ends.add(message["id"])
                else:
                    texts[message["id"]] += message["event"]["text"]
            assert set(texts.values()) == {TEXT}


async def test_every_message_matches_the_openapi_document(world: HttpWorld) -> None:
    document = (await world.http.get("/openapi.json")).json()
    schema = schema_of(document, "/generate/socket", "101", "application/json", method="get")
    kinds = set[str]()
    async with opened(world) as socket:
        await send(socket, "a", prompt="Hello", stream=True, logprobs=1)
        await send(socket, "b", prompt="Hello")
        await send(socket, "c", prompt=5)
        await socket.send("[]")
        ended = 0
        while ended < 4:
            message = await received(socket)
            check(message, schema)
            kinds.add(message["type"])
            ended += message["type"] != "event"
    assert kinds == {"event", "end", "reply", "error"}


async def test_a_cancelled_request_ends_in_the_scheduler_and_others_go_on(world: HttpWorld) -> None:
    world.running.gate.clear()
    try:
        async with opened(world) as socket:
            await send(socket, "a", prompt="Hello", stream=True)
            await send(socket, "b", prompt="Hello", stream=True)
            await world.until(lambda: len(world.running.rows) == 2)
            await socket.send(json.dumps({"type": "cancel", "id": "a"}))
            assert await until_end(socket, "a") == [{"type": "cancelled", "id": "a"}]
            await world.until(lambda: len(world.running.rows) == 1)
            world.running.gate.set()
            assert (await until_end(socket, "b"))[-1]["type"] == "end"
            await socket.send(json.dumps({"type": "cancel", "id": "a"}))  # has ended: no effect
            await send(socket, "a", prompt="Hello")
            assert (await until_end(socket, "a"))[-1]["type"] == "reply"
    finally:
        world.running.gate.set()


async def test_requests_of_a_client_that_leaves_are_aborted(world: HttpWorld) -> None:
    before = len(world.running.of_kind(Abort))
    world.running.gate.clear()
    try:
        async with opened(world) as socket:
            await send(socket, "a", prompt="Hello", stream=True)
            await send(socket, "b", prompt="Hello")
            await world.until(lambda: len(world.running.rows) == 2)
        await world.until(lambda: not world.running.rows)
        assert len(world.running.of_kind(Abort)) == before + 2
    finally:
        world.running.gate.set()


@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({}, "prompt"),
        ({"prompt": "a", "regx": "a"}, "regx"),
    ],
)
async def test_a_wrong_request_gets_the_error_of_post_generate(
    world: HttpWorld, request_body: Any, param: str
) -> None:
    refused = await world.http.post("/generate", json=request_body)
    async with opened(world) as socket:
        await send(socket, "a", **request_body)
        (message,) = await until_end(socket, "a")
    assert message == {"type": "error", "id": "a", "status": refused.status_code, **refused.json()}
    assert message["error"]["param"] == param


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not valid JSON"),
        ('{"type": "cancel", "id": "\\ud83d"}', "at byte 26 is half of a surrogate pair"),
        ('{"type": "generate", "id": "a", "request": ' + "[" * 100_000, "nested too deeply"),
        ("5", "Expected `object`"),
        ('{"type": "generat"}', "Invalid value 'generat'"),
        ('{"type": "cancel"}', "missing required field `id`"),
        ('{"type": "cancel", "id": 5}', "Expected `str`, got `int` - at `$.id`"),
        ('{"type": "cancel", "id": "a", "stream": true}', "unknown field `stream`"),
    ],
    ids=range(8),
)
async def test_a_wrong_message_gets_an_error_and_the_connection_stays(
    world: HttpWorld, text: str, part: str
) -> None:
    async with opened(world) as socket:
        await socket.send(text)
        message = await received(socket)
        assert (message["type"], message["id"], message["status"]) == ("error", None, 400)
        assert part in message["error"]["message"]
        await send(socket, "a", prompt="Hello")
        assert (await until_end(socket, "a"))[-1]["type"] == "reply"


async def test_an_id_of_an_open_request_is_refused(world: HttpWorld) -> None:
    world.running.gate.clear()
    try:
        async with opened(world) as socket:
            await send(socket, "a", prompt="Hello")
            await send(socket, "a", prompt="Hello")
            message = await received(socket)
            assert (message["id"], message["error"]["code"]) == (None, "id_in_use")
            world.running.gate.set()
            assert (await until_end(socket, "a"))[-1]["type"] == "reply"
    finally:
        world.running.gate.set()


async def test_one_connection_has_a_limit_of_open_requests(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_socket, "MAX_OPEN", 2)
    world.running.gate.clear()
    try:
        async with opened(world) as socket:
            for id in "abc":
                await send(socket, id, prompt="Hello")
            message = await received(socket)
            assert (message["id"], message["status"], message["retry_after"]) == ("c", 429, 5)
    finally:
        world.running.gate.set()


async def test_a_page_of_another_site_is_refused(world: HttpWorld) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with opened(world, origin="https://evil.example"):
            pass
    response = refused.value.response
    assert response.status_code == 403
    assert json.loads(response.body)["error"]["code"] == "origin_not_allowed"
    async with opened(world, origin="http://localhost:8000") as socket:
        await send(socket, "a", prompt="Hello")
        assert (await until_end(socket, "a"))[-1]["type"] == "reply"


async def test_a_request_for_a_foreign_host_is_refused(world: HttpWorld) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with opened(world, additional_headers={"host": "evil.example"}):
            pass
    assert refused.value.response.status_code in (400, 403)


async def test_a_server_with_keys_asks_for_one_and_notices_when_it_is_withdrawn() -> None:
    async with http_world(api_keys=("secret", "other"), context_length=1024) as world:
        with pytest.raises(InvalidStatus) as refused:
            async with opened(world):
                pass
        assert refused.value.response.status_code == 401
        async with opened(world, additional_headers={"authorization": "Bearer secret"}) as socket:
            await send(socket, "a", prompt="Hello")
            assert (await until_end(socket, "a"))[-1]["type"] == "reply"
            assert last_generate(world).tenant == plain_key("secret").sha256[:16]
            world.http_service.keys.replace([plain_key("other")])
            await send(socket, "b", prompt="Hello")
            (message,) = await until_end(socket, "b")
            assert (message["status"], message["error"]["code"]) == (401, "invalid_api_key")


async def test_each_request_has_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name.endswith("request_log")]

    async with http_world(log_requests="text", context_length=1024) as world:
        async with opened(world) as socket:
            await send(socket, "a", prompt="Hello")
            await send(socket, "b", prompt=5)
            await until_end(socket, "a")
            await world.until(lambda: len(lines()) == 2)
        await world.until(lambda: len(lines()) == 3)
    found = sorted(each.partition(" ")[2] for each in lines())  # without their times
    assert found[0].startswith("GET /generate/socket 101 ")
    assert found[1].startswith("POST /generate/socket 200 gen-") and "finish=stop" in found[1]
    assert found[2].startswith("POST /generate/socket 400 ") and "code=invalid_type reason=" in found[2]


async def test_a_server_that_stops_closes_its_sockets_as_going_away() -> None:
    async with http_world(context_length=1024) as world, opened(world) as socket:
        await send(socket, "a", prompt="Hello")
        await until_end(socket, "a")
        world.stop()
        code, reason = await close_code(socket)
        assert (code, reason) == (1001, "The server closes this connection.")


async def test_an_idle_socket_makes_place_for_a_new_connection() -> None:
    limits = Limits(connections=8, spared_seconds=0.05)
    async with http_world(limits=limits, context_length=1024) as world, contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(opened(world)) for _ in range(8)]
        await asyncio.sleep(0.1)
        assert (await world.http.get("/version")).status_code == 200
        code, _ = await close_code(sockets[0])
        assert code == 1001
        await send(sockets[-1], "a", prompt="Hello")
        assert (await until_end(sockets[-1], "a"))[-1]["type"] == "reply"


class Text(bytearray):
    """The text of a message, of which there can be weak references."""


class GivenMessages:
    """A socket of one message, which then waits until nothing holds the message any more."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.is_released = False

    async def messages(self) -> AsyncGenerator[bytes, None]:
        text: Any = Text(self._text)
        held = weakref.ref(text)
        yield text
        del text
        async with asyncio.timeout(5):
            while held() is not None:
                await asyncio.sleep(0.01)
        self.is_released = True

    async def send(self, text: str) -> None:
        pass


@pytest.mark.parametrize("size", [0, 10_000], ids=["small", "large"])
@pytest.mark.parametrize("text", [b'{"type":"cancel","id":"a"}', b"[]", START])
async def test_a_connection_does_not_hold_the_text_of_its_last_message(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch, text: bytes, size: int
) -> None:
    async def answer(*_: object) -> None:
        pass

    monkeypatch.setattr(native_socket._Session, "_answer", answer)
    socket: Any = GivenMessages(text + b" " * size)
    scope = {UPGRADE: Upgrade(asyncio.Event(), lambda busy: None)}
    gc.disable()
    try:
        await native_socket._Session(world.http_service, scope, socket, "client")._read()
    finally:
        gc.enable()
    assert socket.is_released


async def test_a_request_does_not_hold_its_body_once_it_was_read() -> None:
    body: Any = Text(b"{}")
    held = weakref.ref(body)
    other: Any = None
    exchange = native_socket._Exchange(body, other, other)
    del body
    message: Any = await exchange.receive()
    assert message["body"] == b"{}"
    del message
    assert held() is None
