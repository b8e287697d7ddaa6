"""A batch whose process dies at any point: every input line gets exactly one line of output or error."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from arbora.frontend.stored.batches.objects import BatchObject, RequestCounts
from batch_crashes import CrashWorld, Death
from batch_world import ENDED
from hypothesis import given, settings
from hypothesis import strategies as st

STATUSES = st.lists(st.sampled_from((200, 200, 400, 500)), min_size=1, max_size=6)
DEATHS = st.lists(st.builds(Death, st.integers(1, 24), st.booleans()), max_size=5)


async def outcome(statuses: list[int], deaths: list[Death], cancel_after: int | None) -> None:
    with tempfile.TemporaryDirectory(prefix="arb") as name:
        world = CrashWorld(Path(name), statuses)
        batch = (await world.begin()).id
        for number, death in enumerate(deaths):
            if number == cancel_after:
                await world.cancel(batch)
            await world.run(death)
        for _ in range(2):  # a cancellation that comes amid a run leaves the rest to the next one
            await world.run()
        check(world, await world.found(batch))


def check(world: CrashWorld, record: BatchObject) -> None:
    assert record.status in ENDED
    good, bad = world.file(record.output_file_id), world.file(record.error_file_id)
    if record.in_progress_at is None:
        assert record.status == "cancelled" and not good and not bad
        return
    ids = [line["custom_id"] for line in world.lines]
    assert sorted(line["custom_id"] for line in good + bad) == sorted(ids)
    assert record.request_counts == RequestCounts(len(ids), len(good), len(bad))
    statuses = {line["custom_id"]: line["body"]["status"] for line in world.lines}
    assert all(statuses[line["custom_id"]] == line["response"]["status_code"] == 200 for line in good)
    assert all(
        line["error"]["code"] == "batch_cancelled"
        if line["response"] is None
        else line["response"]["status_code"] == statuses[line["custom_id"]]
        for line in bad
    )
    assert [line["line"] for line in bad] == sorted(ids.index(line["custom_id"]) + 1 for line in bad)
    if record.status == "completed":
        assert all(line["response"] is not None for line in bad)


@settings(max_examples=60, deadline=None)
@given(STATUSES, DEATHS, st.none() | st.integers(0, 4))
def test_every_line_has_exactly_one_result_after_any_deaths(
    statuses: list[int], deaths: list[Death], cancel_after: int | None
) -> None:
    asyncio.run(outcome(statuses, deaths, cancel_after))


def test_each_death_in_turn_leaves_one_result_for_each_line() -> None:
    for at in range(1, 16):
        for after in (False, True):
            asyncio.run(outcome([200, 400, 200], [Death(at, after)], None))


def test_a_finished_line_is_not_asked_again() -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="arb") as name:
            world = CrashWorld(Path(name), [200] * 6, slots=1)
            batch = (await world.begin()).id
            # The server finds the batch, claims it, begins it, reads its results, and adds two.
            await world.run(Death(6, after=True))
            found = await world.found(batch)
            assert (found.status, found.request_counts.completed) == ("in_progress", 2)
            before = sum(world.answers.asked.values())
            await world.run()
            assert (await world.found(batch)).status == "completed"
            assert sum(world.answers.asked.values()) == before + 4

    asyncio.run(run())
