"""The tokenizer process as the supervisor starts it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio
from arbora.frontend.launch.watchdog import TIMEOUTS
from arbora.frontend.model_files.model_tokenizer import load_tokenizer
from arbora.runtime.config import ServeConfig
from arbora.runtime.messages import Alive, Drained, Failed, KnowsReplica, Ready, SupervisorInbox
from arbora.runtime.processes.async_inbox import AsyncInbox
from arbora.runtime.processes.sockets import ANY_EPOCH, supervisor_address
from arbora.runtime.vocabulary import load_vocabulary
from fake_scheduler import FakeScheduler, FakeSupervisor, ready, unpacked
from tiny_model import VOCAB_SIZE, write_tiny_model

PATIENCE = 60.0  # seconds


class World:
    """A directory with a configuration, and the supervisor's two ends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = write_tiny_model(directory / "model")
        ServeConfig(model=self.model, served_model_name="tiny").save(directory)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.inbox: AsyncInbox[SupervisorInbox] = AsyncInbox(
            zmq.asyncio.Context(self.context), supervisor_address(directory), SupervisorInbox, ANY_EPOCH
        )
        self.supervisor = FakeSupervisor(directory)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """Sends what the supervisor sends while no replica is up."""
        self.supervisor.peer_down()
        return await self.start_uninformed()

    async def start_uninformed(self) -> asyncio.subprocess.Process:
        number = self.listener.fileno()
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "arbora.frontend.app.process"),
            *(str(self.directory), "0", "0", str(os.getpid())),
            env={**os.environ, "ARBORA_LISTEN_FD": str(number), "PYTHONSAFEPATH": "1"},
            pass_fds=(number,),
        )
        return self.process

    async def receive(self) -> SupervisorInbox:
        """The next message other than a sign of life."""
        async with asyncio.timeout(PATIENCE):
            while isinstance(message := await self.inbox.receive(), Alive):
                assert self.process is not None
                assert message.pid == self.process.pid
                assert message.stalled_s < TIMEOUTS.stalled_s["tokenizer"]
            return message

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self.inbox.close()
        self.supervisor.close()
        self.context.term()
        self.listener.close()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="arb") as name:
        world = World(Path(name))
        yield world
        await world.close()


async def test_it_serves_from_ready_to_drained(world: World) -> None:
    process = await world.start()
    assert await world.receive() == Ready("tokenizer", 0)
    tokenizer = load_tokenizer(world.model, world.directory)
    async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE) as http:
        assert (await http.get("/health")).status_code == 503
        text = tokenizer.encode("the cat sat")
        scheduler = FakeScheduler(
            world.directory,
            1,
            lambda request: [*unpacked(text), tokenizer.eos_tokens[0]],
            tokenizer.eos_tokens,
        )
        told = asyncio.create_task(world.receive())
        await asyncio.sleep(0.1)
        assert not told.done()
        world.supervisor.peer_up(1, ready(VOCAB_SIZE, 256))
        assert await told == KnowsReplica(0)
        assert (await http.get("/health")).status_code == 200
        answer = (await http.post("/v1/completions", json={"prompt": "Hello"})).json()
        assert answer["choices"][0]["text"] == "the cat sat"
        world.supervisor.drain()
        assert await world.receive() == Drained("tokenizer", 0)
        assert await process.wait() == 0
        await scheduler.close()


async def test_while_it_drains_new_connections_are_answered_and_at_the_end_streams_get_an_error(
    world: World,
) -> None:
    process = await world.start()
    await world.receive()
    body = {"prompt": "Hello", "stream": True}
    text = unpacked(load_tokenizer(world.model, world.directory).encode("the cat sat"))
    async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE) as http:
        scheduler = FakeScheduler(world.directory, 1, lambda request: text, (), pauses=True)
        world.supervisor.peer_up(1, ready(VOCAB_SIZE, 256))
        assert await world.receive() == KnowsReplica(0)
        async with http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            world.supervisor.drain()
            await until_status(world.url, 503)
            refused = httpx.post(f"{world.url}/v1/completions", json=body, timeout=PATIENCE)
            world.supervisor.give_up()
            events = [line.removeprefix("data: ") async for line in lines if line]
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "shutting_down"
        assert json.loads(events[-1])["error"]["code"] == "shutting_down"
        assert await world.receive() == Drained("tokenizer", 0)
        assert await process.wait() == 0
        await scheduler.close()


