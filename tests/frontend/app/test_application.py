"""Paths, methods, limits, models and tokenization of the HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from apis import APIS, Api
from arbora.frontend.http.body import MAX_BODY_BYTES
from http_world import HELLO, MODEL, HttpWorld, http_world

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded() -> AsyncIterator[HttpWorld]:
    async with http_world(api_keys=("first", "second")) as world:
        yield world


async def test_the_served_model_is_listed(world: HttpWorld) -> None:
    (model,) = (await world.client.models.list()).data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "arbora")


async def test_every_name_of_the_model_is_listed_and_served() -> None:
    async with http_world(more_model_names=("gpt-4o",)) as world:
        assert [model.id for model in (await world.client.models.list()).data] == [MODEL, "gpt-4o"]
        assert (await world.client.models.retrieve("gpt-4o")).id == "gpt-4o"
        reply = await world.client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "hi"}]
        )
        assert reply.model == MODEL
        refused = await world.http.get("/v1/models/other")
        assert "this server serves 'tiny' and 'gpt-4o'" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("name", "near"), [("TINY", "tiny"), ("gpt4o", "gpt-4o")])
async def test_a_near_miss_of_a_name_is_suggested(name: str, near: str) -> None:
    async with http_world(more_model_names=("gpt-4o",)) as world:
        refused = await world.http.get(f"/v1/models/{name}")
        assert refused.status_code == 404
        assert f"Did you mean {near!r}?" in refused.json()["error"]["message"]


async def test_any_name_is_served_if_the_server_is_started_so() -> None:
    async with http_world(any_model_name=True) as world:
        reply = await world.client.chat.completions.create(
            model="my-model", messages=[{"role": "user", "content": "hi"}]
        )
        assert reply.model == "my-model"
        assert (await world.client.models.retrieve("my-model")).id == "my-model"
        assert [model.id for model in (await world.client.models.list()).data] == [MODEL]
        answer = await world.http.post("/api/generate", json={"model": "my-model:latest", "prompt": "hi"})
        assert answer.status_code == 200


async def test_a_model_is_shown_by_its_id(world: HttpWorld) -> None:
    assert (await world.client.models.retrieve(MODEL)).id == MODEL


async def test_an_unknown_model_is_not_found(world: HttpWorld) -> None:
    response = await world.http.get("/v1/models/other/one")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/health", "/ping", "/health/live", "/health/ready"])
async def test_a_server_that_serves_is_healthy(world: HttpWorld, path: str) -> None:
    assert (await world.http.get(path)).status_code == 200


async def test_the_version_is_served(world: HttpWorld) -> None:
    assert (await world.http.get("/version")).json()["version"]


async def test_an_unknown_path_is_not_found(world: HttpWorld) -> None:
    response = await world.http.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/chat/completions", "Did you mean /v1/chat/completions? A client's base_url ends with /v1."),
        ("/models", "Did you mean /v1/models? A client's base_url ends with /v1."),
        (
            "/v1/v1/models",
            "Did you mean /v1/models? Leave /v1 out of the client's base_url: Anthropic's clients add it.",
        ),
        ("/v1/chat/completion", "Did you mean /v1/chat/completions?"),
        ("/helth", "Did you mean /health?"),
        ("/v1/engines", "It has /v1/chat/completions, "),
    ],
)
async def test_an_unknown_path_names_the_one_that_was_meant(world: HttpWorld, path: str, advice: str) -> None:
    message = (await world.http.get(path)).json()["error"]["message"]
    assert message.startswith(f"There is no {path} on this server. {advice}")


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        (
            "GET",
            "/v1/chat/completions",
            "Send a chat by POST /v1/chat/completions. Its reply is not stored: to retrieve replies later, "
            "create responses by POST /v1/responses",
        ),
        ("GET", "/v1/chat/completions/chatcmpl-1", "Send a chat by POST /v1/chat/completions."),
        ("DELETE", "/v1/chat/completions/chatcmpl-1", "Send a chat by POST /v1/chat/completions."),
        ("GET", "/v1/chat/completions/chatcmpl-1/messages", "Send a chat by POST /v1/chat/completions."),
        ("POST", "/v1/responses/compact", "This server shortens no conversation"),
        ("GET", "/v1/responses/compact", "This server shortens no conversation"),
        ("DELETE", "/v1/responses/compact", "This server shortens no conversation"),
        ("POST", "/v1/moderations", "No model of this server moderates"),
        ("POST", "/v1/audio/speech", "The model reads and writes only text"),
    ],
)
async def test_a_path_of_openai_that_is_not_served_says_why(
    world: HttpWorld, method: str, path: str, reason: str
) -> None:
    answer = await world.http.request(method, path, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_served")
    assert answer.json()["error"]["message"].startswith(f"{method} {path} is not served. {reason}")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_client_that_is_no_browser_learns_at_the_root_that_the_server_runs(
    world: HttpWorld, method: str
) -> None:
    answer = await world.http.request(method, "/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert answer.text == ("Arbora is running" if method == "GET" else "")


async def test_the_paths_that_errors_name_are_served(world: HttpWorld) -> None:
    message = (await world.http.get("/nothing")).json()["error"]["message"]
    paths = message.partition(" It has ")[2].rstrip(".").split(", ")
    assert {"/v1/chat/completions", "/v1/models", "/cache/pin", "/metrics"} < set(paths)
    for path in paths:
        assert (await world.http.put(path)).status_code == 405


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
async def test_a_request_may_have_a_slash_at_the_end_of_its_path(world: HttpWorld, api: Api) -> None:
    assert (await world.http.post(f"{api.path}/", json=api.body)).status_code == 200


async def test_probes_and_lists_may_have_a_slash_at_the_end_too(world: HttpWorld, guarded: HttpWorld) -> None:
    for path in ("/v1/models/", f"/v1/models/{MODEL}/", "/metrics/", "/openapi.json/"):
        assert (await world.http.get(path)).status_code == 200
    answer = (await world.http.get("/v1/models/")).json()
    assert [model["id"] for model in answer["data"]] == [MODEL]
    assert (await guarded.http.get("/health/")).status_code == 200
    assert (await guarded.http.get("/v1/models/")).status_code == 401
    assert (await world.http.get("/version//")).status_code == 404


async def test_a_slash_at_the_end_of_a_lease_is_a_part_of_its_key(world: HttpWorld) -> None:
    answer = await world.http.delete("/cache/lease/mine/")
    assert answer.json() == {"key": "mine/"}


async def test_the_page_of_the_api_with_a_slash_leads_to_the_one_without(guarded: HttpWorld) -> None:
    """Its files have paths relative to its own."""
    answer = await guarded.http.get("/docs/")
    assert (answer.status_code, answer.headers["location"]) == (308, "../docs")
    assert (await guarded.http.get("/docs/", follow_redirects=True)).url.path == "/docs"


async def test_a_wrong_method_is_named_with_the_right_one(world: HttpWorld) -> None:
    response = await world.http.get("/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    error = response.json()["error"]
    assert error["code"] == "method_not_allowed"
    assert error["message"] == "/v1/completions does not take GET requests, but POST."


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_the_path_that_counts_tokens_is_no_id_of_a_response(world: HttpWorld, method: str) -> None:
    answer = await world.http.request(method, "/v1/responses/input_tokens")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    message = answer.json()["error"]["message"]
    assert message == f"/v1/responses/input_tokens does not take {method} requests, but POST."


async def test_a_wrong_method_is_named_with_those_of_all_routes_of_the_path(world: HttpWorld) -> None:
    response = await world.http.put("/cache")
    assert response.headers.get_list("allow") == ["DELETE, GET, HEAD"]
    assert response.json()["error"]["message"] == "/cache does not take PUT requests, but DELETE and GET."


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_beyond_the_limit_is_refused(world: HttpWorld, declared: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    content = b" " * (MAX_BODY_BYTES + 1) if declared else parts()
    response = await world.http.post("/v1/completions", content=content)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


async def test_a_refused_request_leaves_the_connection_usable(world: HttpWorld) -> None:
    async with httpx.AsyncClient(base_url=world.url, limits=httpx.Limits(max_connections=1)) as http:
        for _ in range(3):
            assert (await http.post("/v1/completions", content=b"{")).status_code == 400
            assert (await http.post("/v1/completions", json={"prompt": "Hello"})).status_code == 200


async def test_a_server_without_a_model_is_alive_but_not_ready() -> None:
    async with http_world(replica=False) as world:
        world.supervisor.peer_down()
        for path, status in (("/health/live", 200), ("/health/ready", 503), ("/health", 503)):
            assert (await world.http.get(path)).status_code == status
        await world.start_replica()
        assert (await world.http.get("/health/ready")).status_code == 200


@pytest.mark.parametrize("has_tools", [False, True])
async def test_a_model_tells_whether_its_template_has_tools(has_tools: bool) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    async with http_world(chat_template="{{ tools }}" * has_tools + template) as world:
        (card,) = (await world.http.get("/v1/models")).json()["data"]
        assert card["template_has_tools"] is has_tools


async def test_a_model_tells_its_context_device_and_sampling(world: HttpWorld) -> None:
    (card,) = (await world.http.get("/v1/models")).json()["data"]
    assert (card["max_model_len"], card["device"], card["is_builtin"]) == (256, "cpu", False)
    assert card["sampling"] == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }


async def test_a_text_is_tokenized(world: HttpWorld) -> None:
    body = {"model": MODEL, "prompt": "Hello, how", "return_token_strs": True}
    answer = (await world.http.post("/tokenize", json=body)).json()
    assert answer["tokens"] == world.ids("Hello, how")
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 256
    assert "".join(answer["token_strs"]) == "Hello, how"


async def test_a_conversation_is_tokenized_as_it_would_be_served(world: HttpWorld) -> None:
    answer = (await world.http.post("/tokenize", json={"messages": HELLO})).json()
    assert world.text(answer["tokens"]) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("repeats", [1, 3000])
async def test_long_texts_are_tokenized_as_short_ones(world: HttpWorld, repeats: int) -> None:
    text = "the cat sat on the mat\n" * repeats
    tokens = (await world.http.post("/tokenize", json={"prompt": text})).json()["tokens"]
    messages = [{"role": "user", "content": text}]
    rendered = (await world.http.post("/tokenize", json={"messages": messages})).json()["tokens"]
    assert tokens == world.ids(text)
    assert world.text(rendered) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


async def test_tokenizing_needs_a_text_or_a_conversation(world: HttpWorld) -> None:
    assert (await world.http.post("/tokenize", json={})).status_code == 400


async def test_tokens_become_text_again(world: HttpWorld) -> None:
    response = await world.http.post("/detokenize", json={"tokens": world.ids("the cat<|im_end|>")})
    assert response.json() == {"prompt": "the cat<|im_end|>"}


async def test_a_model_without_chat_template_serves_completions_only() -> None:
    async with http_world(template=None) as world:
        response = await world.http.post("/v1/chat/completions", json={"messages": HELLO})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "no_chat_template")
        assert (await world.http.post("/v1/completions", json={"prompt": "Hello"})).status_code == 200
