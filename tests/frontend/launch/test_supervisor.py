"""A supervisor and its children, which are stand-ins that only speak the protocol."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
from arbora.frontend.launch import served_model, watchdog
from arbora.frontend.launch import supervisor as supervisor_module
from arbora.frontend.launch.child_process import Command, Place, start_child
from arbora.frontend.launch.directory import PREFIX, PrivateDirectory, remove_stale_directories
from arbora.frontend.launch.errors import CannotStartError, ServerError
from arbora.frontend.launch.supervisor import Supervisor
from arbora.frontend.launch.watchdog import Restarts
from arbora.runtime.messages import Alive, KnowsReplica, Ready
from arbora.runtime.processes.child import ChildArguments
from arbora.runtime.processes.sockets import ANY_EPOCH, Outbox, supervisor_address
from fake_child import READY
from fake_server import fake_commands

PATIENCE = 60.0


@pytest.fixture
def directory() -> Iterator[Path]:
    private = PrivateDirectory.open()
    yield private.path
    private.close()


@pytest.fixture(autouse=True)
def no_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins show no sign of life."""
    monkeypatch.setattr(supervisor_module, "HEAD_START_SECONDS", 0.0)


@asynccontextmanager
async def supervising(directory: Path, replicas: int = 1, **behaviours: str) -> AsyncIterator[Supervisor]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        places = tuple(Place({"ARBORA_PART": str(number)}) for number in range(replicas))
        commands = fake_commands(**behaviours)._replace(replicas=places)
        supervisor = Supervisor(directory, commands, listener)
        try:
            yield supervisor
        finally:
            await supervisor.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


def pid_of(directory: Path, role: str) -> int:
    file = directory / f"{role}.pid"
    text = file.read_text() if file.exists() else ""
    return int(text) if text else 0


def events(directory: Path) -> list[str]:
    file = directory / "events"
    return file.read_text().splitlines() if file.exists() else []


def tokenizer_events(directory: Path) -> list[str]:
    """The reports of the tokenizer process that was started last: that it listens, and each message since."""
    told = [event for event in events(directory) if event.startswith("tokenizer ")]
    starts = [at for at, event in enumerate(told) if event.startswith("tokenizer listens")]
    return told[starts[-1] :] if starts else []


async def until_event(directory: Path, event: str) -> None:
    await until(lambda: event in events(directory))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def kill_and_see_it_back(directory: Path, role: str) -> None:
    before = pid_of(directory, role)
    os.kill(before, signal.SIGKILL)
    await until(lambda: pid_of(directory, role) not in (0, before))


async def test_start_returns_what_the_model_says_of_itself(directory: Path) -> None:
    async with supervising(directory) as supervisor:
        ready = await supervisor.start()
        assert (ready.num_pages, ready.page_size, ready.device) == (100, 16, "cpu")


async def test_tokenizers_start_after_the_first_sign_of_life(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "HEAD_START_SECONDS", PATIENCE)
    async with supervising(directory) as supervisor:
        starting = asyncio.create_task(supervisor.start())
        await until(lambda: pid_of(directory, "model"))
        assert not pid_of(directory, "tokenizer")
        lives = Outbox(zmq.Context(), supervisor_address(directory), ANY_EPOCH)
        lives.send(Alive(pid_of(directory, "scheduler"), 0.0))
        await asyncio.wait_for(starting, PATIENCE)
        lives.close()


async def test_tokenizers_start_even_if_nobody_shows_life(directory: Path) -> None:
    async with supervising(directory, model="mute") as supervisor:
        starting = asyncio.create_task(supervisor.start())
        await until(lambda: pid_of(directory, "tokenizer"))
        starting.cancel()


async def test_the_start_ends_when_the_tokenizer_knows_the_replica(directory: Path) -> None:
    async with supervising(directory, tokenizer="unaware") as supervisor:
        starting = asyncio.create_task(supervisor.start())
        await until_event(directory, "tokenizer PeerUp 1")
        await asyncio.sleep(0.3)
        assert not starting.done()
        known = Outbox(zmq.Context(), supervisor_address(directory), ANY_EPOCH)
        known.send(KnowsReplica(0))
        await asyncio.wait_for(starting, PATIENCE)
        known.close()


