"""Errors in Anthropic's form, their statuses and headers, and keys."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic_world import HELLO, AnthropicWorld, anthropic_world
from arbora.frontend.api.anthropic.errors import error_json
from arbora.runtime.errors import RequestError
from arbora.runtime.messages import Refused
from http_world import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="module")
BODY: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 5}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as world:
        yield world


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
async def test_every_status_has_its_type(status: int, kind: str) -> None:
    body = json.loads(error_json(RequestError("No.", status=status, param="a", code="b"), "req_1"))
    details = {"error_code": "b", "param": "a"}
    error = {"type": kind, "message": "No.", "details": details}
    assert body == {"type": "error", "error": error, "request_id": "req_1"}


async def test_a_prompt_that_is_too_long_is_refused_in_anthropics_words(world: AnthropicWorld) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        await world.create(messages=[{"role": "user", "content": "the cat sat " * 4000}])
    error: Any = caught.value.body["error"]
    assert error["message"].startswith("prompt is too long: ")
    assert error["details"] == {"error_code": "context_length_exceeded", "param": "messages"}


async def test_too_many_tokens_for_the_context_are_refused_with_its_length(world: AnthropicWorld) -> None:
    most = world.http_world.context_length
    with pytest.raises(anthropic.BadRequestError, match=f"lower it to {most} at most"):
        await world.create(max_tokens=most + 1)


async def test_an_error_has_the_id_of_its_header(world: AnthropicWorld) -> None:
    answer = await world.post(**{**BODY, "max_tokens": -1})
    assert answer.json()["request_id"] == answer.headers["request-id"]
    assert answer.headers["request-id"].startswith("req_")


async def test_an_answer_has_an_id_of_its_own_or_the_clients(world: AnthropicWorld) -> None:
    own = await world.http_world.http.post("/v1/messages", json=BODY)
    sent = await world.http_world.http.post("/v1/messages", json=BODY, headers={"x-request-id": "mine"})
    assert own.headers["request-id"].startswith("req_")
    assert sent.headers["request-id"] == sent.headers["x-request-id"] == "mine"
    other = await world.http_world.http.get("/v1/models")
    assert "request-id" not in other.headers


async def test_a_full_queue_is_a_rate_limit_with_a_time_to_wait(world: AnthropicWorld) -> None:
    def refuse(request: Any) -> Refused:
        return Refused(request.request, 429, "The queue is full.", code="queue_full", retry_after=7)

    world.running.refuse = refuse
    try:
        with pytest.raises(anthropic.RateLimitError) as caught:
            await world.create()
    finally:
        world.running.refuse = lambda request: None
    assert caught.value.response.headers["retry-after"] == "7"


async def test_a_server_without_a_model_is_overloaded() -> None:
    async with anthropic_world(replica=False) as world:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await world.create()
        assert caught.value.status_code == 529
        assert caught.value.body["error"]["type"] == "overloaded_error"
        assert caught.value.response.headers["retry-after"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("POST", "/v1/messages/count_tokens", 400, "invalid_request_error"),
    ],
)
async def test_errors_on_its_paths_have_this_form(
    world: AnthropicWorld, method: str, path: str, status: int, kind: str
) -> None:
    answer = await world.http_world.http.request(method, path, content=b"{" if status == 400 else b"")
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


async def test_a_client_that_adds_v1_twice_is_told(world: AnthropicWorld) -> None:
    answer = await world.http_world.http.post("/v1/v1/messages", json=BODY)
    assert "Did you mean /v1/messages?" in answer.json()["error"]["message"]


async def test_versions_and_betas_are_tolerated(world: AnthropicWorld) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-01-01,b-2026-01-01"}
    answer = await world.http_world.http.post("/v1/messages?beta=true", json=BODY, headers=headers)
    assert answer.status_code == 200
