"""A replica whose client is in this process, on the running asyncio loop, without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from ..runtime.config import ServeConfig
from ..runtime.messages import ModelReady
from .completion import Completion, CompletionPart
from .engine_reply import EngineReply
from .launch.commands import Commands
from .launch.directory import PrivateDirectory
from .launch.errors import ServerError
from .launch.supervisor import Supervisor
from .model_tokenizer import load_tokenizer
from .replica.engine_client import EngineClient
from .request.attempts import run_attempts
from .request.prepare import PreparedRequest
from .request.service import Service

CLIENT = 0
UP_POLL_SECONDS = 0.01
T = TypeVar("T")
Ask = Callable[[Service, ModelReady], Awaitable[PreparedRequest]]


class LocalServer:
    """Owns the private directory, the children and the client. Made by `start`, ended by `close`."""

    def __init__(self, supervisor: Supervisor, service: Service, owned: contextlib.AsyncExitStack) -> None:
        self._service = service
        self._owned = owned
        self._ended = asyncio.create_task(supervisor.wait())
        self._permits = asyncio.Semaphore(service.config.max_waiting)
        self._requests: set[asyncio.Task[object]] = set()

    @classmethod
    async def start(cls, config: ServeConfig, commands: Commands) -> LocalServer:
        """Raises ConfigError or ServerError, and then no process or file is left."""
        async with contextlib.AsyncExitStack() as stack:
            directory = PrivateDirectory.open()
            stack.callback(directory.close)
            config.save(directory.path)
            supervisor = Supervisor(directory.path, commands)
            stack.push_async_callback(supervisor.close)
            stack.push_async_callback(supervisor.drain)
            starting = asyncio.create_task(supervisor.start())
            await asyncio.sleep(0)  # lets the children start before the tokenizer is read
            tokenizer = load_tokenizer(config.model, directory.path)
            client = EngineClient(directory.path, CLIENT)
            receiving = asyncio.create_task(client.run())
            stack.push_async_callback(_stop_client, client, receiving)
            service = Service.load(config, client, tokenizer)
            await starting
            return cls(supervisor, service, stack.pop_all())

    async def complete(self, ask: Ask) -> Completion:
        """Raises RequestError, or ServerError if the replica can't go on."""
        return await self._guarded(self._complete(ask))

    async def stream(self, ask: Ask, put: Callable[[CompletionPart], None]) -> None:
        """Like `complete`, but passes each part to `put` as it comes."""
        await self._guarded(self._complete(ask, put))

    async def close(self) -> None:
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        self._ended.cancel()
        await self._owned.aclose()

    async def _complete(self, ask: Ask, put: Callable[[CompletionPart], None] | None = None) -> Completion:
        async with self._permits:
            prepared = await ask(self._service, await self._model())
            generation = self._service.engine.start(prepared.requests)
            try:
                await generation.accepted()

                def begin() -> EngineReply:
                    return EngineReply(prepared.new_reply(generation))

                async for attempt, parts in run_attempts(generation, begin, self._service.work):
                    reply = attempt
                    if put is not None and parts:
                        generation.token_left = True
                        for part in parts:
                            put(part)
                return reply.closing()
            finally:
                self._service.engine.forget(generation)

    async def _model(self) -> ModelReady:
        """Waits while the replica starts, for the first time or again."""
        while not self._service.engine.is_up:
            await asyncio.sleep(UP_POLL_SECONDS)
        return self._service.engine.check_serving()

    async def _guarded(self, work: Coroutine[None, None, T]) -> T:
        """Run `work` while the replica lives."""
        task = asyncio.create_task(work)
        self._requests.add(task)
        try:
            await asyncio.wait([task, self._ended], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            self._ended.result()
            raise ServerError("the engine is closed")
        finally:
            task.cancel()
            self._requests.discard(task)


async def _stop_client(client: EngineClient, receiving: asyncio.Task[None]) -> None:
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    client.close()