async def test_a_tokenizer_may_be_killed_many_times_while_the_model_loads(directory: Path) -> None:
    async with supervising(directory, model="mute") as supervisor:
        starting = asyncio.create_task(supervisor.start())
        tokenizer = supervisor._tokenizers[0]
        await until(lambda: tokenizer.ready_at is not None)
        for _ in range(6):
            await kill_and_see_it_back(directory, "tokenizer")
            await until(lambda: tokenizer.ready_at is not None)
        await until(lambda: tokenizer_events(directory)[1:])
        assert not starting.done()
        starting.cancel()


async def test_a_tokenizer_process_takes_over_the_bound_socket(directory: Path) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        assert events(directory)[0].startswith("tokenizer listens on ('127.0.0.1', ")


async def test_a_tokenizer_hears_that_the_replica_is_up_and_down_and_up_in_a_new_epoch(
    directory: Path,
) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        await kill_and_see_it_back(directory, "model")
        await until_event(directory, "tokenizer PeerUp 2")
        told = [event for event in events(directory) if "Peer" in event]
        down, up = "tokenizer PeerDown", "tokenizer PeerUp"
        assert told == [down, f"{up} 1", down, f"{up} 2"]


@pytest.mark.parametrize(("victim", "other"), [("model", "scheduler"), ("scheduler", "model")])
async def test_scheduler_and_model_die_together(directory: Path, victim: str, other: str) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        before = pid_of(directory, other)
        await kill_and_see_it_back(directory, victim)
        await until(lambda: pid_of(directory, other) != before)
        assert not is_alive(before)


async def test_a_replica_dies_alone(directory: Path) -> None:
    async with supervising(directory, replicas=2) as supervisor:
        await supervisor.start()
        others = [pid_of(directory, role) for role in ("model", "scheduler", "tokenizer")]
        for epoch, victim in ((3, "model1"), (4, "scheduler1")):
            await kill_and_see_it_back(directory, victim)
            await until_event(directory, f"tokenizer PeerUp {epoch}")
        assert [pid_of(directory, role) for role in ("model", "scheduler", "tokenizer")] == others
        told = [event for event in events(directory) if "Peer" in event]
        assert told.count("tokenizer PeerDown") == 2 + 2  # at first both are down
        assert {f"tokenizer PeerUp {epoch}" for epoch in (1, 2, 3, 4)} <= set(told)


async def test_each_replica_has_its_own_environment(directory: Path) -> None:
    async with supervising(directory, replicas=2) as supervisor:
        await supervisor.start()
        for role in ("scheduler", "model"):
            for number, name in enumerate((role, f"{role}1")):
                variables = Path(f"/proc/{pid_of(directory, name)}/environ").read_bytes().split(b"\0")
                assert b"ARBORA_PART=%d" % number in variables


async def test_a_replica_that_crashes_again_and_again_leaves_the_server_to_the_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervising(directory, replicas=2) as supervisor:
        await supervisor.start()
        before = pid_of(directory, "model")
        monkeypatch.setattr(watchdog, "MAX_FAILURES", 1)
        supervisor._models[0].replicas[1].ready_at = None  # as if it had not been ready
        os.kill(pid_of(directory, "model1"), signal.SIGKILL)
        await until(lambda: "again and again; the other replicas serve" in caplog.text)
        assert pid_of(directory, "model") == before


async def test_the_sockets_of_a_dead_epoch_are_removed(directory: Path) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        assert (directory / "scheduler.0.1").exists()
        await kill_and_see_it_back(directory, "scheduler")
        await until(lambda: (directory / "scheduler.0.2").exists())
        assert not (directory / "scheduler.0.1").exists()


async def test_a_tokenizer_starts_again_without_the_replica_and_hears_that_it_is_up(directory: Path) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        replica = pid_of(directory, "scheduler"), pid_of(directory, "model")
        await kill_and_see_it_back(directory, "tokenizer")
        await until(lambda: tokenizer_events(directory)[1:] == ["tokenizer PeerUp 1"])
        assert (pid_of(directory, "scheduler"), pid_of(directory, "model")) == replica


async def test_the_scheduler_hears_that_a_tokenizer_died(directory: Path) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        await kill_and_see_it_back(directory, "tokenizer")
        await until(lambda: any("scheduler PeerDown" in event for event in events(directory)))


