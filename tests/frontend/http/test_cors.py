"""CORS: what pages of allowed origins, of other origins and other clients get."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from arbora.frontend.cli.main import build_parser, serve_config
from arbora.frontend.http.server.limits import Limits
from arbora.runtime.config import ServeConfig
from arbora.runtime.errors import ConfigError
from http_world import HttpWorld, http_world
from raw_http import Answer, asked, connection, request

PAGE = "https://chat.example.com"
ORIGIN = f"Origin: {PAGE}"
ALLOWED = "access-control-allow-origin"
BODY = json.dumps({"prompt": "the cat"}).encode()
SHORT = Limits(head_seconds=0.4, body_seconds=0.4, body_step_bytes=1000, linger_seconds=0.4)
on_module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(allowed_origins=(PAGE, "http://localhost:3000"), limits=SHORT) as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_world() -> AsyncIterator[HttpWorld]:
    async with http_world(allowed_origins=("*",), api_keys=("key",)) as world:
        yield world


def preflight(*headers: str, path: str = "/v1/completions") -> bytes:
    return request("OPTIONS", path, "Access-Control-Request-Method: POST", *headers)


def cors_headers(answer: Answer) -> list[str]:
    return [name for name in answer.headers if name.startswith("access-control-")]


@on_module_loop
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/cache/pin", "/nothing"])
async def test_a_preflight_request_of_an_allowed_page_is_answered(world: HttpWorld, path: str) -> None:
    wanted = "authorization,content-type,x-stainless-os"
    answer = await asked(world.url, preflight(ORIGIN, f"Access-Control-Request-Headers: {wanted}", path=path))
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers[ALLOWED] == PAGE
    assert answer.headers["access-control-allow-headers"] == wanted
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-private-network" not in answer.headers


@on_module_loop
async def test_a_public_page_may_ask_for_this_network(world: HttpWorld) -> None:
    answer = await asked(world.url, preflight(ORIGIN, "Access-Control-Request-Private-Network: true"))
    assert answer.headers["access-control-allow-private-network"] == "true"


@on_module_loop
@pytest.mark.parametrize(
    "origin",
    [
        "http://chat.example.com",
        "https://chat.example.com:8443",
        "https://chat.example.com.evil.example",
        "https://evil.example",
        "null",
        "",
        "*",
    ],
)
async def test_other_origins_are_refused_and_get_no_permission(world: HttpWorld, origin: str) -> None:
    for data in (
        preflight(f"Origin: {origin}"),
        request("POST", "/v1/completions", f"Origin: {origin}", body=BODY),
    ):
        answer = await asked(world.url, data)
        assert answer.refusal == (403, "origin_not_allowed")
        assert cors_headers(answer) == []
        assert answer.headers["vary"] == "Origin"


@on_module_loop
async def test_an_allowed_page_reads_answers_and_errors(world: HttpWorld) -> None:
    for data, status in (
        (request("POST", "/v1/completions", ORIGIN, body=BODY), 200),
        (request("POST", "/v1/completions", ORIGIN, body=b"{}"), 400),
        (request("GET", "/nothing", ORIGIN), 404),
        (request("GET", "/v1/completions", ORIGIN), 405),
        (request("OPTIONS", "/v1/completions", ORIGIN), 405),
    ):
        answer = await asked(world.url, data)
        assert (answer.status, answer.headers[ALLOWED], answer.headers["vary"]) == (status, PAGE, "Origin")
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


@on_module_loop
async def test_an_allowed_page_reads_a_stream(world: HttpWorld) -> None:
    body = json.dumps({"prompt": "the cat", "stream": True}).encode()
    answer = await asked(world.url, request("POST", "/v1/completions", ORIGIN, body=body))
    assert answer.headers[ALLOWED] == PAGE
    assert answer.body.endswith(b"data: [DONE]\n\n")


@on_module_loop
async def test_an_allowed_page_reads_refusals_of_its_connection(world: HttpWorld) -> None:
    head = request("GET", "/version", ORIGIN)
    for data, status in (
        (head[:-2] + b"X: " + b"a" * 70_000, 431),
        (head[:-2] + b"X : 1\r\n\r\n", 400),
        (head[:-2] + b"X: 1", 408),
        (request("POST", "/v1/completions", ORIGIN, body=BODY)[:-5], 408),
        (request("POST", "/v1/completions", ORIGIN, "Transfer-Encoding: gzip"), 501),
    ):
        async with connection(world.url) as raw:
            await raw.send(data)
            answer = await raw.answer()
            assert (answer.status, answer.headers.get(ALLOWED)) == (status, PAGE)
    foreign = await asked(world.url, head.replace(b"chat.", b"evil.")[:-2] + b"X : 1\r\n\r\n")
    assert (foreign.status, cors_headers(foreign)) == (400, [])


@on_module_loop
async def test_an_allowed_page_does_not_make_a_foreign_host_known(world: HttpWorld) -> None:
    data = request("GET", "/v1/models", ORIGIN).replace(b"Host: localhost", b"Host: evil.example")
    assert (await asked(world.url, data)).refusal == (403, "host_not_allowed")


@on_module_loop
async def test_clients_that_are_no_pages_get_no_permission(world: HttpWorld) -> None:
    answer = await asked(world.url, request("GET", "/version"))
    assert (answer.status, cors_headers(answer), answer.headers["vary"]) == (200, [], "Origin")


async def test_without_the_option_no_page_gets_a_permission() -> None:
    local = "Origin: http://localhost:3000"
    async with http_world() as world:
        for data in (request("GET", "/version", local), request("GET", "/version", ORIGIN), preflight(local)):
            answer = await asked(world.url, data)
            assert cors_headers(answer) == []
            assert "vary" not in answer.headers


@on_module_loop
async def test_with_keys_every_page_may_be_allowed_and_still_needs_a_key(open_world: HttpWorld) -> None:
    wanted = "Access-Control-Request-Headers: authorization"
    answer = await asked(open_world.url, preflight("Origin: https://any.example", wanted))
    assert (answer.status, answer.headers[ALLOWED]) == (204, "*")
    for headers, status in (((), 401), (("Authorization: Bearer key",), 200)):
        data = request("GET", "/v1/models", "Origin: https://any.example", *headers)
        answer = await asked(open_world.url, data)
        assert (answer.status, answer.headers[ALLOWED]) == (status, "*")
        assert "access-control-allow-credentials" not in answer.headers
        assert "vary" not in answer.headers


def configured(tmp_path: Path, *flags: str) -> ServeConfig:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    return serve_config(vars(build_parser().parse_args(["serve", str(tmp_path), *flags])), {})


def test_origins_are_taken_as_browsers_write_them(tmp_path: Path) -> None:
    given = ("HTTPS://Chat.Example.com:443", "http://localhost:3000", "http://[::1]:80", "tauri://localhost")
    flags = [part for origin in given for part in ("--allowed-origin", origin)]
    assert configured(tmp_path, *flags).allowed_origins == (
        "https://chat.example.com",
        "http://localhost:3000",
        "http://[::1]",
        "tauri://localhost",
    )


@pytest.mark.parametrize(
    "origin",
    [
        "chat.example.com",
        "https://",
        "https://a.example/",
        "https://a.example/chat",
        "https://*.a.example",
        "null",
        "https://user@a.example",
        "https://bücher.example",
        "https://a.example:port",
    ],
)
def test_a_text_that_is_no_origin_is_refused(tmp_path: Path, origin: str) -> None:
    with pytest.raises(ConfigError, match=r"is no origin. Write a scheme, a host and perhaps a port"):
        configured(tmp_path, "--allowed-origin", origin)


def test_all_origins_may_be_allowed_only_with_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="any web page could use a server without keys"):
        configured(tmp_path, "--allowed-origin", "*")
    assert configured(tmp_path, "--allowed-origin", "*", "--api-key", "k").allowed_origins == ("*",)
