"""The replies and events of the Responses API are of the types that its routes declare."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Union, get_args

import msgspec
import pytest
import pytest_asyncio
from arbora.frontend.stored.responses.event_types import EVENTS
from arbora.frontend.stored.responses.events import Events
from arbora.frontend.stored.responses.responses import Response
from generated_requests import events_of
from jsonschema import Draft202012Validator
from responses_world import ResponsesWorld, called, responses_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
TYPES: Any = Union[EVENTS]  # noqa: UP007
TAGS = {str(kind.__struct_config__.tag) for kind in get_args(TYPES)}
TOOLS: Any = [
    {"type": "function", "name": "clock"},
    {"type": "custom", "name": "code"},
    {"type": "local_shell"},
]
SAID = [
    "<think>\nhm\n</think>\n\nWell. " + called("clock", "{}"),
    called("code", '{"input": "1 + 1"}'),
    called("local_shell", '{"command": ["ls"]}'),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[ResponsesWorld]:
    async with responses_world() as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document(world: ResponsesWorld) -> Any:
    return (await world.request("GET", "/openapi.json")).json()


def tags_of(stream: bytes) -> Iterator[str]:
    """The types of the events, each of which is the same once it is decoded and encoded."""
    for event in events_of(stream):
        decoded = msgspec.json.decode(json.dumps(event), type=TYPES)
        assert json.loads(msgspec.json.encode(decoded)) == event
        yield event["type"]


async def test_every_event_is_of_a_declared_type_and_has_no_other_members(world: ResponsesWorld) -> None:
    seen: set[str] = set()
    for text in SAID:
        world.says(text)
        stream = await world.post(
            stream=True, tools=TOOLS, top_logprobs=1, include=["reasoning.encrypted_content"]
        )
        seen.update(tags_of(stream.content))
    world.says("Hello, how are you?")
    seen.update(tags_of((await world.post(stream=True, max_output_tokens=2)).content))
    response = msgspec.json.decode((await world.post()).content, type=Response)
    seen.update(tags_of(Events().of_response("failed", response)))
    assert seen == TAGS


async def test_a_format_without_a_schema_is_returned_as_it_was_sent(world: ResponsesWorld) -> None:
    assert (await world.post()).json()["text"] == {"format": {"type": "text"}}
    format = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    assert (await world.post(text={"format": format})).json()["text"] == {"format": format}


async def test_replies_of_all_paths_match_their_schemas(world: ResponsesWorld, document: Any) -> None:
    asked: set[tuple[str, str]] = set()

    async def ask(method: str, path: str, body: Any = None, **ids: str) -> Any:
        answer = await world.request(method, path.format(**ids), json=body)
        assert answer.status_code == 200, answer.text
        declared = document["paths"][path][method.lower()]["responses"]["200"]["content"]
        schema = {**declared["application/json"]["schema"], "components": document["components"]}
        Draft202012Validator(schema).validate(answer.json())
        asked.add((method.lower(), path))
        return answer.json()

    world.says("<think>\nhm\n</think>\n\nYes")
    items = {"items": [{"role": "user", "content": "Hi"}]}
    made = "/v1/conversations"
    id = (await ask("POST", made, {**items, "metadata": {"a": "b"}}))["id"]
    conversation = {"id": id}
    await ask("POST", "/v1/responses/input_tokens", {"input": "Hello"})
    response = await ask("POST", "/v1/responses", {"input": "Hello", "conversation": id, "top_logprobs": 1})
    await ask("GET", "/v1/responses/{id}", id=response["id"])
    await ask("GET", "/v1/responses/{id}/input_items", id=response["id"])
    await ask("DELETE", "/v1/responses/{id}", id=response["id"])
    queued = await ask("POST", "/v1/responses", {"input": "Hello", "background": True})
    await ask("POST", "/v1/responses/{id}/cancel", id=queued["id"])
    await ask("POST", made + "/{id}", {"metadata": {"a": "c"}}, **conversation)
    await ask("GET", made + "/{id}", **conversation)
    await ask("POST", made + "/{id}/items", items, **conversation)
    kept = (await ask("GET", made + "/{id}/items", **conversation))["data"]
    assert len(kept) == 5
    for item in kept:
        await ask("GET", made + "/{id}/items/{item}", item=item["id"], **conversation)
    await ask("DELETE", made + "/{id}/items/{item}", item=kept[0]["id"], **conversation)
    await ask("DELETE", made + "/{id}", **conversation)
    declared = {
        (method, path)
        for path, methods in document["paths"].items()
        if path.startswith(("/v1/responses", "/v1/conversations"))
        for method in methods
    }
    assert asked == declared
