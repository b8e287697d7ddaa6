"""HTTPS: answers, refusals and limits are those of HTTP, and failed handshakes cost nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from arbora.frontend.http.server.limits import Limits
from certificates import client_context, write_certificate
from http_world import HttpWorld, eventually, http_world
from raw_http import RawConnection, asked, connection, request

BODY = json.dumps({"prompt": "the cat", "max_tokens": 5}).encode()
VERSION = request("GET", "/version")
SHORT = Limits(head_seconds=1.5, linger_seconds=0.4, body_seconds=0.4, body_step_bytes=1000)


def on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    """Runs a test on the loop of a real server."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


@contextlib.asynccontextmanager
async def https_world(directory: Path, limits: Limits | None = None, **more: Any) -> AsyncIterator[HttpWorld]:
    certificate, key = write_certificate(directory)
    async with http_world(limits=limits, ssl_certfile=certificate, ssl_keyfile=key, **more) as world:
        yield world


async def plain(world: HttpWorld, data: bytes = b"") -> RawConnection:
    """A TCP connection to the server that has sent these bytes instead of a handshake."""
    where = urlsplit(world.url)
    raw = RawConnection(*await asyncio.open_connection(where.hostname, where.port))
    await raw.send(data)
    return raw


def tls_connection(world: HttpWorld, receive_buffer: int = 65_536) -> ssl.SSLSocket:
    """A connection of a blocking client."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    where = urlsplit(world.url)
    raw.connect((where.hostname, where.port))
    return client_context().wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False)


async def is_ended(raw: RawConnection) -> bool:
    """Whether the server ends the connection, with or without an alert, and without an answer."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            return b"HTTP" not in await raw.reader.read()
        return True


def test_whole_and_streamed_answers_are_served_over_tls(tmp_path: Path) -> None:
    async def check() -> None:
        async with https_world(tmp_path) as world:
            text = (await world.client.completions.create(model="tiny", prompt="the cat")).choices[0].text
            stream = await world.client.completions.create(model="tiny", prompt="the cat", stream=True)
            assert "".join([event.choices[0].text async for event in stream]) == text != ""
            async with connection(world.url) as raw:
                for _ in range(3):
                    await raw.send(request("POST", "/v1/completions", body=BODY))
                    assert (await raw.answer()).status == 200
                tls = raw.writer.get_extra_info("ssl_object")
                assert tls.version() == "TLSv1.3"

    on_uvloop(check())


def test_a_client_that_offers_http_2_gets_http_1_1(tmp_path: Path) -> None:
    async def check() -> None:
        async with https_world(tmp_path) as world:
            where = urlsplit(world.url)
            context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
            context.set_alpn_protocols(["h2", "http/1.1"])
            _, writer = await asyncio.open_connection("127.0.0.1", where.port, ssl=context)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            writer.close()

    on_uvloop(check())


def test_failed_handshakes_leave_no_trace_and_no_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with https_world(tmp_path, SHORT) as world:
            raws = [
                await plain(world, data) for data in (VERSION, b"", b"\x16\x03\x01\x02\x00\x01", b"\0" * 99)
            ]
            assert all([await is_ended(raw) for raw in raws])
            untrusting = ssl.create_default_context()
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            for context in (untrusting, old):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asyncio.open_connection("127.0.0.1", urlsplit(world.url).port, ssl=context)
            leaving = await plain(world, b"\x16\x03\x01")
            leaving.writer.transport.abort()
            assert (await asked(world.url, VERSION)).status == 200
            for raw in raws:
                raw.writer.close()

    with caplog.at_level(logging.WARNING):
        on_uvloop(check())
    assert [record.getMessage() for record in caplog.records] == []


def test_silent_handshakes_do_not_lock_others_out(tmp_path: Path) -> None:
    async def check() -> None:
        few = Limits(connections=20, refused_connections=10, head_seconds=60)
        async with https_world(tmp_path, few) as world, AsyncExitStack() as stack:
            raws = [await plain(world) for _ in range(100)]
            for raw in raws:
                stack.callback(raw.writer.close)
            for _ in range(3):
                assert (await asked(world.url, VERSION)).status == 200
            assert await is_ended(raws[0])

    on_uvloop(check())


