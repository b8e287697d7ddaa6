"""Input that is refused before the application sees it: too large, malformed, of other protocols."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from arbora.frontend.http.body import FREE_BYTES, BodyMemory
from arbora.frontend.http.server.head import HeadReader
from arbora.frontend.http.server.limits import Limits
from arbora.runtime.errors import RequestError
from arbora.runtime.messages import Generate
from http_world import HttpWorld, eventually, http_world
from raw_http import asked, connection, in_chunks, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
BODY = json.dumps({"prompt": "the cat", "max_tokens": 5}).encode()
LARGE = BODY + b" " * 400_000
LIMITS = Limits()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


async def test_headers_beyond_the_limit_are_refused_while_they_arrive(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        await raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        for _ in range(20):
            await raw.send(b"a" * 4096)
        answer = await raw.answer()
        assert answer.refusal == (431, "headers_too_large")
        assert answer.headers["connection"] == "close"
        assert await raw.ends()


async def test_a_client_that_continues_to_send_reads_the_whole_refusal(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        await raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 8_000_000)
        assert (await raw.answer()).status == 431


async def test_too_many_headers_are_refused(world: HttpWorld) -> None:
    headers = [f"X-{number}: 1" for number in range(LIMITS.header_lines)]
    answer = await asked(world.url, request("GET", "/version", *headers))
    assert answer.refusal == (431, "headers_too_large")
    assert (await asked(world.url, request("GET", "/version", *headers[:-1]))).status == 200


@pytest.mark.parametrize("ending", [b"", b" HTTP/1.1\r\n", b" HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_a_long_url_is_refused(world: HttpWorld, ending: bytes) -> None:
    answer = await asked(world.url, b"GET /" + b"a" * 9000 + ending)
    assert answer.refusal == (414, "url_too_long")


async def test_a_head_is_the_same_however_it_is_sent() -> None:
    reader = HeadReader(LIMITS)
    text = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"b" * 500 + b"\r\n\r\n"
    for byte in text[:-1]:
        assert reader.add(bytes([byte])) is None
    found = reader.add(text[-1:] + b"rest")
    assert found is not None
    head, rest = found
    assert (head.method, head.path, head.version, head.length, rest) == ("GET", "/", "1.1", 0, b"rest")
    assert head.headers == [(b"host", b"a"), (b"x", b"b" * 500)]


async def test_a_request_in_single_bytes_is_answered(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        for byte in request("POST", "/v1/completions", body=BODY):
            await raw.send(bytes([byte]))
        assert (await raw.answer()).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"get / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"GET /\r\n\r\n",
        b"GARBAGE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\nabc",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_malformed_http_gets_an_error_of_the_usual_form(world: HttpWorld, data: bytes) -> None:
    async with connection(world.url) as raw:
        await raw.send(data)
        answer = await raw.answer()
        assert answer.refusal == (400, "invalid_http")
        assert answer.headers["content-type"] == "application/json"
        assert await raw.ends()


@pytest.mark.parametrize("coding", ["gzip, chunked", "identity"])
async def test_an_unknown_transfer_encoding_is_refused(world: HttpWorld, coding: str) -> None:
    answer = await asked(world.url, request("POST", "/tokenize", f"Transfer-Encoding: {coding}"))
    assert answer.refusal == (501, "unsupported_transfer_encoding")


async def test_connect_is_refused(world: HttpWorld) -> None:
    answer = await asked(world.url, b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
    assert answer.refusal == (405, "method_not_allowed")


@pytest.mark.parametrize("body", [BODY, LARGE])
@pytest.mark.parametrize("protocol", ["h2c", "websocket", "h2c, websocket"])
async def test_an_offer_of_another_protocol_loses_no_body(
    world: HttpWorld, body: bytes, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    offer = (
        "Connection: Upgrade, HTTP2-Settings",
        f"Upgrade: {protocol}",
        "HTTP2-Settings: AAMAAABk",
    )
    async with connection(world.url) as raw:
        for _ in range(2):  # on the same connection
            await raw.send(request("POST", "/v1/completions", *offer, body=body))
            answer = await raw.answer()
            assert (answer.status, json.loads(answer.body)["object"]) == (200, "text_completion")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_websocket_gets_a_plain_answer(world: HttpWorld) -> None:
    offer = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
    assert (await asked(world.url, request("GET", "/v1/realtime", *offer))).error["code"] == "not_found"


async def test_a_body_may_come_in_chunks_with_extensions_and_trailers(world: HttpWorld) -> None:
    head = request("POST", "/v1/completions", "Transfer-Encoding: chunked", "Content-Type: application/json")
    chunks = in_chunks(BODY, 7).replace(b"7\r\n", b"7;name=value\r\n", 1)
    trailers = chunks[:-2] + b"X-Checksum: 1\r\n\r\n"
    async with connection(world.url) as raw:
        for _ in range(2):
            await raw.send(head + trailers)
            assert (await raw.answer()).status == 200


async def test_a_trailer_is_not_taken_for_a_header() -> None:
    async with http_world(api_keys=("key",)) as guarded:
        head = request("POST", "/tokenize", "Transfer-Encoding: chunked", "Content-Type: application/json")
        trailers = in_chunks(b'{"prompt": "a"}', 100)[:-2] + b"Authorization: Bearer key\r\n\r\n"
        assert (await asked(guarded.url, head + trailers)).status == 401


async def test_a_client_that_expects_100_continue_gets_it(world: HttpWorld) -> None:
    whole = request("POST", "/v1/completions", "Expect: 100-continue", body=BODY)
    async with connection(world.url) as raw:
        await raw.send(whole[: -len(BODY)])
        assert (await raw.answer()).status == 100
        await raw.send(BODY)
        assert (await raw.answer()).status == 200


@pytest.mark.parametrize(
    "data",
    [
        request("GET", "/health", "Expect: 100-continue"),
        request("POST", "/tokenize", "Expect: 100-continue", body=b""),
        request("POST", "/v1/completions", "Expect: 100-continue", body=BODY).replace(b"1.1", b"1.0", 1),
    ],
    ids=["no body", "empty", "HTTP/1.0"],
)
async def test_100_continue_is_not_sent_where_it_has_no_place(world: HttpWorld, data: bytes) -> None:
    head, _, body = data.partition(b"\r\n\r\n")
    async with connection(world.url) as raw:
        await raw.send(head + b"\r\n\r\n")
        await asyncio.sleep(0.05)
        await raw.send(body)
        assert (await raw.answer()).status != 100


async def test_requests_ahead_of_their_turn_are_answered_in_order(world: HttpWorld) -> None:
    posted = request("POST", "/v1/completions", body=BODY)
    streamed = request("POST", "/v1/completions", body=BODY[:-1] + b', "stream": true}')
    async with connection(world.url) as raw:
        await raw.send(b"\r\n".join([streamed, posted, request("GET", "/nothing"), posted]))
        answers = [await raw.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 404, 200]
    assert answers[0].body.endswith(b"data: [DONE]\n\n")


async def test_a_request_after_a_body_in_chunks_is_answered(world: HttpWorld) -> None:
    head = request("POST", "/v1/completions", "Transfer-Encoding: chunked", "Content-Type: application/json")
    before = len(world.running.of_kind(Generate))
    async with connection(world.url) as raw:
        await raw.send((head + in_chunks(BODY, 100)) * 2)
        answers = [await raw.answer() for _ in range(2)]
        assert [(answer.status, answer.keeps_alive) for answer in answers] == [(200, True)] * 2
    assert len(world.running.of_kind(Generate)) == before + 2


async def test_bytes_sent_ahead_are_kept_up_to_a_limit(world: HttpWorld) -> None:
    world.running.gate.clear()
    async with connection(world.url) as raw:
        await raw.send(request("POST", "/v1/completions", body=BODY))
        ahead = request("GET", "/version", "X: " + "a" * 8000)
        raw.writer.write(ahead * 4000)  # 32 MB
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await raw.writer.drain()
        world.running.gate.set()
        assert (await raw.answer()).status == 200
        assert [(await raw.answer()).status for _ in range(100)] == [200] * 100


async def test_an_answer_that_does_not_wait_for_the_body_arrives(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        await raw.send(request("POST", "/nothing", body=b" " * 3_000_000))
        assert (await raw.answer()).status == 404
        await raw.send(request("GET", "/version"))
        assert (await raw.answer()).status == 200


async def test_an_answer_before_the_end_of_chunks_keeps_the_connection(world: HttpWorld) -> None:
    chunks = in_chunks(b" " * 100_000, 1000)
    async with connection(world.url) as raw:
        await raw.send(request("POST", "/nothing", "Transfer-Encoding: chunked") + chunks[:1000])
        answer = await raw.answer()
        assert (answer.status, answer.keeps_alive) == (404, True)
        await raw.send(chunks[1000:] + request("GET", "/version"))
        assert (await raw.answer()).status == 200


async def test_chunks_may_not_cost_more_than_their_content() -> None:
    async with http_world(limits=Limits(message_bytes=200_000)) as world, connection(world.url) as raw:
        await raw.send(request("POST", "/tokenize", "Transfer-Encoding: chunked"))
        await raw.send((b"1;" + b"x" * 1000 + b"\r\n \r\n") * 300)
        answer = await raw.answer()
        assert answer.refusal == (413, "body_too_large")
        assert await raw.ends()


@pytest.mark.parametrize("framing", [b"0\r\nX: ", b"1;", b"1\r\na\r\n1;"])
async def test_trailers_and_chunk_extensions_have_a_bound(world: HttpWorld, framing: bytes) -> None:
    async with connection(world.url) as raw:
        await raw.send(request("POST", "/tokenize", "Transfer-Encoding: chunked") + framing)
        for _ in range(10):
            await raw.send(b"a" * 4096)
            await asyncio.sleep(0.005)  # so that the server reads more than once
        answer = await raw.answer()
        assert answer.refusal == (400, "invalid_http")
        assert await raw.ends()


async def test_trailers_after_an_early_answer_are_limited(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        await raw.send(request("POST", "/nothing", "Transfer-Encoding: chunked") + b"0\r\nX: ")
        assert (await raw.answer()).status == 404
        for _ in range(10):
            await raw.send(b"a" * 4096)
        assert await raw.ends()


async def test_all_bodies_together_have_a_bound(world: HttpWorld) -> None:
    world.http_service.bodies.memory = memory = BodyMemory(max_bytes=1_000_000)
    whole = request("POST", "/v1/completions", body=LARGE)
    async with connection(world.url) as first:
        await first.send(whole[:-10])
        await eventually(lambda: memory._taken == len(LARGE) - 10 - FREE_BYTES)
        answer = await asked(world.url, whole)
        assert answer.refusal == (503, "too_many_large_requests")
        assert int(answer.headers["retry-after"]) > 0
        assert (await asked(world.url, request("POST", "/v1/completions", body=BODY))).status == 200
        await first.send(whole[-10:])
        assert (await first.answer()).status == 200
    assert (await asked(world.url, whole)).status == 200


async def test_one_client_may_not_take_the_memory_of_all_bodies() -> None:
    memory = BodyMemory(max_bytes=1_000_000)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(memory.share("greedy")).add(300_000)
        with pytest.raises(RequestError, match="from this client") as raised:
            stack.enter_context(memory.share("greedy")).add(300_000)
        assert (raised.value.status, raised.value.code) == (503, "too_many_large_requests")
        stack.enter_context(memory.share("other")).add(500_000)
        with pytest.raises(RequestError, match="large requests at the moment"):
            stack.enter_context(memory.share("third")).add(300_000)
    with memory.share("greedy") as share:
        share.add(500_000)


MALFORMED = b"X: a\x01b\r\n\r\n"


async def test_a_refusal_has_the_id_that_its_request_asked_for(world: HttpWorld) -> None:
    for path, names in (("/v1/models", ["x-request-id"]), ("/v1/messages", ["x-request-id", "request-id"])):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
        sent = await asked(world.url, head + b"X-Request-ID: mine 1\r\n" + MALFORMED)
        made = await asked(world.url, head + MALFORMED)
        assert [sent.headers[name] for name in names] == ["mine1"] * len(names)
        assert {made.headers[name][:4] for name in names} == {"req_"}


async def test_a_refusal_has_the_status_and_the_form_of_its_api() -> None:
    async with http_world(limits=Limits(connections=1, refused_connections=1)) as full:
        full.running.gate.clear()
        async with connection(full.url) as busy:
            await busy.send(request("POST", "/v1/completions", body=BODY))
            await eventually(lambda: bool(full.engine.open_requests))
            answer = await asked(full.url, request("POST", "/v1/messages", body=b"{}"))
            error = json.loads(answer.body)
            assert (answer.status, error["error"]["type"]) == (529, "overloaded_error")
            assert error["request_id"] == answer.headers["request-id"]
            shared = await asked(full.url, request("GET", "/v1/models", "anthropic-version: 2023-06-01"))
            assert shared.status == 529
            full.running.gate.set()


@pytest.mark.parametrize("head", [MALFORMED, b"Content-Length: 5x\r\n\r\n"])
async def test_the_refusal_of_a_head_request_has_no_body(world: HttpWorld, head: bytes) -> None:
    async with connection(world.url) as raw:
        await raw.send(b"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n" + head)
        answer, _, body = (await raw.reader.read()).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ") and body == b""


async def test_refusals_are_counted(world: HttpWorld) -> None:
    await asked(world.url, b"\x16\x03\x01")
    assert 'arbora_requests_failed_total{status="400"}' in (await world.http.get("/metrics")).text


async def test_a_slash_too_many_redirects_nowhere(world: HttpWorld) -> None:
    for path, status in (("/version/", 200), ("/version//", 404), ("/nothing/", 404), ("//", 200)):
        answer = await asked(world.url, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert answer.status == status
        assert "location" not in answer.headers


async def test_clients_that_leave_at_any_time_leave_no_traceback(
    world: HttpWorld, caplog: pytest.LogCaptureFixture
) -> None:
    whole = request("POST", "/v1/completions", body=LARGE)
    streamed = request("POST", "/v1/completions", body=BODY[:-1] + b', "stream": true}')

    async def leave(data: bytes, seconds: float, abruptly: bool) -> None:
        async with connection(world.url) as raw:
            raw.writer.write(data)
            await asyncio.sleep(seconds)
            if abruptly:
                raw.writer.transport.abort()

    sent = [whole, whole[:1000], whole[:100_000], whole[:50], streamed, b"", request("GET", "/metrics")]
    leaving = [
        leave(data, seconds, abruptly)
        for data in sent
        for seconds in (0.0, 0.001, 0.003, 0.01)
        for abruptly in (True, False)
    ]
    await asyncio.gather(*leaving)
    await eventually(lambda: world.engine.open_requests == 0)
    await asyncio.sleep(0.1)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n x: y", b"G" * 9000])
async def test_removing_a_header_reveals_no_other(text: bytes) -> None:
    with pytest.raises(RequestError):
        HeadReader(LIMITS).add(text + b"\r\n\r\n")


async def test_a_url_in_the_form_for_proxies_is_answered(world: HttpWorld) -> None:
    answer = await asked(world.url, b"GET http://localhost/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.status == 200


async def test_an_answer_to_http_1_0_has_no_chunks(world: HttpWorld) -> None:
    streamed = BODY[:-1] + b', "stream": true}'
    sent = request("POST", "/v1/completions", body=streamed).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with connection(world.url) as raw:
        await raw.send(sent)
        head, _, body = (await raw.reader.read()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert body.startswith(b"data: ") and body.endswith(b"data: [DONE]\n\n")
