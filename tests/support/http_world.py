"""A whole HTTP server with a scripted scheduler, in the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
from arbora.frontend.app.apis import APIS
from arbora.frontend.app.process import http_server
from arbora.frontend.core.replica.engine_client import EngineClient
from arbora.frontend.core.service import Service
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.http.apis import Apis
from arbora.frontend.http.http_service import HttpService
from arbora.frontend.http.server.connections import Connections
from arbora.frontend.http.server.limits import Limits
from arbora.runtime.api_keys import ApiKey, plain_key
from arbora.runtime.config import ServeConfig
from arbora.runtime.messages import Generate, Pooling
from certificates import client_context
from fake_scheduler import FakeScheduler, FakeSupervisor, Script, packed, ready, unpacked
from tiny_model import CHATML, VOCAB_SIZE, write_tiny_model

MODEL = "tiny"
HELLO: Any = [{"role": "user", "content": "Hello"}]


class HttpWorld:
    """`client` is OpenAI's own, `http` a plain one. `scheduler` is None while the replica is down."""

    def __init__(self, directory: Path, http_service: HttpService, url: str, context_length: int) -> None:
        service = http_service.service
        self.directory = directory
        self.http_service = http_service
        self.service = service
        self.engine = service.engine
        self.tokenizer = service.tokenizer
        self.supervisor = FakeSupervisor(directory)
        self.url = url
        trusted = client_context()
        self.http = httpx.AsyncClient(base_url=url, timeout=60, verify=trusted)
        self.client = openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=trusted),
        )
        self.epoch = 0
        self.pooling: Pooling | None = None
        self.context_length = context_length
        self.scheduler: FakeScheduler | None = None
        self.script: Script = self.says("Hello, how are you?")
        self.connections: Connections
        self.stop: Callable[[], None] = lambda: None

    def ids(self, text: str) -> list[int]:
        return unpacked(self.tokenizer.encode(text, add_special_tokens=False))

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(packed(ids), skip_special_tokens=False)

    async def until(self, condition: Callable[[], bool]) -> None:
        await eventually(condition)

    def says(self, *texts: str) -> Script:
        """Choice i says text i, the last one again if there are fewer, and ends."""
        scripts = [[*self.ids(text), self.tokenizer.eos_tokens[0]] for text in texts]
        return lambda request: scripts[min(choice_index(request), len(scripts) - 1)]

    @property
    def running(self) -> FakeScheduler:
        assert self.scheduler is not None
        return self.scheduler

    async def start_replica(self, paused: bool = False) -> FakeScheduler:
        self.epoch += 1
        self.scheduler = FakeScheduler(
            self.directory, self.epoch, lambda request: self.script(request), self.tokenizer.eos_tokens
        )
        if paused:
            self.scheduler.gate.clear()
        if self.pooling is not None:
            self.scheduler.vector_size = self.pooling.size
        self.supervisor.peer_up(self.epoch, ready(VOCAB_SIZE, self.context_length, self.pooling))
        await eventually(lambda: self.engine.epoch == self.epoch)
        return self.scheduler

    async def kill_replica(self) -> None:
        if self.scheduler is not None:
            await self.scheduler.close()
            self.scheduler = None
            self.supervisor.peer_down()
            await eventually(lambda: not self.engine.is_up)

    async def close(self) -> None:
        if self.scheduler is not None:
            await self.scheduler.close()
        self.supervisor.close()
        await self.client.close()
        await self.http.aclose()


class ClientWorld:
    """An API's own client of a server with a scripted scheduler: what the worlds of all APIs have."""

    def __init__(self, world: HttpWorld) -> None:
        self.http_world = world

    def says(self, *texts: str) -> None:
        self.http_world.script = self.http_world.says(*texts)

    def ids(self, text: str) -> list[int]:
        return self.http_world.ids(text)

    @property
    def running(self) -> FakeScheduler:
        return self.http_world.running


def choice_index(request: Generate) -> int:
    return int(request.request.rpartition("-")[2])


def last_generate(world: HttpWorld) -> Generate:
    return world.running.of_kind(Generate)[-1]


def last_prompt(world: HttpWorld) -> str:
    return world.text(unpacked(last_generate(world).prompt))


async def error_of(world: HttpWorld, path: str, body: object) -> Any:
    """Sends a request that the server must refuse. Returns the error."""
    response = await world.http.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


async def refused(world: HttpWorld, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    """The error of a request with these fields, which the server must refuse."""
    body = {"model": MODEL, "messages": HELLO, "prompt": "Hello", **fields}
    return await error_of(world, path, body)


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def http_world(
    template: str | None = CHATML,
    api_keys: Sequence[str | ApiKey] = (),
    isolate_keys: bool = False,
    replica: bool = True,
    context_length: int = 256,
    max_waiting: int = 1024,
    limits: Limits | None = None,
    send_buffer: int | None = None,
    progress: Callable[[], None] = lambda: None,
    apis: Apis = APIS,
    special: Sequence[str] = (),
    pooling: Pooling | None = None,
    **more: Any,
) -> AsyncIterator[HttpWorld]:
    """`special` are further special tokens of the model, `send_buffer` is the SO_SNDBUF of connections, in
    bytes; `more` is the rest of the configuration."""
    with tempfile.TemporaryDirectory(prefix="arb") as name:
        directory = Path(name)
        model = write_tiny_model(directory / "model", template, special)
        config = ServeConfig(
            model=model,
            served_model_name=MODEL,
            api_keys=tuple(plain_key(key) if isinstance(key, str) else key for key in api_keys),
            log_level="warning",
            isolate_keys=isolate_keys,
            max_waiting=max_waiting,
            **more,
        )
        engine = EngineClient(directory, 0)
        service = Service.load(config, engine, Tokenizer.load(model))
        listener = socket.create_server(("127.0.0.1", 0))
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        http_service = HttpService.build(service)
        server = http_server(http_service, limits, progress, apis)
        tasks = [asyncio.create_task(engine.run()), asyncio.create_task(server.serve(listener))]
        await server.started.wait()
        scheme = "http" if config.ssl_certfile is None else "https"
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        world = HttpWorld(directory, http_service, url, context_length)
        world.stop = server.stop
        world.pooling = pooling
        world.connections = server.connections
        try:
            if replica:
                await world.start_replica()
            yield world
        finally:
            await world.close()
            server.stop()
            await tasks[1]
            await http_service.close()
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            engine.close()
