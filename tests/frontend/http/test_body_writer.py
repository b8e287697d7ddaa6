"""Streams whose tokens are written at once have the same bytes as those that ASGI's `send` writes."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.api.openai.chat_answers import ChatStream
from arbora.frontend.core.replica.engine_client import EngineClient
from arbora.frontend.http.server.exchange import Exchange
from arbora.runtime.messages import Abort, Outputs
from http_world import HELLO, MODEL, HttpWorld, eventually, http_world
from raw_http import asked, connection, request
from websockets.asyncio.client import connect

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
TEXT = "Hello, how are you? 😀 fine"
CALL = 'Sure <tool_call>\n{"name": "get", "arguments": {"a": "b c d"}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    }
]
STREAMS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "chat": (CHAT, {"messages": HELLO}, [TEXT]),
    "three choices": (CHAT, {"messages": HELLO, "n": 3}, [TEXT, "ok", "and a longer text follows here"]),
    "log-probabilities": (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 3}, [TEXT]),
    "usage": (
        CHAT,
        {"messages": HELLO, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        [TEXT],
    ),
    "tool calls": (CHAT, {"messages": HELLO, "tools": TOOLS}, [CALL]),
    "several prompts": (
        "/v1/completions",
        {"prompt": ["a", "b"], "n": 2, "logprobs": 2, "echo": True},
        ["Hello, how", "x", "yy 😀 zz"],
    ),
    "responses": ("/v1/responses", {"input": "Hello"}, [TEXT]),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 100}, [TEXT]),
    "ollama chat": ("/api/chat", {"messages": HELLO}, [TEXT]),
    "ollama": ("/api/generate", {"prompt": "x"}, [TEXT]),
    "native": ("/generate", {"prompt": "x"}, [TEXT]),
}
IDS = re.compile(r"\b(chatcmpl|cmpl|msg|resp|gen|item|rs|fc|call|toolu|req)[-_][A-Za-z0-9]+")
TIMES = re.compile(r'"(created|created_at|completed_at|\w+_duration)":("[^"]*"|[0-9.]+)')


def wait_for_readers(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a step begin when the outputs of the last one have been read."""
    delivered, deliver = asyncio.Event(), EngineClient._deliver

    def noted(engine: EngineClient, outputs: Outputs, is_late: bool) -> None:
        deliver(engine, outputs, is_late)
        delivered.set()

    async def read() -> None:
        await delivered.wait()
        delivered.clear()
        for _ in range(20):  # turns of the event loop, in which a stream's task sends its first event
            await asyncio.sleep(0)

    monkeypatch.setattr(EngineClient, "_deliver", noted)
    world.running.after_step = read


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=4096) as world:
        wait_for_readers(world, monkeypatch)
        yield world


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The parts that were written at once."""
    parts: list[bytes] = []
    write = Exchange.write

    def noted(self: Exchange, part: bytes) -> None:
        parts.append(part)
        write(self, part)

    monkeypatch.setattr(Exchange, "write", noted)
    return parts


def streamed(path: str = CHAT, **fields: Any) -> bytes:
    body = {"model": MODEL, "stream": True, **(fields or {"messages": HELLO})}
    return request("POST", path, body=json.dumps(body).encode())


def events(body: bytes) -> list[str]:
    """The events without ids and times. Choices come in any order."""
    return sorted(TIMES.sub("", IDS.sub("", body.decode())).split("\n"))


@pytest.mark.parametrize("name", STREAMS)
async def test_every_api_writes_the_same_bytes_at_once(
    world: HttpWorld, written: list[bytes], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, fields, texts = STREAMS[name]
    world.script = world.says(*texts)
    at_once = await asked(world.url, streamed(path, **fields))
    assert written and all(written)
    monkeypatch.setattr(Exchange, "is_ready", property(lambda self: False))
    written.clear()
    in_turn = await asked(world.url, streamed(path, **fields))
    assert not written
    assert at_once.status == in_turn.status == 200
    assert events(at_once.body) == events(in_turn.body)


async def test_streams_on_one_connection_follow_each_other(world: HttpWorld, written: list[bytes]) -> None:
    world.script = world.says(TEXT)
    async with connection(world.url) as raw:
        await raw.send(3 * streamed())
        answers = [await raw.answer() for _ in range(3)]
    assert written
    first, *others = [events(answer.body) for answer in answers]
    assert others == [first, first]


async def test_a_client_that_does_not_read_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    most, text = 0, " ".join(f"w{number}" for number in range(2000))
    write = Exchange.write

    def noted(self: Exchange, part: bytes) -> None:
        nonlocal most
        write(self, part)
        most = max(most, self._transport._transport.get_write_buffer_size())

    monkeypatch.setattr(Exchange, "write", noted)
    async with http_world(context_length=1 << 16, send_buffer=4096) as world:
        world.script = world.says(text)
        wait_for_readers(world, monkeypatch)
        async with connection(world.url, limit=4096) as raw:
            await raw.send(streamed(CHAT, messages=HELLO, max_tokens=20_000))
            await eventually(lambda: bool(world.running.rows))
            await eventually(lambda: not world.running.rows)
            answer = await raw.answer(60)
    assert 0 < most < 1 << 17
    chunks = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line[6:7] == "{"]
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks) == text


async def test_tokens_that_are_written_at_once_are_measured(world: HttpWorld, written: list[bytes]) -> None:
    world.script = world.says(TEXT)
    await asked(world.url, streamed())
    assert len(written) > 3
    tokens = len(world.ids(TEXT)) + 1  # with the stop token
    name = "arbora_inter_token_latency_seconds_count"
    lines = (await world.http.get("/metrics")).text.splitlines()
    assert f"{name} {tokens - 1}.0" in lines


async def test_a_websocket_gets_no_chunks_of_http(world: HttpWorld, written: list[bytes]) -> None:
    world.script = world.says(TEXT)
    message = {"type": "generate", "id": "a", "request": {"prompt": "Hello", "stream": True}}
    async with connect(world.url.replace("http", "ws", 1) + "/generate/socket") as socket:
        await socket.send(json.dumps(message))
        while (answer := json.loads(await socket.recv()))["type"] == "event":
            pass
    assert answer["type"] == "end"
    assert not written


async def test_a_client_that_leaves_ends_its_request_once(world: HttpWorld, written: list[bytes]) -> None:
    world.script = world.says(50 * TEXT)
    async with connection(world.url) as raw:
        await raw.send(streamed())
        await eventually(lambda: len(written) > 10)
    await eventually(lambda: world.engine.open_requests == 0)
    await eventually(lambda: len(world.running.of_kind(Abort)) == 1)


async def test_a_replica_that_dies_ends_the_stream_with_one_error(
    world: HttpWorld, written: list[bytes]
) -> None:
    world.script = world.says(50 * TEXT)
    async with connection(world.url) as raw:
        await raw.send(streamed())
        await eventually(lambda: len(written) > 10)
        await world.kill_replica()
        answer = await raw.answer()
    assert answer.body.count(b'"model_died"') == 1
    assert answer.body.index(written[-1]) < answer.body.index(b'"model_died"')


async def test_a_bug_while_writing_at_once_ends_the_stream_with_an_error(
    world: HttpWorld, written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    around, calls = ChatStream.around_text, 0

    def fail(stream: ChatStream, choice: int) -> tuple[bytes, bytes] | None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise ValueError("a bug")
        return around(stream, choice)

    monkeypatch.setattr(ChatStream, "around_text", fail)
    world.script = world.says(TEXT)
    async with connection(world.url) as raw:
        await raw.send(streamed())
        failed = await raw.answer()
        await raw.send(streamed())
        whole = await raw.answer()
    assert written
    assert failed.body.count(b'"internal_error"') == 1 and b"a bug" not in failed.body
    assert whole.body.endswith(b"data: [DONE]\n\n")
    assert world.engine.open_requests == 0


async def test_answers_are_freed_without_the_garbage_collector(world: HttpWorld) -> None:
    gc.collect()
    gc.disable()
    try:
        async with connection(world.url) as raw:
            for _ in range(20):
                await raw.send(request("GET", "/version"))
                await raw.answer()
            await asyncio.sleep(0)
            kept = sum(type(each) is Exchange for each in gc.get_objects())
    finally:
        gc.enable()
    assert kept < 5