async def test_it_writes_the_vocabulary_before_it_is_ready(world: World) -> None:
    await world.start()
    await world.receive()
    vocabulary = load_vocabulary(world.directory)
    assert vocabulary.size == VOCAB_SIZE
    assert vocabulary.token_bytes(vocabulary.eos[0]) == b"<|im_end|>"


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json"])
async def test_the_supervisor_learns_of_an_unreadable_model(world: World, file: str) -> None:
    (world.model / file).write_text("nonsense")
    process = await world.start()
    failed = await world.receive()
    assert isinstance(failed, Failed)
    assert file in failed.message
    assert await process.wait() == 1


async def test_the_supervisor_learns_of_an_unreadable_chat_template(world: World) -> None:
    (world.model / "tokenizer_config.json").write_text('{"chat_template": "{% if %}"}')
    process = await world.start()
    failed = await world.receive()
    assert isinstance(failed, Failed)
    assert "chat template" in failed.message
    assert await process.wait() == 1


async def test_connections_wait_until_the_process_knows_whether_the_replica_is_up(world: World) -> None:
    process = await world.start_uninformed()
    text = load_tokenizer(world.model, world.directory).encode("the cat sat")
    scheduler = FakeScheduler(world.directory, 1, lambda request: unpacked(text), ())
    async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 1}))
        health = asyncio.create_task(http.get("/health"))
        done, _ = await asyncio.wait([asking, health, asyncio.create_task(world.receive())], timeout=3)
        assert not done
        world.supervisor.peer_up(1, ready(VOCAB_SIZE, 256))
        assert (await asking).status_code == (await health).status_code == 200
    await scheduler.close()
    assert process.returncode is None


async def test_running_out_of_descriptors_is_reported_and_does_no_damage(world: World) -> None:
    process = await world.start()
    await world.receive()
    text = load_tokenizer(world.model, world.directory).encode("the cat sat")
    scheduler = FakeScheduler(world.directory, 1, lambda request: unpacked(text), ())
    world.supervisor.peer_up(1, ready(VOCAB_SIZE, 256))
    body = {"prompt": "Hello", "max_tokens": 1}
    async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE) as http:
        await until_healthy(http)
        most = len(open_descriptors(process.pid)) + 4
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
        others = [await asyncio.open_connection(*world.listener.getsockname()) for _ in range(8)]
        await until(lambda: open_descriptors(process.pid).issuperset(range(most)))
        exhausted = await http.get("/health")
        assert (exhausted.status_code, exhausted.json()["error"]["code"]) == (503, "out_of_descriptors")
        assert f"All {most} file descriptors" in exhausted.json()["error"]["message"]
        assert (await http.post("/v1/completions", json=body)).status_code == 200
        assert (await http.get("/version")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200
        for _, writer in others:
            writer.close()
        await until(lambda: not open_descriptors(process.pid).issuperset(range(most)))
    async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE) as http:
        await until_healthy(http)
        assert (await http.post("/v1/completions", json=body)).json()["system_fingerprint"].startswith("fp_")
    await scheduler.close()


async def test_it_may_open_as_many_files_as_the_hard_limit_allows(world: World) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors(os.getpid())) + 64, hard))
    try:
        process = await world.start()
        await world.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


def open_descriptors(pid: int) -> set[int]:
    return {int(number) for number in os.listdir(f"/proc/{pid}/fd")}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def until_status(url: str, status: int) -> None:
    """Asks `/health`, each time on a new connection, until it has this status."""
    async with asyncio.timeout(PATIENCE):
        while httpx.get(f"{url}/health", timeout=PATIENCE).status_code != status:
            await asyncio.sleep(0.01)


async def until_healthy(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await http.get("/health")).status_code != 200:
            await asyncio.sleep(0.01)
