"""A further API with errors of its own form, added without a change to the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.app.apis import APIS
from arbora.frontend.http.apis import MAX_MESSAGE, Api, Apis, route
from arbora.frontend.http.http_service import HttpService
from arbora.frontend.http.server.limits import Limits
from arbora.runtime.errors import RequestError
from http_world import HttpWorld, http_world
from raw_http import asked
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

pytestmark = pytest.mark.asyncio(loop_scope="module")
NOTES = "/v1/notes"
LIMITS = Limits(head_bytes=1000)


async def take_note(http: HttpService, request: Request) -> Response:
    """Refuses a body without a prompt and fails for a prompt that is no object."""
    body = await request.json()
    if body.get("prompt") == "long":
        raise RequestError("a" * 100_000, param="b" * 100_000, code="invalid_value")
    if "prompt" not in body:
        raise RequestError("There is no prompt.", param="prompt", code="missing_field")
    return Response(body["prompt"]["text"])


def routes(http: HttpService) -> list[Route]:
    return [route("POST", NOTES, http, take_note)]


def error_json(error: RequestError, request_id: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": error.code, "message": error.message}}).encode()


WITH_NOTES = Apis(APIS.default, (*APIS.others, Api(routes, error_json, (NOTES,))))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(apis=WITH_NOTES, limits=LIMITS) as world:
        yield world


def code_of(answer: Any) -> str:
    """The code of an error in the second form."""
    assert set(answer) == {"type", "error"}
    code: str = answer["error"]["type"]
    return code


async def test_a_api_answers_on_its_path(world: HttpWorld) -> None:
    response = await world.http.post(NOTES, json={"prompt": {"text": "Hello"}})
    assert (response.status_code, response.text) == (200, "Hello")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", NOTES, {}, 400, "missing_field"),
        ("POST", NOTES, {"prompt": 5}, 500, "internal_error"),
        ("GET", NOTES, None, 405, "method_not_allowed"),
        ("GET", f"{NOTES}/batches", None, 404, "not_found"),
    ],
)
async def test_errors_on_a_api_s_paths_have_its_form(
    world: HttpWorld, method: str, path: str, body: Any, status: int, code: str
) -> None:
    response = await world.http.request(method, path, json=body)
    assert response.status_code == status
    assert code_of(response.json()) == code
    assert response.headers["content-type"] == "application/json"


async def test_a_api_s_errors_do_not_repeat_long_texts_of_the_request(world: HttpWorld) -> None:
    error = (await world.http.post(NOTES, json={"prompt": "long"})).json()["error"]
    half = MAX_MESSAGE // 2
    assert error["message"] == "a" * half + "…" + "a" * half


@pytest.mark.parametrize("path", ["/v1/notess", "/v1", "/v2", "/v1/models/x"])
async def test_errors_on_other_paths_have_openais_form(world: HttpWorld, path: str) -> None:
    assert set((await world.http.get(path)).json()["error"]) == {"message", "type", "param", "code"}


async def test_a_missing_path_names_the_apis_paths_too(world: HttpWorld) -> None:
    error = (await world.http.get("/v1/note")).json()["error"]
    assert error["message"].endswith("Did you mean /v1/notes?")


async def test_guards_answer_in_the_form_of_the_path() -> None:
    async with http_world(apis=WITH_NOTES, api_keys=("key",)) as guarded:
        response = await guarded.http.post(NOTES, json={})
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert code_of(response.json()) == "invalid_api_key"
        assert (await guarded.http.get("/v1/models")).json()["error"]["code"] == "invalid_api_key"


async def test_a_foreign_host_is_refused_in_the_form_of_the_path(world: HttpWorld) -> None:
    response = await world.http.post(NOTES, json={}, headers={"host": "evil.example"})
    assert (response.status_code, code_of(response.json())) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ("X: a\x01b\r\n\r\n", "invalid_http"),
        ("Content-Length: 5x\r\n\r\n", "invalid_http"),
        (f"X: {'a' * 2000}\r\n\r\n", "headers_too_large"),
        ("Transfer-Encoding: chunked\r\n\r\nno chunk\r\n", "invalid_http"),
    ],
)
async def test_malformed_http_is_refused_in_the_form_of_the_path(
    world: HttpWorld, rest: str, code: str
) -> None:
    for path in (f"{NOTES}?beta=true", "/v1/models"):
        answer = await asked(world.url, f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{rest}".encode())
        found = json.loads(answer.body)
        assert (code_of(found) if path.startswith(NOTES) else found["error"]["code"]) == code