def test_a_handshake_that_goes_on_ends_when_the_server_stops(tmp_path: Path) -> None:
    async def check() -> None:
        async with https_world(tmp_path) as world, connection(world.url) as busy:
            world.running.gate.clear()
            await busy.send(request("POST", "/v1/completions", body=BODY))
            await eventually(lambda: bool(world.engine.open_requests))
            opening = await plain(world)
            await asyncio.sleep(0.1)
            world.stop()
            async with asyncio.timeout(5):  # a handshake may last 10 seconds
                assert await is_ended(opening)
            world.running.gate.set()
            assert (await busy.answer()).status == 200
            opening.writer.close()

    on_uvloop(check())


def test_silent_connections_do_not_lock_others_out(tmp_path: Path) -> None:
    async def check() -> None:
        few = Limits(connections=20, refused_connections=10)
        async with https_world(tmp_path, few) as world, AsyncExitStack() as stack:
            raws = [await stack.enter_async_context(connection(world.url)) for _ in range(20)]
            for _ in range(5):
                assert (await asked(world.url, VERSION)).status == 200
            assert await is_ended(raws[0])

    on_uvloop(check())


@pytest.mark.parametrize("size", [100_000, 8_000_000])
def test_a_client_that_continues_to_send_reads_the_whole_refusal(tmp_path: Path, size: int) -> None:
    async def check() -> None:
        async with https_world(tmp_path) as world, connection(world.url) as raw:
            await raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * size)
            answer = await raw.answer()
            assert answer.refusal == (431, "headers_too_large")
            assert answer.headers["connection"] == "close"

    on_uvloop(check())


def test_slow_heads_and_bodies_are_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with https_world(tmp_path, SHORT) as world:
            for part in (VERSION[:30], request("POST", "/v1/completions", body=BODY)[:-10]):
                async with connection(world.url) as raw:
                    await raw.send(part)
                    assert (await raw.answer()).refusal == (408, "request_timeout")
                    assert await raw.ends()

    on_uvloop(check())


def test_a_closed_connection_does_not_wait_for_its_client(tmp_path: Path) -> None:
    async def check() -> None:
        async with https_world(tmp_path, SHORT) as world:

            def ask() -> ssl.SSLSocket:
                """A client that reads its answer, and neither closes nor answers the server's closing."""
                client = tls_connection(world)
                client.sendall(request("GET", "/version", "Connection: close"))
                assert client.recv(100).startswith(b"HTTP/1.1 200")
                return client

            clients = [await asyncio.to_thread(ask) for _ in range(3)]
            await eventually(lambda: not world.connections._open)
            for client in clients:
                client.close()

    on_uvloop(check())


def test_a_slow_reader_gets_its_answer_whole_after_the_server_has_closed(tmp_path: Path) -> None:
    async def check() -> None:
        limits = Limits(linger_seconds=0.2)
        async with https_world(tmp_path, limits, context_length=100_000, send_buffer=16_384) as world:
            world.script = lambda request: world.ids("the cat sat on the mat ") * 500
            body = json.dumps({"prompt": "the cat", "max_tokens": 3000, "logprobs": 5}).encode()
            asking = request("POST", "/v1/completions", "Connection: close", body=body)

            def read_slowly() -> bytes:
                received = b""
                with tls_connection(world, receive_buffer=8192) as client:
                    client.sendall(asking)
                    while part := client.recv(8192):
                        received += part
                        time.sleep(0.06)
                return received

            head, _, answer = (await asyncio.to_thread(read_slowly)).partition(b"\r\n\r\n")
            assert b"content-length: %d\r\n" % len(answer) in head
            assert len(answer) > 300_000

    on_uvloop(check())


def test_a_client_that_does_not_read_its_answer_is_cut_off(tmp_path: Path) -> None:
    async def check() -> None:
        limits = Limits(write_seconds=0.5)
        async with https_world(tmp_path, limits, context_length=100_000, send_buffer=16_384) as world:
            world.script = lambda request: world.ids("the cat sat on the mat ") * 2000
            fields = {"prompt": "the cat", "max_tokens": 10_000, "logprobs": 5}
            body = json.dumps(fields).encode()
            async with connection(world.url, limit=4096) as raw:
                await raw.send(request("POST", "/v1/completions", "Connection: close", body=body))
                await eventually(lambda: len(world.connections._open) == 1)
                await eventually(lambda: not world.connections._open)

    on_uvloop(check())