async def test_a_client_in_this_process_needs_no_tokenizer_process(directory: Path) -> None:
    async with supervising(directory, tokenizer="absent") as supervisor:
        assert (await supervisor.start()).max_model_len == 512
        assert pid_of(directory, "tokenizer") == 0


@pytest.mark.parametrize("role", ["scheduler", "model", "tokenizer"])
async def test_a_child_that_says_why_it_can_not_start_ends_the_start_at_once(
    directory: Path, role: str
) -> None:
    async with supervising(directory, 1, **{role: "refuse"}) as supervisor:
        with pytest.raises(CannotStartError, match="the model has a field that no one can read"):
            await supervisor.start()


async def test_a_child_that_crashes_again_and_again_ends_the_start_with_its_last_lines(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "FIRST_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(served_model, "FAILED_GRACE_SECONDS", 0.0)
    async with supervising(directory, model="crash") as supervisor:
        with pytest.raises(ServerError, match=r"(?s)exited with code 3.*line one\nthe sky fell") as ended:
            await supervisor.start()
    assert not isinstance(ended.value, CannotStartError)


async def test_a_replica_that_crashes_as_soon_as_it_is_ready_ends_the_server(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "FIRST_DELAY_SECONDS", 0.0)
    async with supervising(directory, scheduler="crash-later") as supervisor:
        with pytest.raises(ServerError, match="exited with code 3, again and again"):
            await supervisor.start()
            await supervisor.wait()


async def test_ten_kills_in_a_row_are_survived(directory: Path) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        for epoch in range(2, 12):
            os.kill(pid_of(directory, "model"), signal.SIGKILL)
            await until_event(directory, f"tokenizer PeerUp {epoch}")
        children = [pid_of(directory, role) for role in ("scheduler", "model", "tokenizer")]
    assert not any(map(is_alive, children))


async def test_closing_leaves_no_child_even_a_deaf_one(directory: Path) -> None:
    async with supervising(directory, model="deaf", tokenizer="deaf") as supervisor:
        await supervisor.start()
        children = [pid_of(directory, role) for role in ("scheduler", "model", "tokenizer")]
    assert not any(map(is_alive, children))


async def test_a_death_is_known_at_once_though_others_keep_its_output_open(directory: Path) -> None:
    starts_another = "import os, subprocess; subprocess.Popen(['sleep', '60']); print('the end', flush=True)"
    program = f"{starts_another}; os.kill(os.getpid(), 9)"
    command = Command("model", (sys.executable, "-c", program))
    async with asyncio.timeout(PATIENCE):
        child = await start_child(command, ChildArguments(directory, 1, 0, os.getpid()), {})
        assert await child.exited() == -signal.SIGKILL
    assert child.last_lines() == "the end"


async def test_a_character_in_two_pieces_is_passed_on_whole(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write = "import os, time; os.write(2, b'caf\\xc3'); time.sleep(0.3); os.write(2, b'\\xa9 \\xe2\\x82')"
    command = Command("model", (sys.executable, "-c", write))
    child = await start_child(command, ChildArguments(directory, 1, 0, os.getpid()), {})
    await child.exited()
    assert capsys.readouterr().err == "café \N{REPLACEMENT CHARACTER}"


async def test_stopping_a_child_leaves_its_exit_code_to_asyncio(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled: list[object] = []
    monkeypatch.setattr(subprocess.Popen, "poll", polled.append)  # it would reap a child that has just ended
    command = Command("model", (sys.executable, "-c", "import time; time.sleep(60)"))
    async with asyncio.timeout(PATIENCE):
        child = await start_child(command, ChildArguments(directory, 1, 0, os.getpid()), {})
        await child.stop()
        assert (await child.exited(), polled) == (-signal.SIGTERM, [])


async def test_draining_ends_when_the_tokenizer_has_no_request_left(directory: Path) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        async with asyncio.timeout(PATIENCE):
            await supervisor.drain(seconds=3600)
            await supervisor.wait()
        assert tokenizer_events(directory)[-1] == "tokenizer Drain"


@pytest.mark.parametrize("victim", ["model", "scheduler"])
async def test_a_replica_that_dies_while_it_saves_its_cache_is_not_started_again(
    directory: Path, victim: str
) -> None:
    async with supervising(directory, model="stores") as supervisor:
        await supervisor.start()
        drain = asyncio.create_task(supervisor.drain(seconds=3600))
        await until_event(directory, "scheduler Drain()")
        children = {role: pid_of(directory, role) for role in ("model", "scheduler")}
        os.kill(children[victim], signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            await drain
        assert {role: pid_of(directory, role) for role in children} == children


async def test_draining_ends_at_the_deadline(directory: Path) -> None:
    async with supervising(directory, tokenizer="deaf") as supervisor:
        await supervisor.start()
        await supervisor.drain(seconds=0.1)
        async with asyncio.timeout(PATIENCE):
            await supervisor.wait()
        await until(lambda: events(directory)[-2:] == ["tokenizer Drain", "tokenizer GiveUp"])


async def test_the_cache_is_saved_though_requests_are_still_open_and_within_a_time_of_its_own(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervising(directory, model="stores", tokenizer="deaf") as supervisor:
        await supervisor.start()
        drain = asyncio.create_task(supervisor.drain(seconds=0.1, saving_seconds=0.5))
        await until_event(directory, "scheduler Drain()")
        assert "scheduler PeerDown(role='tokenizer', client=0, replica=0)" in events(directory)
        async with asyncio.timeout(PATIENCE):
            await drain
    assert "not all of the cache could be saved within" in caplog.text


async def test_a_start_can_be_broken_off(directory: Path) -> None:
    async with supervising(directory, model="mute") as supervisor:
        start = asyncio.create_task(supervisor.start())
        await until(lambda: pid_of(directory, "model"))
        await supervisor.drain(seconds=3600)
        with pytest.raises(ServerError, match="stopped before it was ready"):
            await start


def test_a_death_after_serving_starts_again_at_once_and_clears_the_record() -> None:
    policy = Restarts()
    for start in range(4):
        assert policy.delay_after(start, None, 1) is not None
    assert policy.delay_after(20.0, 10.0, 1) == 0.0
    assert policy.delay_after(21.0, None, 1) == watchdog.FIRST_DELAY_SECONDS


def test_a_kill_from_outside_after_ready_is_no_failure() -> None:
    policy = Restarts()
    assert [policy.delay_after(time, time, -signal.SIGKILL) for time in range(10)] == [0.0] * 10


def test_failures_back_off_and_the_fifth_in_a_minute_gives_up() -> None:
    policy = Restarts()
    assert [policy.delay_after(time, None, -signal.SIGSEGV) for time in range(5)] == [0.25, 0.5, 1, 2, None]


def test_failures_a_minute_apart_are_forgotten() -> None:
    policy = Restarts()
    assert {policy.delay_after(100.0 * time, None, 1) for time in range(20)} == {watchdog.FIRST_DELAY_SECONDS}


def test_the_directory_is_private_and_short_enough_for_sockets() -> None:
    private = PrivateDirectory.open()
    assert private.path.stat().st_mode & 0o777 == 0o700
    private.close()
    assert not private.path.exists()


def test_a_directory_without_a_living_owner_is_removed() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        living = PrivateDirectory.open(Path(parent))
        stale = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        (stale / "scheduler.1").touch()
        remove_stale_directories(Path(parent))
        assert not stale.exists()
        assert living.path.exists()
        living.close()


async def test_a_message_of_a_dead_epoch_is_not_heard(directory: Path) -> None:
    async with supervising(directory) as supervisor:
        await supervisor.start()
        await kill_and_see_it_back(directory, "scheduler")
        await until_event(directory, "tokenizer PeerUp 2")
        with zmq.Context() as context:
            late = Outbox(context, supervisor_address(directory), epoch=1)
            late.send(Ready("scheduler", model=READY))
            late.close()
        await kill_and_see_it_back(directory, "scheduler")
        await until_event(directory, "tokenizer PeerUp 3")
        told = [event for event in events(directory) if "PeerUp" in event]
        assert told == [f"tokenizer PeerUp {epoch}" for epoch in (1, 2, 3)]


async def test_a_child_that_can_not_be_started_leaves_nothing_waiting(directory: Path) -> None:
    command = Command("model", (str(directory / "no such program"),))
    with pytest.raises(FileNotFoundError):
        await start_child(command, ChildArguments(directory, 1, 0, os.getpid()), {})
    assert asyncio.all_tasks() == {asyncio.current_task()}
