"""/v1/models is shared: the header `anthropic-version` says which API's client asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic_world import AnthropicWorld, anthropic_world
from http_world import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = [MODEL, "one/b", "two"]
VERSION = {"anthropic-version": "2023-06-01"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world(more_model_names=tuple(NAMES[1:])) as world:
        yield world


async def page(world: AnthropicWorld, **query: Any) -> Any:
    return await world.http_world.http.get("/v1/models", params=query, headers=VERSION)


async def test_a_model_has_the_shape_that_anthropic_documents(world: AnthropicWorld) -> None:
    body = (await page(world)).json()
    assert [model["id"] for model in body["data"]] == NAMES
    assert (body["has_more"], body["first_id"], body["last_id"]) == (False, NAMES[0], NAMES[-1])
    model = body["data"][0]
    assert (model["type"], model["display_name"]) == ("model", MODEL)
    assert datetime.fromisoformat(model["created_at"]).year >= 2025
    assert model["max_input_tokens"] == world.http_world.context_length


async def test_each_client_gets_its_own_form(world: AnthropicWorld) -> None:
    assert [model.id async for model in world.client.models.list()] == NAMES
    assert (await world.client.models.retrieve("one/b")).id == "one/b"
    (openai, *_) = (await world.http_world.client.models.list()).data
    assert (openai.id, openai.object) == (MODEL, "model")
    assert (await world.http_world.client.models.retrieve(MODEL)).owned_by == "arbora"


async def test_the_list_has_pages(world: AnthropicWorld) -> None:
    assert [model.id async for model in world.client.models.list(limit=1)] == NAMES
    middle = (await page(world, limit=1, after_id=NAMES[0])).json()
    assert ([model["id"] for model in middle["data"]], middle["has_more"]) == ([NAMES[1]], True)
    before = (await page(world, limit=1, before_id=NAMES[2])).json()
    assert ([model["id"] for model in before["data"]], before["has_more"]) == ([NAMES[1]], True)
    assert (await page(world, after_id=NAMES[2])).json()["data"] == []


@pytest.mark.parametrize(
    "query",
    [{"limit": "0"}, {"limit": "1001"}, {"limit": "1".zfill(5000)}, {"limit": "x"}, {"after_id": "x"}],
)
async def test_a_wrong_query_is_refused_by_name(world: AnthropicWorld, query: Any) -> None:
    answer = await page(world, **query)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"]["param"] in query


async def test_an_unknown_model_is_not_found_in_the_form_of_its_client(world: AnthropicWorld) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        await world.client.models.retrieve("other")
    assert caught.value.body["error"]["type"] == "not_found_error"
    answer = await world.http_world.http.get("/v1/models/other")
    assert answer.json()["error"]["code"] == "model_not_found"
