"""Files, by OpenAI's client."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from arbora.frontend.stored.batches import files
from arbora.frontend.stored.batches.files import PIECE_BYTES
from arbora.frontend.stored.batches.upload_form import MAX_FILE_BYTES
from arbora.frontend.stored.records import sqlite_file
from batch_world import CHATS, BatchWorld, batch_world, chat, jsonl
from http_world import http_world
from raw_http import asked

pytestmark = pytest.mark.asyncio(loop_scope="module")
BOUNDARY = "wall"
HEADERS = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(name: str, value: str, more: str = "") -> str:
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'


END = f"--{BOUNDARY}--\r\n"
FILE = part("file", "{}\n", '; filename="a.jsonl"')
PURPOSE = part("purpose", "batch")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def batches(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BatchWorld]:
    async with batch_world(tmp_path_factory.mktemp("data"), data_size=1 << 30) as world:
        yield world


def stored(batches: BatchWorld) -> list[str]:
    return sorted(path.name for path in (batches.data / "files").glob("*"))


async def test_a_file_comes_back_as_it_was_sent(batches: BatchWorld) -> None:
    content = os.urandom(3 * PIECE_BYTES) + b"\r\n--wall\r\n"
    file = await batches.client.files.create(file=("ä b.jsonl", content), purpose="batch")
    assert (file.bytes, file.object, file.purpose, file.status) == (
        len(content),
        "file",
        "batch",
        "processed",
    )
    assert file.expires_at == file.created_at + 30 * 24 * 3600
    assert (await batches.client.files.content(file.id)).content == content
    assert await batches.client.files.retrieve(file.id) == file
    path = batches.data / "files" / file.id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_files_are_listed_in_pages(batches: BatchWorld) -> None:
    made = [(await batches.upload(chat(str(number)))).id for number in range(3)]
    newest = await batches.client.files.list(limit=2)
    assert [file.id for file in newest.data] == [made[2], made[1]] and newest.has_more
    assert (await newest.get_next_page()).data[0].id == made[0]
    later = await batches.client.files.list(order="asc", after=made[0])
    assert [file.id for file in later.data] == made[1:]
    assert (await batches.client.files.list(purpose="batch_output")).data == []


async def test_a_deleted_file_is_gone(batches: BatchWorld) -> None:
    file = await batches.upload(chat("a"))
    assert (await batches.client.files.delete(file.id)).deleted
    assert file.id not in stored(batches)
    for call in (batches.client.files.retrieve, batches.client.files.delete, batches.client.files.content):
        with pytest.raises(openai.NotFoundError):
            await call(file.id)


async def test_a_file_expires_when_it_should(batches: BatchWorld) -> None:
    file = await batches.upload(chat("a"), expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.expires_at == file.created_at + 3600
    with pytest.raises(openai.BadRequestError, match=r"expires_after\[seconds\] is '60', but must be"):
        await batches.upload(chat("a"), expires_after={"anchor": "created_at", "seconds": 60})


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (PURPOSE + END, "file", "missing_field"),
        (FILE + END, "purpose", "missing_field"),
        (part("purpose", "assistants") + FILE + END, "purpose", "invalid_value"),
        (PURPOSE + FILE, None, "invalid_form"),
        (PURPOSE + FILE + FILE + END, "file", "invalid_value"),
        (part("note", "a" * 2000) + FILE + PURPOSE + END, "note", "invalid_value"),
        ("nothing", None, "invalid_form"),
        ("", None, "invalid_form"),
        (PURPOSE * 20 + FILE + END, None, "invalid_form"),
    ],
)
async def test_a_wrong_form_leaves_nothing(
    batches: BatchWorld, body: str, param: str | None, code: str
) -> None:
    before = stored(batches)
    response = await batches.world.http.post("/v1/files", content=body, headers=HEADERS)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert stored(batches) == before


async def test_a_body_that_is_no_form_is_refused(batches: BatchWorld) -> None:
    response = await batches.world.http.post("/v1/files", json={"purpose": "batch"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")


async def test_a_file_that_is_too_large_is_refused_before_it_is_sent(batches: BatchWorld) -> None:
    head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_FILE_BYTES + 70_000}\r\n"
    answer = await asked(batches.world.url, f"{head}Content-Type: {HEADERS['content-type']}\r\n\r\n".encode())
    assert (answer.status, b"file_too_large" in answer.body) == (413, True)


async def test_a_client_that_leaves_during_an_upload_leaves_nothing(batches: BatchWorld) -> None:
    before = stored(batches)
    host, port = batches.world.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {8 * PIECE_BYTES}\r\n"
    writer.write(f"{head}Content-Type: {HEADERS['content-type']}\r\n\r\n{PURPOSE}".encode())
    writer.write(part("file", "", '; filename="a"').encode()[:-2] + b"a" * 3 * PIECE_BYTES)
    await writer.drain()
    await batches.world.until(lambda: len(stored(batches)) == len(before) + 1)
    writer.close()
    await batches.world.until(lambda: stored(batches) == before)


async def test_an_upload_larger_than_other_bodies_passes(tmp_path: Path) -> None:
    """Also one that is sent in chunks, without its length."""
    line = jsonl(chat("a"))
    size = 70 * 1024 * 1024

    async def body() -> AsyncIterator[bytes]:
        yield (PURPOSE + part("file", "", '; filename="a"')[:-2]).encode()
        for _ in range(size // PIECE_BYTES):
            yield b" " * (PIECE_BYTES - 1) + b"\n"
        yield line + f"\r\n{END}".encode()

    async with batch_world(tmp_path) as batches:
        response = await batches.world.http.post("/v1/files", content=body(), headers=HEADERS)
        assert response.status_code == 200, response.text
        file = response.json()
        assert file["bytes"] == size + len(line)
        made = await batches.client.batches.create(
            input_file_id=file["id"], endpoint="/v1/chat/completions", completion_window="24h"
        )
        batch = await batches.ended(made)
        assert (batch.status, batch.request_counts.completed) == ("completed", 1)


async def test_a_full_data_directory_refuses_uploads_until_a_file_is_deleted(tmp_path: Path) -> None:
    async with batch_world(tmp_path, data_size=200_000) as batches:
        content = io.BytesIO(b" " * 60_000)
        first = await batches.client.files.create(file=content, purpose="batch")
        with pytest.raises(openai.InternalServerError, match="half of the size of --data-dir") as refused:
            await batches.client.files.create(file=io.BytesIO(b" " * 60_000), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (507, "storage_full")
        assert stored(batches) == [first.id]
        await batches.client.files.delete(first.id)
        await batches.client.files.create(file=io.BytesIO(b" " * 60_000), purpose="batch")


async def test_one_key_leaves_space_to_others(tmp_path: Path) -> None:
    async with batch_world(tmp_path, api_keys=("one", "two"), data_size=400_000) as batches:
        await batches.client.files.create(file=io.BytesIO(b" " * 80_000), purpose="batch")
        with pytest.raises(openai.InternalServerError, match="those of one key no more than stays free"):
            await batches.client.files.create(file=io.BytesIO(b" " * 40_000), purpose="batch")
        other = batches.with_key("two")
        await other.files.create(file=io.BytesIO(b" " * 50_000), purpose="batch")


async def test_a_key_s_results_stop_only_its_own_batches(tmp_path: Path) -> None:
    async with batch_world(tmp_path, api_keys=("one", "two"), data_size=60_000, max_running=4) as batches:
        stopped = await batches.start(*(chat(str(number)) for number in range(60)))
        batches.client = batches.with_key("two")
        assert (await batches.run(chat("a"))).status == "completed"
        batches.client = batches.with_key("one")
        found: Any = await batches.client.batches.retrieve(stopped.id)
        assert (found.status, 0 < found.request_counts.completed < 60) == ("in_progress", True)
        await asyncio.sleep(0.2)
        again = await batches.client.batches.retrieve(stopped.id)
        assert again.request_counts == found.request_counts
        await batches.client.batches.cancel(stopped.id)
        ended = await batches.ended(stopped)
        assert len(await batches.lines(ended.output_file_id)) == ended.request_counts.completed


async def test_an_upload_that_stops_ends_and_takes_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uploads() -> int:
        with contextlib.closing(sqlite3.connect(tmp_path / "batches.sqlite")) as connection:
            ((found,),) = connection.execute("SELECT count(*) FROM records")
        return int(found)

    timeout, limits = asyncio.timeout, list[asyncio.Timeout]()

    def recorded(seconds: float | None) -> asyncio.Timeout:
        limit = timeout(seconds)
        if seconds == files.PIECE_SECONDS:
            limits.append(limit)
        return limit

    monkeypatch.setattr(asyncio, "timeout", recorded)
    monkeypatch.setattr(files, "PIECE_SECONDS", 1000.5)
    monkeypatch.setattr(files, "MAX_UPLOADS", 3)
    async with batch_world(tmp_path, data_size=400_000) as batches:
        assert (await batches.client.files.list()).data == []
        idle = [asyncio.create_task(slow_upload(batches, 150_000)) for _ in range(3)]
        await batches.world.until(lambda: uploads() == 3)
        with pytest.raises(openai.RateLimitError, match="3 uploads have not ended yet"):
            await batches.client.files.create(file=io.BytesIO(b" " * 150_000), purpose="batch")
        await batches.world.until(lambda: len(limits) == 3)
        for limit in limits:
            limit.reschedule(0)
        answers = await asyncio.gather(*idle)
        assert {(answer.status, b"too slow" in answer.body) for answer in answers} == {(408, True)}
        assert uploads() == 0
        await batches.client.files.create(file=io.BytesIO(b" " * 150_000), purpose="batch")


async def slow_upload(batches: BatchWorld, size: int) -> Any:
    """The answer to an upload that declares so many bytes and stops within its file."""
    head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
    head += f"Content-Type: {HEADERS['content-type']}\r\n\r\n{PURPOSE}"
    return await asked(batches.world.url, f"{head}{part('file', 'a', '; filename=x')[:-2]}".encode())


async def test_files_are_removed_on_another_thread(
    batches: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await batches.upload(chat("a"))
    threads: list[int] = []
    unlink = Path.unlink

    def noted(path: Path, missing_ok: bool = False) -> None:
        threads.append(threading.get_ident())
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    await batches.client.files.delete(file.id)
    assert file.id not in stored(batches)
    assert threads and threading.get_ident() not in threads


async def test_a_batch_waits_while_the_data_directory_is_full(tmp_path: Path) -> None:
    async with batch_world(tmp_path, data_size=4_000) as batches:
        large = await batches.client.files.create(file=io.BytesIO(b" " * 1000), purpose="batch")
        made = await batches.start(*(chat(str(number)) for number in range(3)))
        batch = await batches.ended(made)
        assert batch.status == "completed"  # three lines start together
        lines = [chat(str(number)) for number in range(2)]
        with pytest.raises(openai.InternalServerError):
            await batches.start(*lines)
        await batches.client.files.delete(large.id)


async def test_a_file_that_is_deleted_stays_for_its_open_batch(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as batches:
        batches.world.running.gate.clear()
        batch = await batches.start(*(chat(str(number)) for number in range(100)))
        await batches.until(batch, "in_progress")
        await batches.client.files.delete(batch.input_file_id)
        with pytest.raises(openai.NotFoundError):
            await batches.client.files.retrieve(batch.input_file_id)
        batches.world.running.gate.set()
        ended = await batches.ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 100)
        await batches.world.until(lambda: batch.input_file_id not in stored(batches))


async def test_a_file_that_vanishes_from_the_disk_fails_its_batch(tmp_path: Path) -> None:
    async with batch_world(tmp_path, max_running=4) as batches:
        batches.world.running.gate.clear()
        batch = await batches.start(*(chat(str(number)) for number in range(10)))
        await batches.world.until(lambda: bool(batches.world.running.rows))
        (tmp_path / "files" / batch.input_file_id).unlink()
        batches.world.running.gate.set()
        ended = await batches.ended(batch)
        assert (ended.status, ended.errors.data[0].code) == ("failed", "input_file_lost")
        assert len(await batches.lines(ended.output_file_id)) == ended.request_counts.completed >= 1


async def test_a_damaged_database_is_an_error_of_these_endpoints_alone(tmp_path: Path) -> None:
    (tmp_path / "batches.sqlite").write_bytes(b"not a database" * 1000)
    async with batch_world(tmp_path) as batches:
        with pytest.raises(openai.InternalServerError) as refused:
            await batches.client.files.list()
        assert (refused.value.status_code, refused.value.code) == (503, "storage_failed")
        assert (await batches.world.http.post(CHATS, json=chat("a")["body"])).status_code == 200
        (tmp_path / "batches.sqlite").unlink()
        assert (await batches.run(chat("a"))).status == "completed"


async def test_batches_run_again_after_their_database_is_moved_away(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as batches:
        assert (await batches.run(chat("a"))).status == "completed"
        (tmp_path / "batches.sqlite").rename(tmp_path / "away")
        batch = await batches.run(chat("b"))
        assert batch.status == "completed"
        assert [each.id async for each in batches.client.batches.list()] == [batch.id]


async def test_a_disk_that_is_full_before_the_first_use_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with batch_world(tmp_path) as batches:
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_file, "_PRAGMAS", "PRAGMA max_page_count = 2")
            for path in ("/v1/files", "/v1/responses/resp_1"):
                answer = await batches.world.http.get(path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
        assert (await batches.world.http.get("/v1/files")).status_code == 200


async def test_a_full_disk_is_named(batches: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    before = stored(batches)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        response = await batches.world.http.post("/v1/files", content=PURPOSE + FILE + END, headers=HEADERS)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (507, "disk_full")
    assert response.headers["x-should-retry"] == "false"
    assert stored(batches) == before


async def test_a_batch_whose_output_does_not_fit_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, full = os.fsync, [OSError(28, "No space left on device")] * 2

    def fill(descriptor: int) -> None:
        if full:
            raise full.pop()
        fsync(descriptor)

    async with batch_world(tmp_path) as batches:
        batches.world.running.gate.clear()
        batch = await batches.start(chat("a"))
        await batches.world.until(lambda: bool(batches.world.running.rows))
        monkeypatch.setattr(os, "fsync", fill)
        batches.world.running.gate.set()
        ended = await batches.ended(batch)
        assert not full and ended.status == "completed"
        assert stored(batches) == sorted([batch.input_file_id, ended.output_file_id])


async def test_a_server_without_a_data_directory_says_so() -> None:
    async with http_world() as world:
        for method, path in (("POST", "/v1/files"), ("GET", "/v1/files"), ("GET", "/v1/batches/batch_1")):
            error = (await world.http.request(method, path)).json()["error"]
            assert error["code"] == "data_dir_off" and "--data-dir" in error["message"]


async def test_old_files_are_removed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with batch_world(tmp_path) as batches:
        old = await batches.upload(chat("a"))
        now = time.time()
        monkeypatch.setattr(
            "arbora.frontend.stored.records.transaction.time.time", lambda: now + 31 * 24 * 3600
        )
        with pytest.raises(openai.NotFoundError):
            await batches.client.files.retrieve(old.id)
        new = await batches.upload(chat("a"))
        await batches.world.until(lambda: stored(batches) == [new.id])


async def test_a_page_after_a_file_that_the_key_does_not_have_is_refused(tmp_path: Path) -> None:
    async with batch_world(tmp_path, api_keys=("one", "two"), data_size=1 << 30) as batches:
        files = [(await batches.upload(chat("a"))).id for _ in range(2)]
        batches.client = batches.with_key("two")
        await batches.upload(chat("b"))
        own = (await batches.upload(chat("c"))).id
        await batches.client.files.delete(own)
        for after in (files[0], own, "file-none"):
            for list_page in (batches.client.files.list, batches.client.batches.list):
                with pytest.raises(openai.BadRequestError) as refused:
                    await list_page(after=after)
                assert refused.value.param == "after"
                assert f"is '{after}', which is no item of the list" in refused.value.message
