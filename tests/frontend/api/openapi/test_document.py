"""The OpenAPI document: complete, valid, and true of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from anthropic_world import TEMPLATE, TOOLS, called
from arbora.frontend.app.apis import APIS
from arbora.frontend.app.application import server_routes
from arbora.frontend.http.operation import DescribedRoute
from batch_world import batch_world, chat, jsonl
from generated_requests import events_of
from http_world import HELLO, MODEL, HttpWorld, http_world
from openapi_spec_validator import validate
from reply_schemas import check, schema_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES, GENERATE = "/v1/responses", "/generate"
FUNCTIONS: Any = [
    {
        "type": "function",
        "function": {"name": tool["name"], "parameters": tool["input_schema"]},
    }
    for tool in TOOLS
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(TEMPLATE, context_length=2048) as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document(world: HttpWorld) -> Any:
    return (await world.http.get("/openapi.json")).json()


async def test_the_document_is_valid(document: Any) -> None:
    validate(document)
    assert document["openapi"] == "3.1.0"


async def test_every_route_declares_its_types(world: HttpWorld) -> None:
    """A path that ends with a slash is another name of the path without it."""
    missing = [
        f"{api.name} {route.path}"
        for api, route in server_routes(world.http_service, APIS)
        if not isinstance(route, DescribedRoute)
        and route.include_in_schema  # other paths only say why they are not served
        and not route.path.endswith("/")
    ]
    assert missing == []


async def test_every_api_has_a_name_and_a_type_of_errors() -> None:
    for api in (APIS.default, *APIS.others):
        assert api.name
        assert api.error is not None


async def test_every_operation_has_its_own_id_and_a_summary(document: Any) -> None:
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert all(each["summary"] for each in operations)


async def test_fields_have_the_ranges_that_requests_are_checked_for(world: HttpWorld, document: Any) -> None:
    fields = document["components"]["schemas"]["OpenaiChatRequest"]["properties"]
    assert {"type": "integer", "minimum": 1, "maximum": 128} in fields["n"]["anyOf"]
    assert {"type": "number", "minimum": 0, "maximum": 1} in fields["top_p"]["anyOf"]
    assert {"type": "string", "enum": ["schema", "any"]} in fields["property_order"]["anyOf"]
    for field, value, permitted in [
        ("n", 129, "between 1 and 128"),
        ("top_p", 2, "between 0 and 1"),
        ("property_order", "none", "'schema' or 'any'"),
    ]:
        refused = await world.http.post(CHAT, json={"messages": HELLO, field: value})
        assert refused.status_code == 400
        assert permitted in refused.json()["error"]["message"]


async def test_every_number_of_a_body_has_a_range(document: Any) -> None:
    schemas = document["components"]["schemas"]
    posted = [
        each["post"]["requestBody"]
        for each in document["paths"].values()
        if "requestBody" in each.get("post", {})
    ]
    unbounded, seen, pending = [], set(), list(posted)
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            name = part.get("$ref", "").rpartition("/")[2]
            if name and name not in seen:
                seen.add(name)
                pending.append(schemas[name])
            pending += part.values()
    for name in sorted(seen):
        for field, schema in schemas[name].get("properties", {}).items():
            numbers = [
                each
                for each in (schema, *schema.get("anyOf", ()))
                if each.get("type") in ("integer", "number")
            ]
            if not all({"minimum", "exclusiveMinimum"} & each.keys() for each in numbers):
                unbounded.append(f"{name}.{field}")
    # keep_alive may be negative: for ever
    kept = ("EmbedRequest", "EmbeddingsRequest", "OllamaChatRequest", "OllamaGenerateRequest")
    assert unbounded == [f"{name}.keep_alive" for name in kept]
    assert schemas["Options"]["properties"]["temperature"]["anyOf"][0]["maximum"] == 2


async def test_classes_of_one_name_have_names_by_their_package(document: Any) -> None:
    names = set(document["components"]["schemas"])
    assert {"OpenaiUsage", "AnthropicUsage", "OpenaiErrorResponse", "AnthropicErrorResponse"} <= names
    assert not [name for name in names if "." in name]


async def test_members_that_a_reply_always_has_are_required(document: Any) -> None:
    schemas = document["components"]["schemas"]
    assert {"id", "object", "created", "choices", "usage"} <= set(schemas["ChatCompletion"]["required"])
    assert "prompt_logprobs" not in schemas["ChatCompletion"]["required"]
    assert schemas["CompletionRequest"]["required"] == ["prompt"]


async def test_a_path_that_two_apis_share_has_the_answers_of_both(document: Any) -> None:
    operation = document["paths"]["/v1/models"]["get"]
    assert operation["tags"] == ["OpenAI", "Anthropic"]
    assert {each["name"] for each in operation["parameters"]} >= {"limit", "anthropic-version"}
    assert "parameters" not in document["paths"][MESSAGES]["post"]
    assert len(operation["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]) == 2


async def test_the_examples_of_bodies_match_their_schemas(document: Any) -> None:
    bodies = [
        operation["requestBody"]["content"].get("application/json", {})
        for methods in document["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    with_examples = [body for body in bodies if "example" in body]
    assert len(with_examples) > 5
    for body in with_examples:
        check(body["example"], {**body["schema"], "components": document["components"]})


async def test_an_error_status_has_the_form_and_number_of_its_api(document: Any) -> None:
    responses = document["paths"][MESSAGES]["post"]["responses"]
    assert {"429", "503", "504", "529"} < set(responses)
    schema = responses["529"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/AnthropicErrorResponse"}


async def test_without_keys_no_request_needs_one(document: Any) -> None:
    assert "securitySchemes" not in document["components"]
    assert "401" not in document["paths"][CHAT]["post"]["responses"]


async def test_with_keys_the_document_needs_none_and_says_which_requests_do() -> None:
    async with http_world(api_keys=("secret",)) as guarded:
        document = (await guarded.http.get("/openapi.json")).json()
        validate(document)
        assert document["paths"][CHAT]["post"]["security"] == [{"bearer": []}, {"key": []}]
        assert "security" not in document["paths"]["/health"]["get"]
        assert (await guarded.http.post(CHAT, json={"messages": HELLO})).status_code == 401


REQUESTS: Any = [
    (CHAT, {"messages": HELLO, "n": 2, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": HELLO, "tools": FUNCTIONS}),
    (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    (TEXT, {"prompt": "Hello", "echo": True, "logprobs": 1, "max_tokens": 50}),
    (TEXT, {"prompt": ["Hello", [1, 2]], "n": 2, "stop": "e", "max_tokens": 50}),
    (MESSAGES, {"messages": HELLO, "max_tokens": 500, "tools": TOOLS}),
    (MESSAGES, {"messages": HELLO, "max_tokens": 2, "context_management": {"edits": []}}),
    (RESPONSES, {"input": HELLO, "top_logprobs": 2, "instructions": "Be brief."}),
    (
        RESPONSES,
        {"input": "Hello", "tools": [{"type": "function", **each["function"]} for each in FUNCTIONS]},
    ),
    (GENERATE, {"prompt": ["Hello", "Hi"], "n": 2, "logprobs": 2, "return_prompt_token_ids": True}),
    (GENERATE, {"messages": HELLO, "max_tokens": 50, "stop": "zz"}),
    (RESPONSES, {"input": "Hello", "max_output_tokens": 2, "include": ["reasoning.encrypted_content"]}),
]
TEXTS = ["<think>\nHm.\n</think>\n\nHello.", "Well. " + called("weather", '{"city": "Rome"}')]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_replies_and_streams_have_only_members_of_their_schemas(
    world: HttpWorld, document: Any, path: str, body: Any, text: str
) -> None:
    world.script = world.says(text)
    if "stream_options" not in body:
        reply = await world.http.post(path, json=body)
        assert reply.status_code == 200
        check(reply.json(), schema_of(document, path, "200", "application/json"))
    stream = await world.http.post(path, json={**body, "stream": True})
    events = list(events_of(stream.content))
    assert len(events) > (1 if path == GENERATE else 2)  # /generate joins outputs that arrive together
    schema = schema_of(document, path, "200", "text/event-stream")
    for event in events:
        check(event, schema)


OLLAMA: Any = [
    ("/api/chat", {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
    ("/api/chat", {"messages": HELLO, "tools": FUNCTIONS, "think": True}),
    ("/api/chat", {"messages": HELLO, "format": {"type": "object"}, "options": {"num_predict": 2}}),
    ("/api/generate", {"prompt": "Hello", "options": {"num_predict": 5}}),
    ("/api/generate", {"prompt": "Hello", "think": True}),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("path", "body"), OLLAMA)
async def test_answers_of_ollamas_api_have_only_members_of_their_schemas(
    world: HttpWorld, document: Any, path: str, body: Any, text: str
) -> None:
    world.script = world.says(text)
    reply = await world.http.post(path, json={**body, "stream": False})
    assert reply.status_code == 200
    check(reply.json(), schema_of(document, path, "200", "application/json"))
    lines = list(events_of((await world.http.post(path, json=body)).content))
    assert len(lines) > 1
    schema = schema_of(document, path, "200", "application/x-ndjson")
    for line in lines:
        check(line, schema)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", "/api/tags"),
        ("get", "/api/ps"),
        ("get", "/api/version"),
        ("post", "/api/show"),
        ("get", "/v1/models"),
        ("get", "/version"),
    ],
)
async def test_descriptions_have_only_members_of_their_schemas(
    world: HttpWorld, document: Any, method: str, path: str
) -> None:
    reply = await world.http.request(method, path, json={"model": MODEL} if method == "post" else None)
    assert reply.status_code == 200
    check(reply.json(), schema_of(document, path, "200", "application/json", method))


async def test_batches_and_files_have_only_members_of_their_schemas(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as batches:
        http = batches.world.http
        document = (await http.get("/openapi.json")).json()

        async def checked(method: str, path: str, shape: str, **request: Any) -> Any:
            reply = await http.request(method, path, **request)
            assert reply.status_code == 200, reply.text
            check(reply.json(), schema_of(document, shape, "200", "application/json", method))
            return reply.json()

        form: Any = {
            "purpose": "batch",
            "expires_after[anchor]": "created_at",
            "expires_after[seconds]": 3600,
        }
        upload: Any = {"data": form, "files": {"file": ("in.jsonl", jsonl(chat("a"), chat("b", n=0)))}}
        file = await checked("post", "/v1/files", "/v1/files", **upload)
        assert file["expires_at"] == file["created_at"] + 3600
        fields = document["components"]["schemas"]["Upload"]["properties"]
        assert set(form) < set(fields)
        body: Any = {"input_file_id": file["id"], "endpoint": CHAT, "metadata": {"a": "b"}}
        made = await checked("post", "/v1/batches", "/v1/batches", json=body)
        batches.world.running.gate.clear()
        open_batch = await batches.until(await batches.start(chat("c")), "in_progress")
        await checked("post", f"/v1/batches/{open_batch.id}/cancel", "/v1/batches/{id}/cancel")
        batches.world.running.gate.set()
        ended = await batches.ended(await batches.client.batches.retrieve(made["id"]))
        assert ended.request_counts.to_dict() == {"total": 2, "completed": 1, "failed": 1}
        await checked("get", f"/v1/batches/{ended.id}", "/v1/batches/{id}")
        await checked("get", "/v1/batches", "/v1/batches")
        await checked("get", "/v1/files", "/v1/files")
        await checked("get", f"/v1/files/{ended.output_file_id}", "/v1/files/{id}")
        refused = await http.post("/v1/batches", json={**body, "completion_window": "31 days"})
        check(refused.json(), schema_of(document, "/v1/batches", "400", "application/json"))
        await checked("delete", f"/v1/files/{file['id']}", "/v1/files/{id}")


@pytest.mark.parametrize("path", [CHAT, MESSAGES, GENERATE, "/api/chat"])
async def test_errors_have_only_members_of_their_schemas(world: HttpWorld, document: Any, path: str) -> None:
    refused = await world.http.post(path, json={"messages": 5})
    check(refused.json(), schema_of(document, path, "400", "application/json"))


async def test_the_page_loads_nothing_from_elsewhere(world: HttpWorld) -> None:
    page = await world.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "//" not in page.text
    for file in ("swagger-ui-bundle.js", "swagger-ui.css", "start.js"):
        assert f"docs/{file}" in page.text
        assert (await world.http.get(f"/docs/{file}")).status_code == 200


async def test_a_file_of_the_page_is_the_same_unpacked(world: HttpWorld) -> None:
    packed = await world.http.get("/docs/swagger-ui.css")
    plain = await world.http.get("/docs/swagger-ui.css", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content


@pytest.mark.parametrize("file", ["VERSION", "LICENSE", "..%2F__init__.py", "nothing"])
async def test_only_the_files_of_the_page_are_served(world: HttpWorld, file: str) -> None:
    answer = await world.http.get(f"/docs/{file}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_the_page_needs_no_key() -> None:
    async with http_world(api_keys=("secret",)) as guarded:
        for path in ("/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"):
            assert (await guarded.http.get(path)).status_code == 200


async def test_a_server_of_one_api_lists_that_api_alone() -> None:
    async with http_world(apis=type(APIS)(APIS.default)) as world:
        document = (await world.http.get("/openapi.json")).json()
        assert MESSAGES not in document["paths"]
        assert [tag["name"] for tag in document["tags"]] == ["OpenAI", "Server"]
