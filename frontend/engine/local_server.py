"""A replica whose client is in this process, on the running asyncio loop, without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from ...runtime.config import ServeConfig
from ...runtime.errors import RequestError
from ...runtime.messages import ModelReady
from ..core.attempts import run_attempts
from ..core.prepare import Job
from ..core.replica.engine_client import EngineClient
from ..core.replica.generation import Generation
from ..core.service import Service
from ..launch.child_process import Commands
from ..launch.directory import PrivateDirectory
from ..launch.errors import ServerError
from ..launch.supervisor import Supervisor
from ..model_files.model_tokenizer import load_tokenizer
from .completion import CompletionPart
from .reply import EngineReply

CLIENT = 0
UP_POLL_SECONDS = 0.01
T = TypeVar("T")
Prepare = Callable[[Service], Awaitable[Job]]


@dataclass(frozen=True)
class EngineRequest:
    """A request that `prepare` makes. Its `choices` choices wait in the scheduler together. `json_schema` is
    the request's option.
    """

    prepare: Prepare
    choices: int = 1
    json_schema: object = None


class LocalServer:
    """Owns the private directory, the children and the client. Made by `start`, ended by `close`."""

    def __init__(self, supervisor: Supervisor, service: Service, owned: contextlib.AsyncExitStack) -> None:
        self._service = service
        self._owned = owned
        self._ended = asyncio.create_task(supervisor.wait())
        self._requests: set[asyncio.Task[object]] = set()

    @classmethod
    async def start(cls, config: ServeConfig, commands: Commands, first_epoch: int = 1) -> LocalServer:
        """Starts the server. If it raises ConfigError or ServerError, no process or file is left."""
        async with contextlib.AsyncExitStack() as stack:
            directory = PrivateDirectory.with_config(config)
            stack.callback(directory.close)
            supervisor = Supervisor(directory.path, commands, first_epoch=first_epoch)
            stack.push_async_callback(supervisor.close)
            starting = asyncio.create_task(supervisor.start())
            stack.push_async_callback(_ended, starting)  # runs after `drain`, which ends the start
            stack.push_async_callback(supervisor.drain)
            await asyncio.sleep(0)  # lets the children start before the tokenizer is read
            tokenizer = load_tokenizer(config.model, directory.path, config.runner)
            client = EngineClient(directory.path, CLIENT)
            receiving = asyncio.create_task(client.run())
            stack.push_async_callback(_stop_client, client, receiving)
            service = Service.load(config, client, tokenizer)
            await starting
            return cls(supervisor, service, stack.pop_all())

    async def call(self, work: Callable[[Service, ModelReady], Awaitable[T]]) -> T:
        """The result of `work`, called with the service and the running model. Raises as `complete` does."""

        async def run() -> T:
            return await work(self._service, await self._model())

        return await self._guard(run())

    def check_running(self) -> None:
        """Raises ServerError if the server has ended. One whose replica starts again has not."""
        if self._ended.done() and not self._ended.cancelled():
            self._ended.result()

    async def complete(
        self, request: EngineRequest, put: Callable[[CompletionPart], None] | None = None
    ) -> EngineReply:
        """The complete reply. `put` gets each part as it comes. Raises RequestError, or ServerError if the
        replica can't go on."""
        return await self._guard(self._complete(request, put))

    async def close(self) -> None:
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        self._ended.cancel()
        await self._owned.aclose()

    async def _complete(
        self, request: EngineRequest, put: Callable[[CompletionPart], None] | None
    ) -> EngineReply:
        async with self._service.permits.hold(request.choices):
            job, generation = await self._begin(request, is_streamed=put is not None)
            try:
                await generation.accepted()
                attempts: list[EngineReply] = []

                def begin() -> EngineReply:
                    attempts.append(EngineReply(job.new_reply(generation), job.requests[0]))
                    return attempts[-1]

                async for _, parts in run_attempts(generation, begin, self._service.work):
                    if put is not None and parts:
                        generation.token_left = True
                        for part in parts:
                            put(part)
                return attempts[-1]
            finally:
                self._service.engine.forget(generation)

    async def _begin(self, request: EngineRequest, *, is_streamed: bool) -> tuple[Job, Generation]:
        """Prepares and sends a request. Tries again if the replica dies during a long preparation."""
        engine = self._service.engine
        while True:
            await self._model()
            try:
                job = await request.prepare(self._service)
                requests = [replace(each, is_streamed=is_streamed) for each in job.requests]
                return job, engine.start(requests)
            except RequestError as error:
                if error.status != 503 or engine.is_up:
                    raise

    async def _model(self) -> ModelReady:
        """The running model. Waits while the replica starts or restarts."""
        while not self._service.engine.is_up:
            await asyncio.sleep(UP_POLL_SECONDS)
        return self._service.engine.check_serving()

    async def _guard(self, work: Coroutine[None, None, T]) -> T:
        """Runs `work`. Raises ServerError if the server ends or the engine is closed before `work` ends."""
        task = asyncio.create_task(work)
        self._requests.add(task)
        try:
            await asyncio.wait([task, self._ended], return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            if self._ended.done() and not self._ended.cancelled():
                self._ended.result()
            raise ServerError("the engine is closed")
        finally:
            task.cancel()
            self._requests.discard(task)


async def _ended(starting: asyncio.Task[ModelReady]) -> None:
    await asyncio.gather(starting, return_exceptions=True)


async def _stop_client(client: EngineClient, receiving: asyncio.Task[None]) -> None:
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    client.close()
