"""Responses that are computed in the background: polled, streamed again, cancelled and interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from arbora.frontend.core.replica.generation import Generation
from arbora.frontend.http.time_limit import TimeLimit
from arbora.frontend.stored.records.record_store import RecordStore
from arbora.frontend.stored.responses import background, response_store
from arbora.frontend.stored.responses.response_store import ResponseStore
from arbora.runtime.errors import RequestError
from arbora.runtime.messages import Abort, Refused
from responses_world import ResponsesWorld, responses_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "Hello, how are you?"


@pytest_asyncio.fixture(loop_scope="module")
async def world() -> AsyncIterator[ResponsesWorld]:
    async with responses_world() as world:
        world.says(TEXT)
        yield world


async def ended(world: ResponsesWorld, id: str) -> Any:
    async with asyncio.timeout(30):
        while True:
            response = await world.client.responses.retrieve(id)
            if response.status not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.01)


async def refused(*_: Any) -> Any:
    raise RequestError("The server's disk is full.", status=507, code="disk_full")


def fails(*_: Any) -> Any:
    raise RequestError("The server's disk fails.", status=503, code="storage_failed")


def stored_status(directory: Path, id: str) -> str:
    with contextlib.closing(sqlite3.connect(directory / "responses.sqlite")) as connection:
        ((status,),) = connection.execute("SELECT state FROM records WHERE id = ?", (id,))
    return str(status)


async def test_a_full_disk_refuses_the_first_background_response(
    world: ResponsesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(response_store, "AliveFile", full)
        answer = await world.post(background=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
    assert (await ended(world, (await world.create(background=True)).id)).status == "completed"


async def test_the_time_limit_of_a_background_response_counts_from_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[TimeLimit] = []
    used: list[TimeLimit] = []
    init, end_later = TimeLimit.__init__, TimeLimit.end_later

    def begin(limit: TimeLimit, seconds: float | None) -> None:
        begun.append(limit)
        init(limit, seconds)

    def end(limit: TimeLimit, generation: Generation) -> asyncio.TimerHandle | None:
        used.append(limit)
        return end_later(limit, generation)

    monkeypatch.setattr(TimeLimit, "__init__", begin)
    monkeypatch.setattr(TimeLimit, "end_later", end)
    async with responses_world(request_timeout=600.0) as world:
        world.says(TEXT)
        await ended(world, (await world.create(background=True)).id)
    assert used == begun and len(used) == 1


async def test_a_background_response_is_polled(world: ResponsesWorld) -> None:
    world.running.gate.clear()
    queued = await world.create(background=True)
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    assert (await world.client.responses.retrieve(queued.id)).status == "in_progress"
    world.running.gate.set()
    response = await ended(world, queued.id)
    assert (response.status, response.output_text, response.background) == ("completed", TEXT, True)
    assert response.usage.output_tokens == len(world.ids(TEXT)) + 1
    items = await world.client.responses.input_items.list(queued.id)
    assert len(items.data) == 1
    await world.create(input="And?", previous_response_id=queued.id)


async def test_a_stream_goes_on_where_it_was_left(world: ResponsesWorld) -> None:
    world.running.pauses = True
    stream = await world.create(background=True, stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
        world.running.gate.set()
    await stream.close()
    id, last = seen[0].response.id, seen[-1].sequence_number
    again = await world.client.responses.retrieve(id, stream=True, starting_after=last)
    world.running.pauses = False
    world.running.gate.set()
    rest = [event async for event in again]
    assert [event.sequence_number for event in seen + rest] == list(range(len(seen) + len(rest)))
    assert rest[-1].type == "response.completed"
    texts = [event.delta for event in seen + rest if event.type == "response.output_text.delta"]
    assert "".join(texts) == TEXT
    await ended(world, id)
    await world.http_world.until(lambda: not world.http_world.engine.open_requests)
    stored = [event async for event in await world.client.responses.retrieve(id, stream=True)]
    assert [event.to_dict() for event in stored] == [event.to_dict() for event in seen + rest]


async def test_only_the_events_of_background_responses_are_kept(world: ResponsesWorld) -> None:
    response = await world.create()
    with pytest.raises(openai.BadRequestError, match="background: true"):
        await world.client.responses.retrieve(response.id, stream=True)
    answer = await world.request("GET", f"/v1/responses/{response.id}?stream=true&starting_after=x")
    assert answer.json()["error"]["param"] == "starting_after"


async def test_a_cancelled_response_stops(world: ResponsesWorld) -> None:
    world.running.pauses = True
    queued = await world.create(background=True)
    await world.http_world.until(lambda: any(row.sent for row in world.running.rows.values()))
    cancelled = await world.client.responses.cancel(queued.id)
    assert cancelled.status == "cancelled"
    assert TEXT.startswith(cancelled.output_text)
    await world.http_world.until(lambda: not world.running.rows)
    assert world.running.of_kind(Abort)
    assert (await world.client.responses.cancel(queued.id)).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="'cancelled'"):
        await world.create(previous_response_id=queued.id)


async def test_a_cancelled_stream_ends_with_the_cancelled_response(world: ResponsesWorld) -> None:
    """OpenAI has no event of its own for this."""
    world.running.pauses = True
    stream = await world.create(background=True, stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            cancelled = await world.client.responses.cancel(seen[0].response.id)
        world.running.gate.set()
    world.running.pauses = False
    assert (seen[-1].type, seen[-1].response.status) == ("response.incomplete", "cancelled")
    assert seen[-1].response.to_dict() == cancelled.to_dict()
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    again: list[Any] = [
        event async for event in await world.client.responses.retrieve(cancelled.id, stream=True)
    ]
    assert [event.to_dict() for event in again] == [event.to_dict() for event in seen]


async def test_only_background_responses_are_cancelled(world: ResponsesWorld) -> None:
    response = await world.create()
    with pytest.raises(openai.BadRequestError, match="background: true"):
        await world.client.responses.cancel(response.id)
    done = await ended(world, (await world.create(background=True)).id)
    assert (await world.client.responses.cancel(done.id)).status == "completed"


async def test_a_deleted_response_stops(world: ResponsesWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.running.gate.clear()
    queued = await world.create(background=True)
    await world.client.responses.delete(queued.id)
    await world.http_world.until(lambda: not world.http_world.engine.open_requests)
    assert world.running.of_kind(Abort)
    with pytest.raises(openai.NotFoundError):
        await world.client.responses.retrieve(queued.id)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_failure_is_told(world: ResponsesWorld) -> None:
    world.running.pauses = True
    queued = await world.create(background=True)
    stream: Any = await world.client.responses.retrieve(queued.id, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await world.http_world.kill_replica()
    response = await ended(world, queued.id)
    assert (response.status, response.error.code) == ("failed", "server_error")


async def test_a_refused_request_is_no_response(world: ResponsesWorld) -> None:
    world.running.refuse = lambda request: Refused(request.request, 429, "full", None, "queue_full", 1)
    with pytest.raises(openai.RateLimitError):
        await world.create(background=True)
    with pytest.raises(openai.BadRequestError, match="store"):
        await world.create(background=True, store=False)


async def test_a_response_that_a_restart_interrupted_has_failed(tmp_path: Path) -> None:
    async with responses_world(data_dir=tmp_path) as world:
        world.running.gate.clear()
        queued = await world.create(background=True)
        async with responses_world(data_dir=tmp_path) as other:
            response = await other.client.responses.retrieve(queued.id)
            assert response.status == "in_progress", "another process computes it"
    async with responses_world(data_dir=tmp_path) as world:
        response = await world.client.responses.retrieve(queued.id)
        assert response.error is not None
        assert (response.status, response.error.code) == ("failed", "server_error")
        assert "stopped" in response.error.message
        stream: Any = await world.client.responses.retrieve(queued.id, stream=True, starting_after=5)
        (event,) = [event async for event in stream]
        assert (event.type, event.sequence_number) == ("response.failed", 6)
    assert not list(tmp_path.glob("*.alive"))


async def test_a_new_server_ends_the_interrupted_responses_of_others(tmp_path: Path) -> None:
    async with responses_world(data_dir=tmp_path) as world:
        world.running.gate.clear()
        queued = await world.create(background=True)
    async with responses_world(data_dir=tmp_path) as world:
        world.says(TEXT)
        await world.create()
        with contextlib.closing(sqlite3.connect(tmp_path / "responses.sqlite")) as connection:
            rows = connection.execute("SELECT state, runner FROM records WHERE id = ?", (queued.id,))
            assert rows.fetchall() == [("failed", None)]


@pytest.mark.parametrize("method", ["read", "write"])
async def test_interrupted_responses_are_ended_although_the_database_failed_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async with responses_world(data_dir=tmp_path) as world:
        world.running.gate.clear()
        queued = await world.create(background=True)
    async with responses_world(data_dir=tmp_path) as world:
        world.says(TEXT)
        with monkeypatch.context() as patch:
            patch.setattr(RecordStore, method, fails)
            assert (await world.create()).store is False
        await world.create()
        assert stored_status(tmp_path, queued.id) == "failed"


async def test_another_process_may_follow_and_cancel_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "CHECK_S", 0.05)
    async with responses_world(data_dir=tmp_path) as world, responses_world(data_dir=tmp_path) as other:
        world.says(TEXT)
        world.running.gate.clear()
        first, second = await world.create(background=True), await world.create(background=True)
        assert (await other.client.responses.cancel(first.id)).status == "cancelled"
        await world.http_world.until(lambda: len(world.running.rows) == 1)
        stream: Any = await other.client.responses.retrieve(second.id, stream=True)
        world.running.gate.set()
        events = [event async for event in stream]
        assert events[-1].type == "response.completed"
        assert (await other.client.responses.retrieve(second.id)).output_text == TEXT


async def test_a_stream_ends_when_another_process_cancels_its_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "CHECK_S", 0.05)
    async with responses_world(data_dir=tmp_path) as world, responses_world(data_dir=tmp_path) as other:
        world.says(TEXT)
        world.running.gate.clear()
        queued = await world.create(background=True)
        stream: Any = await world.client.responses.retrieve(queued.id, stream=True)
        await other.client.responses.cancel(queued.id)
        events = [event async for event in stream]
        assert [event.type for event in events][-1] == "response.incomplete"
        assert events[-1].response.status == "cancelled"


async def test_a_response_whose_end_cannot_be_stored_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: Any) -> Any:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(background, "RETRIES_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(background, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(background, "CHECK_S", 0.05)
    async with responses_world(data_dir=tmp_path) as world:
        world.says(TEXT)
        world.running.gate.clear()
        queued = await world.create(background=True)
        stream: Any = await world.client.responses.retrieve(queued.id, stream=True)
        with monkeypatch.context() as patch:
            patch.setattr(RecordStore, "_open", locked)
            await asyncio.sleep(0.2)  # a check of the database fails and does not end the response
            world.running.gate.set()
            events = [event async for event in stream]
            assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == TEXT
            assert (events[-1].type, events[-1].response.error.code) == ("response.failed", "server_error")
            assert [event.sequence_number for event in events] == list(range(len(events)))
            response = await world.client.responses.retrieve(queued.id)
            assert response.to_dict() == events[-1].response.to_dict()
        await world.http_world.until(lambda: stored_status(tmp_path, queued.id) == "failed")
        stream = await world.client.responses.retrieve(queued.id, stream=True)
        assert [event.to_dict() async for event in stream] == [event.to_dict() for event in events]


@pytest.mark.parametrize(("failures", "status"), [(1, "completed"), (3, "completed"), (4, "failed")])
async def test_a_reply_that_cannot_be_stored_for_a_moment_is_in_progress_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, status: str
) -> None:
    seen: list[str | None] = []
    finish = ResponseStore.finish
    async with responses_world(data_dir=tmp_path) as world:

        async def busy(store: ResponseStore, owner: str, response: Any, *more: Any) -> bool:
            if response.status != "completed":
                return await finish(store, owner, response, *more)
            seen.append((await world.client.responses.retrieve(response.id)).status)
            return await (refused() if len(seen) <= failures else finish(store, owner, response, *more))

        monkeypatch.setattr(background, "RETRIES_S", (0.01, 0.01, 0.01))
        monkeypatch.setattr(background, "FIRST_RETRY_S", 0.05)
        monkeypatch.setattr(ResponseStore, "finish", busy)
        world.says(TEXT)
        events = [event async for event in await world.create(background=True, stream=True)]
        response = events[-1].response
        assert (response.status, events[-1].type) == (status, f"response.{status}")
        assert seen == ["in_progress"] * min(failures + 1, 4)
        await world.http_world.until(lambda: stored_status(tmp_path, response.id) == status)
        assert (await world.client.responses.retrieve(response.id)).to_dict() == response.to_dict()


async def test_a_cancellation_while_a_reply_is_being_stored_comes_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RETRIES_S", (0.3, 0.01, 0.01))
    tried = asyncio.Event()

    async def busy(*_: Any) -> Any:
        tried.set()
        await refused()

    async with responses_world(data_dir=tmp_path) as world:
        world.says(TEXT)
        with monkeypatch.context() as patch:
            patch.setattr(ResponseStore, "finish", busy)
            queued = await world.create(background=True)
            await tried.wait()
        cancelled = await world.client.responses.cancel(queued.id)
        assert (cancelled.status, cancelled.output_text) == ("completed", TEXT)


async def test_a_cancellation_that_cannot_be_stored_holds_and_is_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FIRST_RETRY_S", 0.05)
    async with responses_world(data_dir=tmp_path) as world:
        world.says(TEXT)
        world.running.gate.clear()
        queued = await world.create(background=True)
        with monkeypatch.context() as patch:
            patch.setattr(ResponseStore, "finish", refused)
            assert (await world.client.responses.cancel(queued.id)).status == "cancelled"
            assert (await world.client.responses.retrieve(queued.id)).status == "cancelled"
            assert stored_status(tmp_path, queued.id) == "in_progress"
        await world.http_world.until(lambda: stored_status(tmp_path, queued.id) == "cancelled")


async def test_the_tokens_of_a_background_response_count_for_its_key(tmp_path: Path) -> None:
    async with responses_world(api_keys=("one", "two"), data_dir=tmp_path) as world:
        world.says(TEXT)
        usage = (await ended(world, (await world.create(background=True)).id)).usage
        text = (await world.request("GET", "/metrics")).text
        (line,) = [line for line in text.splitlines() if "key_tokens_total" in line and "completion" in line]
        assert float(line.rpartition(" ")[2]) == usage.output_tokens
