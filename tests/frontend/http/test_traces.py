"""Traces, as a collector of OpenTelemetry's protocol receives them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.launch import options
from arbora.frontend.launch.options import Setting, build_config
from arbora.runtime.errors import ConfigError
from http_world import HttpWorld, http_world
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from websockets.asyncio.client import connect

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HELLO = {"messages": [{"role": "user", "content": "a very private question"}], "max_tokens": 50}


class Collector:
    """`spans` are OTLP's; `bodies` the requests that brought them."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.bodies: list[bytes] = []

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans


@contextlib.contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def flush(world: HttpWorld) -> None:
    assert world.http_service.traces is not None
    world.http_service.traces.flush()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_with_its_numbers_and_no_text(stream: bool) -> None:
    with collecting() as (collector, url):
        async with http_world(otlp_traces_endpoint=url) as world:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = {**HELLO, "temperature": 0.5, "stream": stream}
            answer = await world.http.post("/v1/chat/completions", json=body, headers=headers)
            await world.http.get("/v1/models")
            flush(world)
    (span,) = collector.spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("chat tiny", TRACE, PARENT)
    found = attributes(span)
    assert found["gen_ai.response.id"] == answer.headers["x-request-id"]
    assert (found["gen_ai.operation.name"], found["gen_ai.request.temperature"]) == ("chat", 0.5)
    assert found["http.response.status_code"] == 200
    assert found["gen_ai.usage.input_tokens"] > 0 and found["gen_ai.usage.output_tokens"] > 0
    assert [event.name for event in span.events] == ["decode"]  # the scripted scheduler has no queue
    assert span.start_time_unix_nano <= span.events[0].time_unix_nano <= span.end_time_unix_nano
    assert not any(b"private" in body or b"Hello" in body for body in collector.bodies)


async def test_paths_that_continue_a_text_have_a_name_of_their_own() -> None:
    with collecting() as (collector, url):
        async with http_world(otlp_traces_endpoint=url) as world:
            for path in ("/v1/completions", "/api/generate", "/api/chat", "/v1/responses"):
                await world.http.post(path, json=HELLO)
            flush(world)
    names = {attributes(span)["url.path"]: span.name for span in collector.spans}
    assert names == {
        "/v1/completions": "text_completion tiny",
        "/api/generate": "text_completion tiny",
        "/api/chat": "chat tiny",
        "/v1/responses": "chat tiny",
    }


async def test_a_request_of_the_native_api_is_named_by_its_prompt() -> None:
    with collecting() as (collector, url):
        async with http_world(otlp_traces_endpoint=url) as world:
            for prompt in ({"prompt": "Hello"}, {"messages": HELLO["messages"]}):
                answer = await world.http.post("/generate", json={**prompt, "max_tokens": 5})
                assert answer.status_code == 200
            socket = world.url.replace("http", "ws", 1) + "/generate/socket"
            async with connect(socket) as connection:
                request = {"messages": HELLO["messages"], "max_tokens": 5}
                await connection.send(json.dumps({"type": "generate", "id": "a", "request": request}))
                async with asyncio.timeout(60):
                    while json.loads(await connection.recv())["type"] == "event":
                        pass
            flush(world)
    names = [(attributes(span)["url.path"], span.name) for span in collector.spans]
    assert names == [
        ("/generate", "text_completion tiny"),
        ("/generate", "chat tiny"),
        ("/generate/socket", "chat tiny"),
    ]


async def test_a_refused_request_is_a_span_with_its_error() -> None:
    with collecting() as (collector, url):
        async with http_world(otlp_traces_endpoint=url) as world:
            await world.http.post("/v1/chat/completions", json={**HELLO, "max_tokens": -1})
            flush(world)
    (span,) = collector.spans
    assert attributes(span)["error.type"] == "invalid_value"
    assert span.status.code == 2 and not span.parent_span_id


async def test_a_collector_that_is_away_delays_no_answer() -> None:
    async with http_world(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces") as world:
        assert (await world.http.post("/v1/chat/completions", json=HELLO)).status_code == 200


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(options, "EXPORTER", "opentelemetry.exporter.absent.http")
    settings = {"otlp_traces_endpoint": Setting("--otlp-traces-endpoint", "http://localhost:4318/v1/traces")}
    with pytest.raises(ConfigError, match="-m pip install opentelemetry-sdk opentelemetry-exporter"):
        build_config(None, settings)
