"""Batches, by OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from arbora.runtime.messages import BACKGROUND_PRIORITY, Generate
from batch_world import CHATS, BatchWorld, batch_world, chat
from http_world import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def batches(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BatchWorld]:
    async with batch_world(tmp_path_factory.mktemp("data")) as world:
        yield world


async def test_each_line_is_answered_in_the_order_of_the_file(batches: BatchWorld) -> None:
    batch = await batches.run(*(chat(f"line {number}", f"Question {number % 3}") for number in range(20)))
    assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None)
    assert batch.request_counts.to_dict() == {"total": 20, "completed": 20, "failed": 0}
    lines = await batches.lines(batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"line {number}" for number in range(20)]
    assert {*lines[0]} == {"id", "custom_id", "response", "error"}
    response = lines[0]["response"]
    assert (response["status_code"], lines[0]["error"]) == (200, None)
    assert response["request_id"] == response["body"]["id"]
    assert response["body"]["choices"][0]["message"]["content"] == "Hello, how are you?"


async def test_requests_of_a_batch_have_the_lowest_priority(batches: BatchWorld) -> None:
    await batches.run(chat("a"), chat("b", priority=-5), chat("c", priority=2**31 - 1))
    found = batches.world.running.of_kind(Generate)[-3:]
    assert [each.priority for each in found] == [BACKGROUND_PRIORITY] * 3


async def test_a_refused_line_is_in_the_error_file_with_its_number(batches: BatchWorld) -> None:
    batch = await batches.run(chat("good"), chat("bad", temperature=9), chat("other", model="gpt-9"))
    assert batch.status == "completed"
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 1, "failed": 2}
    assert [line["custom_id"] for line in await batches.lines(batch.output_file_id)] == ["good"]
    bad, other = await batches.lines(batch.error_file_id)
    assert (bad["custom_id"], bad["line"], bad["response"]["status_code"]) == ("bad", 2, 400)
    assert bad["response"]["body"]["error"]["param"] == "temperature"
    assert (other["line"], other["response"]["status_code"]) == (3, 404)


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[]", "invalid_json_line", None),
        ('{"custom_id": 5}', "invalid_json_line", None),
        ({**chat("b"), "custom_id": None}, "missing_required_parameter", "custom_id"),
        ({**chat("b"), "method": "GET"}, "invalid_method", "method"),
        ({**chat("b"), "url": "/v1/completions"}, "mismatched_endpoint", "url"),
        ({**chat("b"), "body": None}, "invalid_json_line", None),
        ({"custom_id": "b", "method": "POST", "url": CHATS}, "missing_required_parameter", "body"),
        (chat("a"), "duplicate_custom_id", "custom_id"),
        (chat("b", stream=True), "invalid_request", "body.stream"),
        (chat("c" * 513), "invalid_custom_id", "custom_id"),
    ],
)
async def test_a_wrong_file_fails_before_it_starts(
    batches: BatchWorld, line: Any, code: str, param: str | None
) -> None:
    seen = len(batches.world.running.of_kind(Generate))
    batch = await batches.run(chat("a"), line, chat("z"))
    assert (batch.status, batch.in_progress_at, batch.output_file_id) == ("failed", None, None)
    (error,) = batch.errors.data
    assert (error.line, error.code, error.param) == (2, code, param)
    assert len(batches.world.running.of_kind(Generate)) == seen


async def test_byte_order_marks_and_line_ends_of_windows_are_skipped(batches: BatchWorld) -> None:
    """The second mark is that of a file that was appended to the first one."""
    a, b, c = (f"{json.dumps(chat(name))}\r" for name in "abc")
    batch = await batches.run(f"\ufeff{a}", b, f"\ufeff{c}", "\ufeff\r")
    assert batch.status == "completed"
    assert [line["custom_id"] for line in await batches.lines(batch.output_file_id)] == ["a", "b", "c"]


async def test_half_of_a_surrogate_pair_in_a_line_is_named(batches: BatchWorld) -> None:
    batch = await batches.run(json.dumps(chat("a", text="\ud83d")))
    (error,) = batch.errors.data
    assert (batch.status, error.code, error.line) == ("failed", "invalid_json_line", 1)
    assert r"\ud83d at byte " in error.message and "half of a surrogate pair" in error.message


async def test_an_empty_file_fails(batches: BatchWorld) -> None:
    batch = await batches.run("", "  ")
    assert [error.code for error in batch.errors.data] == ["empty_file"]


async def test_other_endpoints_have_batches_too(batches: BatchWorld) -> None:
    body: Any = {"model": MODEL, "prompt": "Once", "max_tokens": 50}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    batch = await batches.run(line, endpoint="/v1/completions")
    (answer,) = await batches.lines(batch.output_file_id)
    assert answer["response"]["body"]["object"] == "text_completion"
    body = {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/messages", "body": body}
    wrong = {**line, "custom_id": "b", "body": {**body, "max_tokens": -1}}
    batch = await batches.run(line, wrong, endpoint="/v1/messages")
    (answer,) = await batches.lines(batch.output_file_id)
    assert answer["response"]["body"]["type"] == "message"
    (refused,) = await batches.lines(batch.error_file_id)
    assert refused["response"]["body"]["type"] == "error"


async def test_lines_may_be_requests_of_the_responses_api(batches: BatchWorld) -> None:
    def line(custom_id: str, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 50, **fields}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}

    batch = await batches.run(
        line("a"), line("b", background=True), line("c", store=False), endpoint="/v1/responses"
    )
    stored, other = (line["response"]["body"] for line in await batches.lines(batch.output_file_id))
    assert (stored["object"], stored["status"], stored["store"]) == ("response", "completed", True)
    assert other["store"] is False
    found = await batches.client.responses.retrieve(stored["id"])
    assert found.output_text == "Hello, how are you?"
    (refused,) = await batches.lines(batch.error_file_id)
    error = refused["response"]["body"]["error"]
    assert (refused["custom_id"], error["param"]) == ("b", "background")
    next_line = line("d", input="And?", previous_response_id=stored["id"])
    batch = await batches.run(next_line, endpoint="/v1/responses")
    (answer,) = await batches.lines(batch.output_file_id)
    assert answer["response"]["body"]["previous_response_id"] == stored["id"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/classify"}, "endpoint"),
        ({"completion_window": "tomorrow"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
    ],
)
async def test_a_wrong_field_of_a_batch_is_named(
    batches: BatchWorld, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await batches.start(chat("a"), **fields)
    assert refused.value.param == param


async def test_a_batch_of_a_missing_file_is_refused(batches: BatchWorld) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await batches.client.batches.create(
            input_file_id="file-1", endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert refused.value.param == "input_file_id"


async def test_batches_are_listed_from_the_newest_on(batches: BatchWorld) -> None:
    made = [await batches.run(chat("a"), metadata={"number": str(number)}) for number in range(3)]
    first = await batches.client.batches.list(limit=2)
    assert [each.id for each in first.data] == [made[2].id, made[1].id]
    assert (first.has_more, first.data[0].metadata) == (True, {"number": "2"})
    rest = await first.get_next_page()
    assert rest.data[0].id == made[0].id


async def test_cancelling_keeps_the_finished_lines(batches: BatchWorld) -> None:
    world = batches.world
    batch = await batches.run(chat("first"))
    world.running.gate.clear()
    try:
        batch = await batches.start(*(chat(str(number)) for number in range(5)))
        await world.until(lambda: len(world.running.rows) == 5)
        cancelling = await batches.client.batches.cancel(batch.id)
        assert (cancelling.status, cancelling.cancelling_at is not None) == ("cancelling", True)
        batch = await batches.ended(batch)
    finally:
        world.running.gate.set()
    assert (batch.status, batch.output_file_id, batch.request_counts.failed) == ("cancelled", None, 5)
    lines = await batches.lines(batch.error_file_id)
    assert [(line["custom_id"], line["line"], line["error"]["code"]) for line in lines] == [
        (str(number), number + 1, "batch_cancelled") for number in range(5)
    ]
    await world.until(lambda: not world.running.rows)
    with pytest.raises(openai.ConflictError):
        await batches.client.batches.cancel(batch.id)


async def test_another_key_sees_no_file_and_no_batch(tmp_path: Path) -> None:
    async with batch_world(tmp_path, api_keys=("one", "two")) as batches:
        batch = await batches.run(chat("a"))
        other = batches.with_key("two")
        for call in (
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
            other.files.retrieve(batch.input_file_id),
            other.files.content(batch.output_file_id),
            other.files.delete(batch.input_file_id),
            other.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert (await other.batches.list()).data == []
        assert (await other.files.list()).data == []
        generate = batches.world.running.of_kind(Generate)[-1]
        await batches.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}]
        )
        assert generate.tenant == batches.world.running.of_kind(Generate)[-1].tenant != ""
