"""Stored responses and conversations: retrieved, continued, deleted, isolated and bounded."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from arbora.frontend.stored.records import transaction
from arbora.frontend.stored.records.record_store import RecordStore
from arbora.frontend.stored.records.transaction import Transaction
from fake_scheduler import unpacked
from http_world import last_generate
from responses_world import ResponsesWorld, called, responses_world

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[ResponsesWorld]:
    async with responses_world(api_keys=("first", "second")) as world:
        yield world


def prompt_of(world: ResponsesWorld) -> str:
    return world.http_world.text(unpacked(last_generate(world.http_world).prompt))


def text_of(item: Any) -> str:
    """The text of the first part of a message."""
    return str(item.content[0].text)


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_response_is_retrieved_as_it_was_sent(world: ResponsesWorld, streams: bool) -> None:
    world.says("<think>\nhm\n</think>\n\nYes")
    if streams:
        response = (await world.events(metadata={"a": "b"}))[-1].response
    else:
        response = await world.create(metadata={"a": "b"})
    assert response.store is True
    found = await world.client.responses.retrieve(response.id)
    assert found.to_dict() == response.to_dict()


async def test_a_chain_of_responses_is_the_whole_conversation(world: ResponsesWorld) -> None:
    world.says("One")
    first = await world.create(input="A", instructions="Left behind.")
    world.says("Two")
    second = await world.create(input="B", previous_response_id=first.id, instructions="Now.")
    assert (
        prompt_of(world)
        == (turn("system", "Now.") + turn("user", "A") + turn("assistant", "One") + turn("user", "B"))
        + "<|im_start|>assistant\n"
    )
    assert second.previous_response_id == first.id
    world.says("Three")
    await world.create(input="C", previous_response_id=first.id)
    assert "Two" not in prompt_of(world), "a response may be continued twice"
    await world.create(input="D", previous_response_id=second.id)
    assert turn("assistant", "Two") + turn("user", "D") in prompt_of(world)


async def test_the_items_of_an_input_are_listed_in_pages(world: ResponsesWorld) -> None:
    history = [{"role": "user", "content": f"Number {number}"} for number in range(5)]
    response = await world.create(input=history)
    listed = world.client.responses.input_items.list(response.id, limit=2, order="asc")
    texts = [text_of(item) async for item in listed]
    assert texts == [f"Number {number}" for number in range(5)]
    page = await world.client.responses.input_items.list(response.id)
    assert text_of(page.data[0]) == "Number 4"
    for query in ("limit=0", "limit=x", "order=up", "after=msg_none"):
        answer = await world.request("GET", f"/v1/responses/{response.id}/input_items?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


async def test_an_item_may_be_named_by_its_id(world: ResponsesWorld) -> None:
    world.says(called("clock", "{}"))
    tools = [{"type": "function", "name": "clock"}]
    first = await world.create(input="Time?", tools=tools)
    call = first.output[0]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    items: Any = [{"role": "user", "content": "Time?"}, {"type": "item_reference", "id": call.id}, output]
    await world.create(input=items, tools=tools)
    assert called("clock", "{}") in prompt_of(world)
    items[1] = {"type": "item_reference", "id": "fc_none"}
    with pytest.raises(openai.NotFoundError, match="no such item is stored"):
        await world.create(input=items)


async def test_a_deleted_response_is_gone(world: ResponsesWorld) -> None:
    first = await world.create(input="A")
    second = await world.create(input="B", previous_response_id=first.id)
    await world.client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await world.client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        await world.client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=f"{first.id}.* is no longer stored"):
        await world.create(input="C", previous_response_id=second.id)


async def test_another_key_finds_nothing(world: ResponsesWorld) -> None:
    response = await world.create()
    made = await world.client.conversations.create()
    paths = [
        ("GET", f"/v1/responses/{response.id}"),
        ("GET", f"/v1/responses/{response.id}?stream=true"),
        ("DELETE", f"/v1/responses/{response.id}"),
        ("POST", f"/v1/responses/{response.id}/cancel"),
        ("GET", f"/v1/responses/{response.id}/input_items"),
        ("GET", f"/v1/conversations/{made.id}"),
        ("DELETE", f"/v1/conversations/{made.id}"),
        ("GET", f"/v1/conversations/{made.id}/items"),
    ]
    for method, path in paths:
        assert (await world.request(method, path, key="second")).status_code == 404, path
    for field, value in (("previous_response_id", response.id), ("conversation", made.id)):
        answer = await world.request("POST", "/v1/responses", key="second", json={"input": "x", field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, field)
    reference = [{"type": "item_reference", "id": response.output[0].id}]
    answer = await world.request("POST", "/v1/responses", key="second", json={"input": reference})
    assert answer.status_code == 404
    assert (await world.request("GET", f"/v1/responses/{response.id}")).status_code == 200


async def test_a_response_with_store_false_is_not_stored(world: ResponsesWorld) -> None:
    response = await world.create(store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        await world.client.responses.retrieve(response.id)


async def test_a_conversation_keeps_the_items_of_its_responses(world: ResponsesWorld) -> None:
    items: Any = [{"type": "message", "role": "developer", "content": "Rules"}]
    made = await world.client.conversations.create(items=items, metadata={"topic": "a"})
    world.says("One")
    first = await world.create(input="A", conversation=made.id)
    assert first.conversation.id == made.id
    world.says("Two")
    await world.create(input="B", conversation={"id": made.id}, stream=False)
    assert (
        prompt_of(world)
        == (turn("system", "Rules") + turn("user", "A") + turn("assistant", "One") + turn("user", "B"))
        + "<|im_start|>assistant\n"
    )
    await world.create(input="unheard", conversation=made.id, store=False)
    listed = [item async for item in world.client.conversations.items.list(made.id, order="asc")]
    texts = [text_of(item) for item in listed]
    assert texts == ["Rules", "A", "One", "B", "Two"]
    with pytest.raises(openai.BadRequestError, match="belongs to a conversation"):
        await world.create(previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="can't be used together"):
        await world.create(previous_response_id=first.id, conversation=made.id)


async def test_a_conversation_is_changed_and_deleted(world: ResponsesWorld) -> None:
    conversations = world.client.conversations
    made = await conversations.create(metadata={"topic": "a"})
    assert (await conversations.retrieve(made.id)).metadata == {"topic": "a"}
    assert (await conversations.update(made.id, metadata={"topic": "b"})).metadata == {"topic": "b"}
    items: Any = [{"role": "user", "content": text} for text in ("One", "Two")]
    added = await conversations.items.create(made.id, items=items)
    first, second = added.data
    shown = await conversations.items.retrieve(first.id or "", conversation_id=made.id)
    assert text_of(shown) == "One"
    assert (await conversations.items.delete(first.id or "", conversation_id=made.id)).id == made.id
    left = [item.id async for item in conversations.items.list(made.id)]
    assert left == [second.id]
    assert (await conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await world.create(conversation=made.id)


async def test_responses_of_one_conversation_at_once_are_all_kept(world: ResponsesWorld) -> None:
    made = await world.client.conversations.create()
    world.says("Yes")
    await asyncio.gather(*(world.create(input=f"Q{n}", conversation=made.id) for n in range(5)))
    listed = [item async for item in world.client.conversations.items.list(made.id, order="asc")]
    texts = [text_of(item) for item in listed]
    assert sorted(texts[::2]) == [f"Q{n}" for n in range(5)]
    assert texts[1::2] == ["Yes"] * 5


async def test_responses_outlive_the_server(tmp_path: Path) -> None:
    async with responses_world(data_dir=tmp_path) as world:
        world.says("One")
        first = await world.create(input="A")
    async with responses_world(data_dir=tmp_path) as world:
        assert (await world.client.responses.retrieve(first.id)).output_text == "One"
        await world.create(input="B", previous_response_id=first.id)
        assert turn("assistant", "One") + turn("user", "B") in prompt_of(world)


async def test_a_server_without_a_data_directory_stores_nothing() -> None:
    async with responses_world(stores=False) as world:
        response = await world.create(store=True)
        assert response.store is False
        for fields, param in (
            ({"previous_response_id": response.id}, "previous_response_id"),
            ({"conversation": "conv_1"}, "conversation"),
            ({"background": True}, "background"),
        ):
            answer = await world.post(**fields)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, param, "nothing_stored")
            assert "--data-dir off" in error["message"]
        assert (await world.request("GET", f"/v1/responses/{response.id}")).status_code == 400
        assert (await world.request("POST", "/v1/conversations", json={})).status_code == 400


async def test_old_responses_are_deleted_first_when_there_are_too_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "_EVICTED_AT_ONCE", 1)
    most = 400_000
    async with responses_world(data_dir=tmp_path, data_size=4 * most) as world:
        kept = await world.create(input="Kept")
        made = []
        for number in range(30):
            long = await world.create(input="x", metadata={"long": str(number) * 30_000})
            made.append(long.id)
            await world.create(input="Again", previous_response_id=kept.id, store=False)
        assert (await world.request("GET", f"/v1/responses/{made[0]}")).status_code == 404
        assert (await world.request("GET", f"/v1/responses/{made[-1]}")).status_code == 200
        assert (await world.request("GET", f"/v1/responses/{kept.id}")).status_code == 200, "it was in use"
        stored = sum([(await world.request("GET", f"/v1/responses/{id}")).status_code == 200 for id in made])
        assert 2 < stored < 14


async def test_one_key_cannot_push_out_the_responses_of_another(tmp_path: Path) -> None:
    async with responses_world(api_keys=("one", "two"), data_dir=tmp_path, data_size=1_600_000) as world:
        small = await world.create(input="Small", metadata={"long": "x" * 50_000})
        world.key = "two"
        large = {"input": "x", "metadata": {"long": "x" * 60_000}}
        made = [(await world.post(**large)).json()["id"] for _ in range(20)]
        found = [(await world.request("GET", f"/v1/responses/{id}")).status_code for id in made]
        assert found[0] == 404 and found[-1] == 200
        assert (await world.request("GET", f"/v1/responses/{small.id}", key="one")).status_code == 200


async def test_the_bytes_of_owners_are_those_of_their_rows(tmp_path: Path) -> None:
    async with responses_world(api_keys=("one", "two"), data_dir=tmp_path) as world:
        made = await world.client.conversations.create(items=[{"role": "user", "content": "Hello"}])
        await world.create(input="A", conversation=made.id)
        item = (await world.client.conversations.items.list(made.id)).data[0]
        await world.client.conversations.items.delete(item.id or "", conversation_id=made.id)
        await world.create(background=True, input="B")
        await world.http_world.until(lambda: not world.http_world.engine.open_requests)
        deleted = await world.create(input="C")
        await world.client.responses.delete(deleted.id)
        world.key = "two"
        assert (await world.post()).status_code == 200
    with closing(sqlite3.connect(tmp_path / "responses.sqlite")) as connection:
        counted = connection.execute("SELECT owner, size FROM owners ORDER BY owner").fetchall()
        summed = connection.execute(
            "SELECT owner, sum(length(body) + (SELECT coalesce(sum(length(parts.body)), 0) FROM parts "
            "WHERE record = number)) FROM records GROUP BY owner ORDER BY owner"
        ).fetchall()
    assert counted == summed
    assert len(counted) == 2


async def test_a_response_that_is_larger_than_all_space_is_not_stored(tmp_path: Path) -> None:
    async with responses_world(data_dir=tmp_path, data_size=400_000) as world:
        response = await world.create(metadata={"long": "x" * 120_000})
        assert response.store is False
        assert (await world.request("GET", f"/v1/responses/{response.id}")).status_code == 404


async def test_a_page_of_items_reads_no_others(
    world: ResponsesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: Any = [{"role": "user", "content": str(number)} for number in range(15)]
    made = await world.client.conversations.create(items=items)
    response = await world.create(input=items)
    read: list[int] = []
    rows = Transaction.rows

    def counted(*values: Any) -> Any:
        found = rows(*values)
        read.append(len(found))
        return found

    monkeypatch.setattr(Transaction, "rows", counted)
    listed: Any = world.client.conversations.items.list(made.id, limit=4, order="asc")
    assert [text_of(item) async for item in listed] == [str(number) for number in range(15)]
    first = (await world.client.conversations.items.list(made.id, limit=1)).data[0]
    assert text_of(first) == "14"
    await world.client.conversations.items.retrieve(first.id or "", conversation_id=made.id)
    await world.client.conversations.items.delete(first.id or "", conversation_id=made.id)
    listed = world.client.responses.input_items.list(response.id, limit=4)
    assert [text_of(item) async for item in listed] == [str(number) for number in reversed(range(15))]
    assert max(read) == 5, "one more than the page, which says whether there is more"


async def test_responses_are_deleted_30_days_after_their_last_use(tmp_path: Path) -> None:
    async with responses_world(data_dir=tmp_path) as world:
        old, other = await world.create(), await world.create()
    with closing(sqlite3.connect(tmp_path / "responses.sqlite", isolation_level=None)) as connection:
        kept_until = connection.execute("SELECT expires FROM records WHERE id = ?", (old.id,)).fetchone()[0]
        assert kept_until == pytest.approx(time.time() + 30 * 24 * 3600, abs=60)
        connection.execute("UPDATE records SET expires = ? WHERE id = ?", (time.time() - 10, old.id))
    async with responses_world(data_dir=tmp_path) as world:
        assert (await world.request("GET", f"/v1/responses/{old.id}")).status_code == 404
        assert (await world.request("GET", f"/v1/responses/{other.id}")).status_code == 200
        await world.create()
    with closing(sqlite3.connect(tmp_path / "responses.sqlite")) as connection:
        rows = connection.execute("SELECT id, number FROM records").fetchall()
        parts = connection.execute("SELECT DISTINCT record FROM parts").fetchall()
    assert old.id not in {id for id, _ in rows}
    assert {number for _, number in rows} == {number for (number,) in parts}


async def test_a_database_that_fails_loses_no_reply(
    world: ResponsesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: Any) -> Any:
        raise sqlite3.OperationalError("database is locked")

    world.says("Yes")
    with monkeypatch.context() as patch:
        patch.setattr(RecordStore, "_open", locked)
        response = await world.create(input="A")
        with pytest.raises(openai.InternalServerError, match="database of responses") as error:
            await world.create(input="B", previous_response_id=response.id)
        events = await world.events(input="A")
    assert text_of(response.output[0]) == text_of(events[-1].response.output[0]) == "Yes"
    assert response.store is events[-1].response.store is False
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert error.value.status_code == 503
    with pytest.raises(openai.NotFoundError):
        await world.client.responses.retrieve(response.id)
