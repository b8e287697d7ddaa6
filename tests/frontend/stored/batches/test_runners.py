"""Several processes and servers with one data directory, and lines that must be tried again."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from arbora.runtime.api_keys import plain_key
from arbora.runtime.messages import Generate, Refused
from batch_crashes import CrashWorld, Death
from batch_world import BatchWorld, batch_world, chat


def prompts(*worlds: BatchWorld) -> list[str]:
    return [
        world.world.text(list(memoryview(each.prompt).cast("i")))
        for world in worlds
        for each in world.world.running.of_kind(Generate)
    ]


async def test_one_of_several_servers_runs_a_batch(tmp_path: Path) -> None:
    lines = [chat(str(number), f"Question {number}") for number in range(30)]
    async with batch_world(tmp_path) as first, batch_world(tmp_path) as second:
        made = [await first.start(*lines[:15]), await second.start(*lines[15:])]
        ended = [await second.ended(made[0]), await first.ended(made[1])]
        assert [batch.request_counts.completed for batch in ended] == [15, 15]
        found = prompts(first, second)
    assert len(found) == len(set(found)) == 30


async def test_a_batch_continues_on_another_server_when_one_shuts_down(tmp_path: Path) -> None:
    async with batch_world(tmp_path, max_running=8) as first:
        first.world.running.gate.clear()
        batch = await first.start(*(chat(str(number)) for number in range(10)))
        await first.world.until(lambda: bool(first.world.running.rows))
    async with batch_world(tmp_path) as second:
        ended = await second.ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 10)
        lines = await second.lines(ended.output_file_id)
    assert [line["custom_id"] for line in lines] == [str(number) for number in range(10)]


async def test_a_server_without_the_batch_s_key_leaves_it(tmp_path: Path) -> None:
    async with batch_world(tmp_path, api_keys=("one",)) as first:
        first.world.running.gate.clear()
        batch = await first.start(chat("a"))
        await first.world.until(lambda: bool(first.world.running.rows))
    async with batch_world(tmp_path, api_keys=("two",)) as second:
        await asyncio.sleep(0.3)
        assert second.world.running.of_kind(Generate) == []
    async with batch_world(tmp_path, api_keys=("two", "one")) as third:
        third.client = third.with_key("one")
        assert (await third.ended(batch)).status == "completed"


async def test_a_key_may_come_and_go_while_its_batches_run(tmp_path: Path) -> None:
    async with batch_world(tmp_path, api_keys=("one", "other")) as batches:
        ring = batches.world.http_service.keys
        ring.replace([plain_key("one"), plain_key("two")])
        batches.client = batches.with_key("two")
        assert (await batches.run(chat("a"))).status == "completed"
        batches.world.running.gate.clear()
        batch = await batches.start(chat("b"))
        await batches.world.until(lambda: bool(batches.world.running.rows))
        ring.replace([plain_key("one")])
        await batches.world.until(lambda: not batches.world.running.rows)
        seen = len(batches.world.running.of_kind(Generate))
        batches.world.running.gate.set()
        await asyncio.sleep(0.3)
        assert len(batches.world.running.of_kind(Generate)) == seen
        ring.replace([plain_key("one"), plain_key("two")])
        assert (await batches.ended(batch)).status == "completed"


async def test_a_line_that_waits_does_not_stop_other_batches(tmp_path: Path) -> None:
    async with batch_world(tmp_path, max_running=4) as batches:  # one slot

        def refuse(request: Generate) -> Refused | None:
            text = batches.world.text(list(memoryview(request.prompt).cast("i")))
            return Refused(request.request, 429, "full", None, "queue_full", 1) if "limited" in text else None

        batches.world.running.refuse = refuse
        limited = await batches.start(*(chat(str(number), "limited") for number in range(5)))
        await batches.world.until(lambda: bool(batches.world.running.of_kind(Generate)))
        assert (await batches.run(chat("b"), chat("c"))).request_counts.completed == 2
        await batches.client.batches.cancel(limited.id)
        assert (await batches.ended(limited)).status == "cancelled"
        assert (await batches.run(chat("d"))).request_counts.completed == 1


async def test_a_waiting_batch_is_cancelled_beside_the_two_that_run(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as batches:
        batches.world.running.gate.clear()
        for name in "ab":
            await batches.until(await batches.start(chat(name)), "in_progress")
        waiting = await batches.start(chat("c"))
        await batches.client.batches.cancel(waiting.id)
        assert (await batches.ended(waiting)).status == "cancelled"


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
async def test_the_data_directory_may_have_characters_of_urls(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    async with batch_world(tmp_path / name) as batches:
        assert (await batches.run(chat("a"))).status == "completed"


async def test_a_line_is_tried_again_while_the_queue_is_full(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as batches:
        refusals = [Refused("", 429, "full", None, "queue_full", 1)]

        def refuse(request: Generate) -> Refused | None:
            if not refusals:
                return None
            return Refused(request.request, 429, "full", None, "queue_full", 1) if refusals.pop() else None

        batches.world.running.refuse = refuse
        batch = await batches.run(chat("a"))
        assert (batch.status, batch.request_counts.completed) == ("completed", 1)
        assert len(batches.world.running.of_kind(Generate)) == 2


async def test_batches_run_again_after_their_directory_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists, errors = Path.exists, [PermissionError(13, "Permission denied")]

    def fail(path: Path, **options: bool) -> bool:
        if path.name == "batches.sqlite" and errors:
            raise errors.pop()
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", fail)
    async with batch_world(tmp_path) as batches:
        await batches.world.until(lambda: not errors)
        assert (await batches.run(chat("a"))).status == "completed"


async def test_a_line_outlives_the_model(tmp_path: Path) -> None:
    async with batch_world(tmp_path) as batches:
        batches.world.running.gate.clear()
        batch = await batches.start(chat("a"))
        await batches.world.until(lambda: bool(batches.world.running.rows))
        await batches.world.kill_replica()
        await batches.world.start_replica()
        ended = await batches.ended(batch)
        assert (ended.status, ended.request_counts.completed) == ("completed", 1)


@pytest.mark.parametrize("started", [False, True])
async def test_a_batch_that_expires_has_an_error_for_each_open_line(started: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="arb") as name:
        world = CrashWorld(Path(name), [200] * 3)
        batch = (await world.begin()).id
        if started:
            await world.run(Death(5, after=True))  # it finds, claims, begins, reads the results, and adds one
        await world.expire(batch)
        await world.run()
        record = await world.found(batch)
        assert record.status == "expired"
        good, bad = world.file(record.output_file_id), world.file(record.error_file_id)
        assert (len(good), len(bad)) == ((1, 2) if started else (0, 0))
        assert {line["error"]["code"] for line in bad} == ({"batch_expired"} if started else set())
