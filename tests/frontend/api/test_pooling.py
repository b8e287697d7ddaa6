"""Embeddings, scores, rankings and classes over HTTP, in the forms of OpenAI, vLLM, Jina and Ollama."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import ollama
import pytest
from arbora.frontend.api.openai.pooling import prepare_embeddings
from arbora.frontend.app.apis import APIS
from arbora.frontend.core.pooling import _find_least
from arbora.frontend.http.pooling_endpoint import PoolingEndpoint
from arbora.frontend.stored.batches.endpoints import Endpoints
from arbora.runtime.api_keys import Allowance, Allowances, ApiKey, key_hash
from arbora.runtime.messages import Generate, Pooling
from arbora.runtime.messages.generation import BACKGROUND_PRIORITY
from http_world import MODEL, HttpWorld, error_of, http_world

CONTEXT = 256
EMBEDS = Pooling(size=4, is_normalized=True, reads_cache=True, takes_whole=False)
RANKS = Pooling(
    size=1,
    is_normalized=False,
    reads_cache=False,
    takes_whole=True,
    labels=["LABEL_0"],
    activation="sigmoid",
)
CLASSIFIES = Pooling(
    size=3,
    is_normalized=False,
    reads_cache=False,
    takes_whole=True,
    labels=["sad", "glad", "calm"],
    activation="softmax",
)


@contextlib.asynccontextmanager
async def world_of(pooling: Pooling | None, **more: Any) -> AsyncIterator[HttpWorld]:
    async with http_world(pooling=pooling, context_length=CONTEXT, **more) as world:
        yield world


async def post(world: HttpWorld, path: str, **body: Any) -> Any:
    answer = await world.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def expected(world: HttpWorld, ids: list[int], dimensions: int = 4) -> Any:
    vector = np.array([len(ids), ids[-1], 0, 1], np.float32)[:dimensions]
    return vector / np.linalg.norm(vector)


async def test_each_form_of_input_gets_its_embedding() -> None:
    async with world_of(EMBEDS) as world:
        hello, there = world.ids("Hello"), world.ids("there you are")
        forms: list[tuple[Any, list[list[int]]]] = [
            ("Hello", [hello]),
            (["Hello", "there you are"], [hello, there]),
            (hello, [hello]),
            ([there, hello], [there, hello]),
        ]
        for given, lists in forms:
            answer: Any = await world.client.embeddings.create(model=MODEL, input=given)
            assert [each.index for each in answer.data] == list(range(len(lists)))
            for each, ids in zip(answer.data, lists, strict=True):
                assert np.allclose(each.embedding, expected(world, ids))
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, lists))


async def test_dimensions_cut_an_embedding_which_keeps_the_length_1() -> None:
    async with world_of(EMBEDS) as world:
        body = {"input": "Hello", "dimensions": 2}
        floats = (await post(world, "/v1/embeddings", **body))["data"][0]["embedding"]
        text = (await post(world, "/v1/embeddings", **body, encoding_format="base64"))["data"][0]["embedding"]
        assert np.allclose(floats, expected(world, world.ids("Hello"), 2))
        assert np.array_equal(np.frombuffer(base64.b64decode(text), "<f4"), np.array(floats, np.float32))
        error = await error_of(world, "/v1/embeddings", {"input": "a", "dimensions": 5})
        assert error["message"] == "dimensions is 5, but must be between 1 and 4."


async def test_a_prompt_reads_the_cache_only_if_the_model_can() -> None:
    for pooling, namespace in ((EMBEDS, ""), (CLASSIFIES, None)):
        async with world_of(pooling) as world:
            path = "/v1/classify" if pooling.labels else "/v1/embeddings"
            await post(world, path, input="Hello")
            (sent,) = world.running.of_kind(Generate)
            assert (sent.namespace, sent.sampling.max_tokens) == (namespace, 0)


async def test_a_long_input_is_an_error_unless_it_may_be_cut() -> None:
    long = "Hello there " * CONTEXT
    async with world_of(EMBEDS) as world:
        error = await error_of(world, "/v1/embeddings", {"input": ["a", long]})
        assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
        assert "send truncate_prompt_tokens" in error["message"]
        ids = list(range(3, 3 + CONTEXT + 1))
        for limit, most in ((-1, CONTEXT), (5, 5)):
            for given in (long, ids):
                answer = await post(world, "/v1/embeddings", input=given, truncate_prompt_tokens=limit)
                assert answer["usage"]["prompt_tokens"] == most
        assert world.running.of_kind(Generate)[-1].prompt == np.array(ids[:5], "<i4").tobytes()
        error = await error_of(world, "/v1/embeddings", {"input": "a", "truncate_prompt_tokens": CONTEXT + 1})
        assert error["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [[1, 10**6]]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [[1]] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimension": 2}, "dimension"),
        ({}, "input"),
    ],
)
async def test_a_wrong_field_is_named(body: dict[str, Any], param: str) -> None:
    async with world_of(EMBEDS) as world:
        assert (await error_of(world, "/v1/embeddings", body))["param"] == param


async def test_2048_inputs_take_few_places_and_let_others_in_between() -> None:
    async with world_of(EMBEDS, max_waiting=64) as world:
        world.running.gate.clear()
        many = asyncio.create_task(post(world, "/v1/embeddings", input=[f"text {at}" for at in range(2048)]))
        await world.until(lambda: len(world.running.rows) == 63)
        alone = asyncio.create_task(post(world, "/v1/embeddings", input="Hello"))
        await asyncio.sleep(0.05)
        world.running.gate.set()
        await alone
        assert not many.done()
        answer = await many
        assert [each["index"] for each in answer["data"]] == list(range(2048))
        last = np.array(answer["data"][2047]["embedding"])
        assert np.allclose(last, expected(world, world.ids("text 2047")))


async def test_a_client_that_leaves_aborts_its_inputs() -> None:
    async with world_of(EMBEDS) as world:
        world.running.gate.clear()
        leaving = asyncio.create_task(world.http.post("/v1/embeddings", json={"input": ["a", "b"]}))
        await world.until(lambda: len(world.running.rows) == 2)
        leaving.cancel()
        await world.until(lambda: not world.running.rows)


async def test_a_restart_of_the_replica_computes_the_inputs_again() -> None:
    async with world_of(EMBEDS) as world:
        world.running.gate.clear()
        asked = asyncio.create_task(post(world, "/v1/embeddings", input=["Hello", "there"]))
        await world.until(lambda: len(world.running.rows) == 2)
        await world.kill_replica()
        await world.start_replica()
        assert np.allclose((await asked)["data"][0]["embedding"], expected(world, world.ids("Hello")))


async def test_a_key_s_limits_count_the_tokens_of_inputs() -> None:
    key = ApiKey(name="team", sha256=key_hash("secret"), priority=3, tokens_per_minute=1000)
    async with world_of(EMBEDS, api_keys=[key]) as world:
        answer = await world.http.post(
            "/v1/embeddings", json={"input": ["Hello", "there"]}, headers={"authorization": "Bearer secret"}
        )
        assert answer.status_code == 200
        first, second = world.running.of_kind(Generate)
        tokens = len(world.ids("Hello")) + len(world.ids("there"))
        assert first.quota is not None and second.quota is not None
        assert (first.quota.prompt_tokens, second.quota.prompt_tokens) == (tokens, None)
        assert (first.priority, second.priority) == (3, 3)


async def test_a_line_of_a_batch_comes_last_whatever_its_key_s_priority() -> None:
    key = ApiKey(name="team", sha256=key_hash("secret"), priority=3)
    async with world_of(EMBEDS, api_keys=[key]) as world:
        http = world.http_service
        apps = {"/v1/embeddings": PoolingEndpoint(http, prepare_embeddings)}
        reply = await Endpoints(http, [APIS.default], apps).call("/v1/embeddings", b'{"input":"a"}', key)
        assert reply.status == 200
        assert [each.priority for each in world.running.of_kind(Generate)] == [BACKGROUND_PRIORITY]


def test_the_least_of_each_allowance_is_left() -> None:
    allowances = [
        Allowances(Allowance(9, requests, 0.0), Allowance(99, tokens, 0.0))
        for requests, tokens in ((2, 50), (3, 40))
    ]
    assert _find_least([*allowances, None]) == Allowances(allowances[0].requests, allowances[1].tokens)
    assert _find_least([None]) == Allowances()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/classify", {"input": "a"}),
    ],
)
async def test_a_generating_model_says_how_to_serve_embeddings(path: str, body: dict[str, Any]) -> None:
    async with world_of(None) as world:
        error = await error_of(world, path, body)
        assert error["code"] == "unsupported_task" and "--runner pooling" in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_model_that_pools_does_not_generate(path: str) -> None:
    async with world_of(EMBEDS) as world:
        body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
        error = await error_of(world, path, body)
        assert error["code"] == "unsupported_task" and "/v1/embeddings" in error["message"]


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")]
)
async def test_embeddings_are_compared_by_their_cosine(names: tuple[str, str]) -> None:
    async with world_of(EMBEDS) as world:
        one = await post(world, "/v1/score", **{names[0]: "Hello", names[1]: ["Hello", "there you are"]})
        vectors = [expected(world, world.ids(text)) for text in ("Hello", "there you are")]
        scores = [each["score"] for each in one["data"]]
        assert np.allclose(scores, [1.0, float(vectors[0] @ vectors[1])])
        both = await post(world, "/score", **{names[0]: ["Hello", "there"], names[1]: ["Hello", "there"]})
        assert np.allclose([each["score"] for each in both["data"]], 1.0)


async def test_texts_to_score_come_in_one_pair_of_fields() -> None:
    async with world_of(EMBEDS) as world:
        for body in ({"text_1": "a"}, {"text_1": "a", "documents": []}, {}):
            error = await error_of(world, "/v1/score", body)
            assert (
                "text_1 with text_2, data_1 with data_2, queries with documents, queries with items"
                in error["message"]
            )
        error = await error_of(world, "/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
        assert error["message"] == "text_2 has 3 texts, but text_1 has 2: it must have one, or as many."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text_1": "a", "text_2": []}, "text_2 must not be empty: it has no texts."),
        ({"text_1": [], "text_2": "a"}, "text_1 must not be empty: it has no texts."),
        ({"text_1": "", "text_2": "a"}, "text_1 must not be empty: it has no tokens."),
        ({"text_1": "a", "text_2": ["a"] * 2049}, "text_2 has 2049 inputs, but may have at most 2048."),
    ],
)
async def test_an_empty_or_long_list_of_texts_is_named(body: dict[str, Any], message: str) -> None:
    async with world_of(EMBEDS) as world:
        assert (await error_of(world, "/v1/score", body))["message"] == message


@pytest.mark.parametrize("pooling", [EMBEDS, RANKS])
async def test_a_query_is_compared_with_2048_documents_of_a_megabyte(pooling: Pooling) -> None:
    async with world_of(pooling) as world:
        body = {"query": "a", "documents": ["Hello " * 85] * 2048, "truncate_prompt_tokens": 3}
        assert len((await post(world, "/v1/rerank", **body))["results"]) == 2048


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_documents_come_in_the_order_of_their_scores(path: str) -> None:
    documents = ["Hello", {"text": "Hello there you are"}, "Hello there"]
    async with world_of(RANKS) as world:
        whole = await post(world, path, query="a", documents=documents)
        sent = world.running.of_kind(Generate)
        lengths = [len(each.prompt) // 4 for each in sent]
        order = sorted(range(3), key=lambda at: -lengths[at])
        assert [each["index"] for each in whole["results"]] == order
        logits = [lengths[at] for at in order]
        scores = [each["relevance_score"] for each in whole["results"]]
        assert np.allclose(scores, 1 / (1 + np.exp(-np.array(logits, float))))
        assert whole["results"][0]["document"] == {"text": "Hello there you are"}
        assert whole["usage"]["prompt_tokens"] == sum(lengths)
        best = await post(
            world, path, query="a", documents=documents, top_n=1, return_documents=False, use_activation=False
        )
        assert best["results"] == [{"index": order[0], "relevance_score": float(logits[0])}]


async def test_classes_have_probabilities_and_the_best_one_s_name() -> None:
    async with world_of(CLASSIFIES) as world:
        ids = world.ids("Hello there")
        logits = np.array([len(ids), ids[-1], 0], float)
        (found,) = (await post(world, "/v1/classify", input="Hello there"))["data"]
        powers = np.exp(logits - logits.max())
        assert found["label"] == ["sad", "glad", "calm"][int(logits.argmax())] and found["num_classes"] == 3
        assert np.allclose(found["probs"], powers / powers.sum())
        (raw,) = (await post(world, "/classify", input=ids, use_activation=False))["data"]
        assert np.allclose(raw["probs"], logits)
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/v1/score", {"text_1": "a", "text_2": "b"}),
            ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ):
            error = await error_of(world, path, body)
            assert (error["param"], error["code"]) == ("model", "unsupported_task")


async def test_ollama_s_client_gets_embeddings_of_the_length_1() -> None:
    async with world_of(EMBEDS) as world:
        client = ollama.AsyncClient(host=world.url)
        found = await client.embed(model=MODEL, input=["Hello", "Hello there " * CONTEXT])
        assert np.allclose(found.embeddings[0], expected(world, world.ids("Hello")))
        assert found.prompt_eval_count == len(world.ids("Hello")) + CONTEXT
        older = await client.embeddings(model=MODEL, prompt="Hello")
        assert np.allclose(older.embedding, expected(world, world.ids("Hello")))
        with pytest.raises(ollama.ResponseError, match="input has at least"):
            await client.embed(model=MODEL, input="Hello there " * CONTEXT, truncate=False)
        assert (await client.embed(model=MODEL, input=[])).embeddings == []
        assert (await client.embed(model=MODEL, input="")).embeddings == []
        assert (await client.embeddings(model=MODEL, prompt="")).embedding == []
        shown = await client.show(MODEL)
        assert shown.capabilities == ["embedding"]


@pytest.mark.parametrize(
    ("path", "body", "meant"),
    [
        ("/v1/embeddings", {"input": "a", "dimension": 2}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_token": 5}, "truncate_prompt_tokens"),
        ("/v1/classify", {"input": "a", "activation": True}, "use_activation"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "use_activations": True}, "use_activation"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "softmax": True}, "use_activation"),
        ("/v1/score", {"text_1": "a", "text2": "b"}, "text_2"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_k": 1}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "topn": 1}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "return_document": True}, "return_documents"),
    ],
)
async def test_a_misspelt_field_is_refused_with_its_right_name(
    path: str, body: dict[str, Any], meant: str
) -> None:
    async with world_of(EMBEDS) as world:
        error = await error_of(world, path, body)
    assert error["code"] == "unknown_parameter"
    assert error["message"].endswith(f"is no known field. Did you mean {meant}?")


@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank", "/v1/embeddings"])
async def test_an_unknown_field_that_means_nothing_here_is_ignored_with_a_warning(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {"/v1/score": {"text_1": "a", "text_2": "b"}, "/v1/embeddings": {"input": "a"}}
    body = texts.get(path, {"query": "a", "documents": ["b"]})
    async with world_of(EMBEDS) as world:
        await post(world, path, **body, billing_tag="x")
    assert "unknown request field 'billing_tag'" in caplog.text
