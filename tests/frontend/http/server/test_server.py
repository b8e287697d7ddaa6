"""The HTTP server stops as soon as it is told to, and outlives an application that fails."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from arbora.frontend.http.server.connection import ServerSettings
from arbora.frontend.http.server.exchange import Headers
from arbora.frontend.http.server.limits import Limits
from arbora.frontend.http.server.server import HttpServer
from arbora.runtime.errors import RequestError
from raw_http import connection, request


def render_code(path: str, headers: Headers, error: RequestError) -> tuple[int, Headers, bytes]:
    body = (error.code or "").encode()
    return error.status, [(b"content-length", b"%d" % len(body))], body


SETTINGS = ServerSettings(Limits(), (), lambda status: None, lambda: None, render_code)


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is sent")


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("way", ["stop", "signal"])
def test_the_server_stops_at_once(loop_factory: Callable[[], asyncio.AbstractEventLoop], way: str) -> None:
    raised_again: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: raised_again.append(number))

    async def check() -> None:
        server = HttpServer(no_app, SETTINGS)
        running = asyncio.create_task(server.serve(socket.create_server(("127.0.0.1", 0))))
        await server.started.wait()
        assert not running.done()
        if way == "stop":
            server.stop()
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(30):
            await running

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(check())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert raised_again == ([signal.SIGTERM] if way == "signal" else [])


@pytest.mark.parametrize("begins", [False, True])
async def test_an_application_that_fails_ends_its_connection(begins: bool) -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("a bug")

    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(fail, SETTINGS)
    running = asyncio.create_task(server.serve(listener))
    await server.started.wait()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(request("GET", "/"))
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 " if begins else b"HTTP/1.1 500 ")
    assert b"0\r\n\r\n" not in answer.partition(b"\r\n\r\n")[2]  # the end of an answer
    writer.close()
    server.stop()
    await running


async def test_an_application_learns_that_its_client_has_left_after_a_large_body() -> None:
    left = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.1)  # the body arrives meanwhile
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(wait, SETTINGS)
    running = asyncio.create_task(server.serve(listener))
    await server.started.wait()
    _, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(request("POST", "/", body=b" " * 200_000))
    await writer.drain()
    await asyncio.sleep(0.3)
    assert not left.is_set()
    writer.close()
    async with asyncio.timeout(30):
        await left.wait()
    server.stop()
    await running


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: loc", request("GET", "/")], ids=["half", "whole"])
async def test_a_request_that_has_not_started_is_refused_when_the_server_stops(sent: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(no_app, replace(SETTINGS, limits=Limits(started_per_turn=0)))
    running = asyncio.create_task(server.serve(listener))
    await server.started.wait()
    async with connection(f"http://127.0.0.1:{listener.getsockname()[1]}") as raw:
        await raw.send(sent)
        await asyncio.sleep(0.1)
        server.stop()
        answer = await raw.answer()
        assert (answer.status, answer.body, answer.keeps_alive) == (503, b"shutting_down", False)
        assert await raw.ends()
    await running
