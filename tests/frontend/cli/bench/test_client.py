"""The load generator's client counts failures and continues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from arbora.frontend.cli.bench.client import Client, Reply, _ReadClock
from arbora.runtime.errors import ConfigError

EVENTS = [
    'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": null}]}',
    'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}',
    'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}',
    "data: [DONE]",
]
LIVES: dict[str, list[str]] = {
    "whole": EVENTS,
    "three texts": [EVENTS[0], EVENTS[0], *EVENTS],
    "cut": EVENTS[:1],
    "error": ['data: {"error": {"code": 1}}'],
    "half a line": [EVENTS[0], EVENTS[1][:30]],
    "a list": ["data: []"],
    "no choices": ['data: {"choices": null}'],
    "ids alone": ['{"tokens": [1, 2]}'],
    "no counts": [*EVENTS[:2], 'data: {"usage": {"total_tokens": 4}}'],
}


class Server(BaseHTTPRequestHandler):
    """Answers as the model's name says."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        name = next((name for name in LIVES if f'"{name}"' in body), None)
        self.send_response(200 if name else 429)
        self.end_headers()
        events = LIVES.get(name or "", ["busy: später"])
        text = "".join(f"{event}\n\n" for event in events)
        self.wfile.write(text.encode("latin-1"))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(url: str, model: str) -> Reply:
    async def reply() -> Reply:
        client = Client(url)
        client.model = model
        try:
            return await client.chat([{"role": "user", "content": "Hello"}])
        finally:
            await client.close()

    return asyncio.run(reply())


def test_texts_that_come_in_one_read_arrive_together(url: str) -> None:
    reply = ask(url, "three texts")
    assert (reply.text, len(reply.arrivals)) == ("HiHiHi", 1)


async def test_another_read_has_a_later_time() -> None:
    clock = _ReadClock()
    first, same_turn = clock.now(), clock.now()
    await asyncio.sleep(0)
    assert first == same_turn < clock.now()


def test_a_whole_reply_has_its_text_and_counts(url: str) -> None:
    reply = ask(url, "whole")
    assert (reply.text, reply.error, reply.prompt_tokens, reply.output_tokens) == ("Hi", None, 3, 1)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("cut", "without a finish reason"),
        ("error", "code"),
        ("busy", "429: busy: sp\ufffdter"),
        ("half a line", "no JSON object: Input data was truncated"),
        ("a list", "no JSON object: Expected `object`, got `array`"),
        ("no choices", "without a finish reason"),
        ("no counts", "KeyError('prompt_tokens')"),
    ],
)
def test_the_reply_reports_what_went_wrong(url: str, model: str, said: str) -> None:
    assert said in str(ask(url, model).error)


def test_the_reply_reports_a_server_that_has_ended() -> None:
    assert "ConnectError" in str(ask("http://127.0.0.1:1", "whole").error)


@pytest.mark.parametrize("model", ["unknown", "ids alone"])
def test_a_server_that_does_not_count_messages_gives_no_tokens_of_a_template(url: str, model: str) -> None:
    async def tokens() -> int:
        client = Client(url)
        client.model = model
        try:
            return await client.template_tokens()
        finally:
            await client.close()

    assert asyncio.run(tokens()) == 0


def test_a_missing_server_is_named_before_the_first_request() -> None:
    async def open_client() -> None:
        await Client("http://127.0.0.1:1").open()

    with pytest.raises(ConfigError, match=r"no server answers at http://127\.0\.0\.1:1"):
        asyncio.run(open_client())
