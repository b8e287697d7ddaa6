"""API keys of the HTTP server, and what is served without one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from http_world import HELLO, HttpWorld, http_world, last_generate

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded() -> AsyncIterator[HttpWorld]:
    async with http_world(api_keys=("first", "second")) as world:
        yield world


async def test_with_several_keys_the_key_is_the_tenant_not_the_user(guarded: HttpWorld) -> None:
    tenants = []
    for key, user in (("first", "ada"), ("first", "bob"), ("second", "ada")):
        headers = {"authorization": f"Bearer {key}"}
        body = {"messages": HELLO, "user": user}
        response = await guarded.http.post("/v1/chat/completions", json=body, headers=headers)
        assert response.status_code == 200
        tenants.append(last_generate(guarded).tenant)
    assert tenants[0] == tenants[1] != tenants[2]
    assert "" not in tenants


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (None, "This request has no API key."),
        ("Basic first", "This request has no API key."),
        ("Bearer third", "The API key in this request is unknown."),
        ("first", "The header authorization must have 'Bearer ' before the API key."),
    ],
)
async def test_without_a_known_key_nothing_is_served(
    guarded: HttpWorld, header: str | None, problem: str
) -> None:
    headers = {} if header is None else {"authorization": header}
    response = await guarded.http.get("/v1/models", headers=headers)
    assert response.status_code == 401
    error = response.json()["error"]
    assert error["code"] == "invalid_api_key"
    assert error["message"].startswith(f"{problem} A valid API key is needed")


@pytest.mark.parametrize("key", ["first", "second"])
async def test_each_key_opens_the_server(guarded: HttpWorld, key: str) -> None:
    response = await guarded.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    assert response.status_code == 200


async def test_a_key_may_be_sent_in_anthropics_header(guarded: HttpWorld) -> None:
    assert (await guarded.http.get("/v1/models", headers={"x-api-key": "second"})).status_code == 200
    assert (await guarded.http.get("/v1/models", headers={"x-api-key": "third"})).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ([("authorization", "Bearer first"), ("x-api-key", "first")], 200, None),
        ([("authorization", "Basic YTpi"), ("x-api-key", "first")], 200, None),
        ([("authorization", "Bearer first"), ("x-api-key", "")], 200, None),
        ([("authorization", "Bearer first"), ("x-api-key", "second")], 401, "contradictory_api_keys"),
        ([("authorization", "Bearer third"), ("x-api-key", "second")], 401, "contradictory_api_keys"),
        ([("authorization", "Bearer first"), ("x-api-key", "third")], 401, "contradictory_api_keys"),
        (
            [("authorization", "Bearer first"), ("authorization", "Bearer second")],
            401,
            "contradictory_api_keys",
        ),
        ([("x-api-key", "third"), ("x-api-key", "third")], 401, "invalid_api_key"),
    ],
    ids=range(8),
)
async def test_two_keys_in_a_request_must_be_the_same(
    guarded: HttpWorld, headers: list[tuple[str, str]], status: int, code: str | None
) -> None:
    answer = await guarded.http.get("/v1/models", headers=headers)
    assert answer.status_code == status
    assert code is None or answer.json()["error"]["code"] == code
    assert (await guarded.http.get("/health", headers=headers)).status_code == 200


async def test_metrics_may_need_a_key() -> None:
    async with http_world(api_keys=("first",), protect_metrics=True) as world:
        assert (await world.http.get("/metrics")).status_code == 401
        assert (await world.http.get("/health")).status_code == 200
        assert (await world.http.get("/metrics", headers={"x-api-key": "first"})).status_code == 200


@pytest.mark.parametrize(
    "path", ["/health", "/health/live", "/health/ready", "/ping", "/version", "/metrics"]
)
async def test_probes_need_no_key(guarded: HttpWorld, path: str) -> None:
    assert (await guarded.http.get(path)).status_code == 200
