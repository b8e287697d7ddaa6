"""Which hosts and web pages a server answers, what browsers may send, and returned request ids."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from arbora.frontend.http.access import MAX_ID_CHARACTERS
from arbora.frontend.http.hosts import AllowedOrigins, KnownHosts, check_page
from arbora.runtime.api_keys import plain_key
from arbora.runtime.config import ServeConfig
from http_world import HttpWorld, http_world
from raw_http import Answer, asked, request

BODY = json.dumps({"prompt": "the cat"}).encode()
on_module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


async def got(world: HttpWorld, host: str, *headers: str, path: str = "/v1/models") -> Answer:
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", *headers]
    return await asked(world.url, "\r\n".join([*lines, "", ""]).encode())


async def posted(world: HttpWorld, *headers: str, body: bytes = BODY) -> Answer:
    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: localhost:8000",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return await asked(world.url, "\r\n".join([*lines, "", ""]).encode() + body)


@on_module_loop
@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:8000", "[::1]:8000"]
)
async def test_a_local_server_answers_to_its_own_names(world: HttpWorld, host: str) -> None:
    assert (await got(world, host)).status == 200


@on_module_loop
@pytest.mark.parametrize("path", ["/cache", "/v1/models", "/metrics"])
@pytest.mark.parametrize("host", ["evil.example", "evil:8000", "localhost.evil.example", "127.0.0.1.nip.io"])
async def test_a_local_server_refuses_foreign_hosts(world: HttpWorld, host: str, path: str) -> None:
    answer = await got(world, host, path=path)
    assert answer.refusal == (403, "host_not_allowed")
    assert f"--host ADDRESS,{host.partition(':')[0]}" in answer.error["message"]


@on_module_loop
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[", "", "chrome-extension://abc"])
async def test_foreign_pages_may_not_send_requests(world: HttpWorld, origin: str) -> None:
    for answer in (
        await got(world, "localhost", f"Origin: {origin}"),
        await posted(world, f"Origin: {origin}"),
    ):
        assert answer.refusal == (403, "origin_not_allowed")


@on_module_loop
async def test_a_page_that_sends_no_origin_is_known_by_its_site(world: HttpWorld) -> None:
    answer = await got(world, "localhost", "Sec-Fetch-Site: cross-site")
    assert answer.refusal == (403, "origin_not_allowed")
    assert (await got(world, "localhost", "Sec-Fetch-Site: none")).status == 200


@on_module_loop
@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:8000", "tauri://localhost"])
async def test_pages_of_this_machine_may_send_requests(world: HttpWorld, origin: str) -> None:
    headers = (f"Origin: {origin}", "Sec-Fetch-Site: cross-site", "Content-Type: application/json")
    assert (await posted(world, *headers)).status == 200


@on_module_loop
async def test_a_browser_must_say_that_it_sends_json(world: HttpWorld) -> None:
    for header in ("Origin: http://localhost:3000", "Sec-Fetch-Site: same-origin"):
        answer = await posted(world, header)
        assert answer.refusal == (415, "unsupported_media_type")
        assert "Content-Type: application/json" in answer.error["message"]
    assert (await posted(world)).status == 200  # no browser


CURL = ("Content-Type: application/x-www-form-urlencoded",)


async def sent_by_curl(world: HttpWorld, *headers: str, host: str = "localhost:11434", path: str) -> Answer:
    """The answer to what `curl -d BODY` sends, with further headers."""
    body = b'{"model": "tiny", "prompt": "the cat", "stream": false}'
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *CURL, *headers]
    return await asked(world.url, "\r\n".join([*lines, "", ""]).encode() + body)


@on_module_loop
@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions", "/generate"])
async def test_curl_need_not_say_that_it_sends_json(world: HttpWorld, path: str) -> None:
    assert (await sent_by_curl(world, path=path)).status == 200


@on_module_loop
@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions", "/generate"])
@pytest.mark.parametrize(
    ("header", "host", "refusal"),
    [
        ("Origin: http://localhost:3000", "localhost", (415, "unsupported_media_type")),
        ("Sec-Fetch-Site: same-origin", "localhost", (415, "unsupported_media_type")),
        ("Sec-Fetch-Site: cross-site", "localhost", (403, "origin_not_allowed")),
        ("Origin: https://evil.example", "localhost", (403, "origin_not_allowed")),
        ("Origin: null", "localhost", (403, "origin_not_allowed")),
        ("Accept: */*", "evil.example", (403, "host_not_allowed")),
    ],
)
async def test_a_page_can_t_send_what_curl_sends(
    world: HttpWorld, path: str, header: str, host: str, refusal: tuple[int, str]
) -> None:
    answer = await sent_by_curl(world, header, host=host, path=path)
    assert answer.status == refusal[0] and f'"code":"{refusal[1]}"' in answer.body.decode()


@on_module_loop
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "GZIP, identity"])
async def test_a_compressed_body_is_refused_by_name(world: HttpWorld, coding: str) -> None:
    answer = await posted(
        world, f"Content-Encoding: {coding}", "Content-Type: application/json", body=b"\x1f\x8b"
    )
    assert answer.refusal == (415, "unsupported_media_type")
    assert coding.lower() in answer.error["message"]
    assert (await posted(world, "Content-Encoding: identity")).status == 200


@pytest.mark.parametrize(
    ("listening", "allowed", "host", "known"),
    [
        ("127.0.0.1", (), "gpu", False),
        ("127.0.0.1", (), "192.168.0.5", False),
        ("127.0.0.1", ("gpu.example.com",), "gpu.example.com", True),
        ("127.0.0.1", ("GPU.example.com.",), "gpu.example.com", True),
        ("127.0.0.1", ("*",), "any.example", True),
        ("localhost", (), "other", False),
        ("0.0.0.0", (), "192.168.0.5", True),
        ("0.0.0.0", (), "fe80::1", True),
        ("0.0.0.0", (), "gpu", True),
        ("0.0.0.0", (), "evil.example", False),
        ("::", (), "evil.example", False),
        ("gpu.example.com", (), "gpu.example.com", True),
    ],
)
def test_names_that_no_page_can_have_are_known(
    listening: str, allowed: tuple[str, ...], host: str, known: bool
) -> None:
    assert KnownHosts(listening, allowed).has(host) == known


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://192.168.1.5:3000", True),
        ("http://localhost:3000", True),
        ("http://[::1]:3000", True),
        ("https://page.example", True),
        ("http://203.0.113.66", False),
        ("http://[2001:db8::1]", False),
        ("http://intranet", False),
    ],
)
def test_pages_of_other_addresses_may_not_send_requests(origin: str, allowed: bool) -> None:
    hosts = KnownHosts("0.0.0.0", ("page.example",))
    error = check_page({"host": "192.168.1.5:8000", "origin": origin}, hosts, AllowedOrigins(()))
    assert (error is None) == allowed
    assert error is None or error.code == "origin_not_allowed"


async def test_a_server_with_keys_answers_to_all_host_names_unless_some_are_given() -> None:
    key = "Authorization: Bearer key"
    async with http_world(api_keys=("key",)) as world:
        assert (await got(world, "proxy.example", key, "Origin: https://page.example")).status == 200
        assert (await got(world, "proxy.example")).status == 401
    async with http_world(api_keys=("key",), allowed_hosts=("api.example",)) as world:
        assert (await got(world, "api.example", key)).status == 200
        assert (await got(world, "evil.example", key)).status == 403


@on_module_loop
@pytest.mark.parametrize("path", ["/v1/completions", "/nothing"])
async def test_the_clients_request_id_is_returned(world: HttpWorld, path: str) -> None:
    data = request("POST", path, "X-Request-Id: req_1-a.b:c", body=BODY)
    assert (await asked(world.url, data)).headers["x-request-id"] == "req_1-a.b:c"


@on_module_loop
async def test_a_request_id_is_returned_clean_and_short(world: HttpWorld) -> None:
    data = request("GET", "/version", "X-Request-Id: <b>[31m id\t\xff" + "a" * 1000)
    answer = (await asked(world.url, data)).headers["x-request-id"]
    assert answer == ("b31mid" + "a" * 1000)[:MAX_ID_CHARACTERS]
    nothing_left = await asked(world.url, request("GET", "/version", "X-Request-Id: <>"))
    assert nothing_left.headers["x-request-id"].startswith("req_")


@on_module_loop
async def test_every_answer_has_an_id(world: HttpWorld) -> None:
    answers = [
        await asked(world.url, request("GET", "/version")),
        await asked(world.url, request("GET", "/nothing")),
        await asked(world.url, request("PUT", "/version")),
        await asked(world.url, request("POST", "/v1/chat/completions", body=b'{"messages": []}')),
    ]
    assert [answer.status for answer in answers] == [200, 404, 405, 400]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(re.fullmatch("req_[0-9a-f]{24}", id) for id in ids)
    assert len(set(ids)) == 4


def test_other_users_cannot_read_the_saved_keys(tmp_path: Path) -> None:
    ServeConfig(model=tmp_path, served_model_name="m", api_keys=(plain_key("secret"),)).save(tmp_path)
    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o600
    assert b"secret" not in (tmp_path / "config.json").read_bytes()
