"""Models of a supervisor that are loaded when they are needed, with children that only speak the protocol."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from arbora.frontend.launch import served_model
from arbora.frontend.launch.directory import PrivateDirectory
from arbora.frontend.launch.model_room import ModelRoom
from arbora.frontend.launch.served_model import HostedModel, ServedModel
from arbora.frontend.launch.supervisor import Supervisor
from arbora.runtime.messages import Message, ModelState, Ready
from arbora.runtime.processes.sockets import SUPERVISOR, model_directory
from fake_server import fake_commands

PATIENCE = 60.0
CLIENT = 0


@pytest.fixture
def directory() -> Iterator[Path]:
    private = PrivateDirectory.open()
    yield private.path
    private.close()


@asynccontextmanager
async def supervising(
    directory: Path, keep_alives: list[float | None], room: ModelRoom | None = None, **behaviours: str
) -> AsyncIterator[list[ServedModel]]:
    """The models of a supervisor without tokenizer processes, one for each `keep_alive`; the first is
    loaded."""
    hosted = []
    for number, keep_alive in enumerate(keep_alives):
        place = model_directory(directory, number)
        if number:
            place.mkdir()
            (place / SUPERVISOR).symlink_to(Path("..") / SUPERVISOR)
        hosted.append(HostedModel(place, f"model {number}", keep_alive=keep_alive, memory=100))
    commands = fake_commands(**{"tokenizer": "absent", **behaviours})
    supervisor = Supervisor(directory, commands, models=hosted, room=room or ModelRoom(lambda: 1000))
    try:
        await asyncio.wait_for(supervisor.start(), PATIENCE)
        yield supervisor._models
    finally:
        await supervisor.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def load(model: ServedModel) -> None:
    model.use(CLIENT)
    await until(lambda: model.state == "loaded")


def pid_of(model: ServedModel, role: str = "model") -> int:
    return next(child.pid for child in model.replicas[0].children if child.role == role)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_model_ends_after_its_time_and_starts_again_when_it_is_used(directory: Path) -> None:
    async with supervising(directory, [0.3]) as (model,):
        before = pid_of(model), pid_of(model, "scheduler")
        await until(lambda: model.is_unloaded.is_set())
        assert not any(map(is_alive, before))
        await load(model)
        await asyncio.sleep(0.6)
        assert model.state == "loaded", "a request needs it"
        model.leave(CLIENT, 0.0)
        await until(lambda: model.is_unloaded.is_set())


async def test_the_last_request_decides_how_long_its_model_stays(directory: Path) -> None:
    async with supervising(directory, [0.2]) as (model,):
        await load(model)
        model.leave(CLIENT, None)
        await asyncio.sleep(0.5)
        assert model.state == "loaded"


async def test_a_use_while_the_model_ends_starts_it_again(directory: Path) -> None:
    async with supervising(directory, [0.0]) as (model,):
        await until(lambda: model.state == "unloaded")
        await load(model)


async def test_a_second_model_runs_beside_the_first_and_outlives_it(directory: Path) -> None:
    async with supervising(directory, [None, None]) as (first, second):
        assert second.state == "unloaded" and not second.replicas[0].children
        await load(second)
        kept, killed = pid_of(second), pid_of(first)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: first.replicas[0].model is not None and pid_of(first) != killed)
        assert pid_of(second) == kept


async def test_the_least_recently_used_model_makes_room(directory: Path) -> None:
    models: list[ServedModel] = []
    room = ModelRoom(lambda: 250 - 100 * sum(each.state == "loaded" for each in models))
    async with supervising(directory, [None] * 4, room) as served:
        first, second, third, fourth = served
        models += served
        await load(second)
        for each in (second, first):
            each.use(CLIENT)
            each.leave(CLIENT, None)
            await asyncio.sleep(0.01)
        await load(third)
        assert (first.state, second.state) == ("loaded", "unloaded")
        await load(fourth)
        assert (first.state, third.state) == ("unloaded", "loaded"), "the third is in use"


async def test_a_model_that_takes_all_waits_until_the_other_is_no_longer_used(directory: Path) -> None:
    async with supervising(directory, [None, None], ModelRoom()) as (first, second):
        first.use(CLIENT)
        second.use(CLIENT)
        await asyncio.sleep(0.5)
        assert (first.state, second.state) == ("loaded", "loading")
        first.leave(CLIENT, None)
        await until(lambda: second.state == "loaded")
        assert first.is_unloaded.is_set()


async def test_a_model_without_room_is_given_up_and_the_other_goes_on(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervising(directory, [None, None], ModelRoom(lambda: 0, seconds=0.2)) as (first, second):
        first.use(CLIENT)
        second.use(CLIENT)
        await until(
            lambda: "model 1 needs about 100B, but 0B are free, and requests use model 0" in caplog.text
        )
        await until(lambda: second.state == "unloaded")
        assert first.state == "loaded"


async def test_models_that_wait_for_room_do_not_keep_each_other_waiting(directory: Path) -> None:
    async with supervising(directory, [None, None, None], ModelRoom()) as (first, second, third):
        second.use(CLIENT)
        third.use(CLIENT)
        await until(lambda: second.state == "loaded")
        assert first.is_unloaded.is_set() and third.state == "loading"
        first.use(CLIENT)
        second.leave(CLIENT, None)
        await until(lambda: third.state == "loaded")
        third.leave(CLIENT, None)
        await until(lambda: first.state == "loaded")


@pytest.mark.parametrize(
    ("behaviour", "words"), [("refuse", "has a field that no one can read"), ("crash", "the sky fell")]
)
async def test_a_model_that_can_not_be_loaded_leaves_the_server_to_the_others(
    directory: Path,
    behaviour: str,
    words: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_model, "FAILED_GRACE_SECONDS", 0.5)
    async with supervising(directory, [None, None]) as (first, second):
        commands = fake_commands(model=behaviour)
        second._around = second._around._replace(commands=commands)
        for _ in range(2):
            second.use(CLIENT)
            await until(lambda: second.is_unloaded.is_set() and words in caplog.text)
            assert first.state == "loaded" and not second.replicas[0].children
            caplog.clear()
        second._around = second._around._replace(commands=fake_commands())
        await load(second)


async def test_the_error_of_a_failed_load_is_told_until_the_next_load(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a process whose request has just come would wait for a load that nobody tries."""
    room = ModelRoom(lambda: 50)
    async with supervising(directory, [None, 300.0], room) as (_, second):
        told: list[Message] = []
        monkeypatch.setattr(second, "tell", told.append)
        second.use(CLIENT)
        await until(lambda: len(told) == 2)
        second.leave(CLIENT, 300.0)
        assert told[0] == ModelState("loading")
        assert all(isinstance(each, ModelState) and "needs about 100B" in each.error for each in told[1:])
        assert len(told) == 3
        told.clear()
        second.use(CLIENT)
        await until(lambda: len(told) == 2)
        assert told[0] == ModelState("loading")


async def test_a_replica_that_is_ready_too_late_does_not_count(directory: Path) -> None:
    async with supervising(directory, [None, 0.0]) as (_, second):
        await load(second)
        ready, epoch = Ready("scheduler", model=second.known), second.replicas[0].running.epoch
        second.leave(CLIENT, 0.0)
        await until(lambda: second.state == "unloaded")
        second.hear_ready(ready, epoch)
        await until(lambda: second.is_unloaded.is_set())
        assert second.state == "unloaded" and second.replicas[0].model is None
        await load(second)


async def test_pages_are_saved_before_a_model_ends(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with supervising(directory, [None, 0.0], model="stores") as (_, model):
        monkeypatch.setattr(served_model, "SAVING_SECONDS", 0.2)
        await load(model)
        model.leave(CLIENT, 0.0)
        await until(lambda: model.is_unloaded.is_set())
        told = (model.hosted.directory / "events").read_text()
        assert "scheduler PeerDown(role='tokenizer', client=0, replica=0)" in told
        assert told.endswith("scheduler Drain()\n")
