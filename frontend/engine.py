"""`arbora.Engine`: a model in this process tree, without HTTP."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import queue
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypedDict, TypeGuard, TypeVar, Unpack, cast, overload

from ..runtime.config import ServeConfig
from .completion import Completion, CompletionPart
from .engine_requests import Message, Prompt, Prompts, Sampling, ask_chat, ask_completion, check_names, merged
from .launch.commands import replica_commands
from .launch.errors import ServerError
from .local_server import Ask, LocalServer
from .options import OPTIONS, Setting, build_config
from .text.close_names import did_you_mean

T = TypeVar("T")
HTTP_ONLY = (
    "host",
    "port",
    "uds",
    "ssl_certfile",
    "ssl_keyfile",
    "api_key",
    "api_key_file",
    "allowed_host",
    "allowed_origin",
    "protect_metrics",
    "served_model_name",
    "isolate_keys",
    "log_requests",
    "pin_memory",
    "reasoning_field",
)


class EngineOptions(TypedDict, total=False):
    """The options of `arbora serve` that concern the model. Sizes are bytes, or text such as "4GiB"."""

    device: str
    dtype: str
    quantize: str
    kv_dtype: str
    max_model_len: int
    kv_memory: int | str
    host_cache: int | str
    disk_cache: str
    disk_cache_size: int | str
    remote_cache: str
    write_policy: str
    page_size: int
    max_running: int
    max_waiting: int
    step_ms: float
    enforce_eager: bool
    deterministic: bool
    no_prefix_cache: bool
    unenforced: str
    check_invariants: bool
    log_level: str


class Engine:
    """A model that is ready when the constructor returns and ends with `close`.

    `model` is a directory, a GGUF file, a hub id, or None for the built-in one. Use it as a context manager,
    from any thread, also while an asyncio loop runs. Every method has an async twin. All raise `RequestError`
    for a request that can't be served and `ServerError` when the model's processes can't go on; the
    constructor raises `ConfigError` for options that can't be used.

    A prompt is text or token ids; a chat is a list of messages as in OpenAI's API. The fields of `Sampling`
    are keyword arguments, or one `Sampling` as the second argument, or both.
    """

    def __init__(self, model: str | None = None, **options: Unpack[EngineOptions]) -> None:
        config = engine_config(model, options)
        self._loop = asyncio.new_event_loop()
        self._started: concurrent.futures.Future[LocalServer] = concurrent.futures.Future()
        self._closing = asyncio.Event()
        # A daemon, because the interpreter waits for other threads before it calls the functions of `atexit`.
        self._thread = threading.Thread(target=self._run, args=(config,), name="arbora", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self._server = self._started.result()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the model's processes. Open requests raise. A second call has no effect."""
        atexit.unregister(self.close)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    @overload
    def generate(
        self, prompt: Prompt, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Prompts, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> list[Completion]: ...
    def generate(
        self, prompt: Prompt | Prompts, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> Completion | list[Completion]:
        """The completion of a prompt, or those of a list of prompts in its order."""
        return self._result(self._generate(prompt, merged(sampling_params, sampling)))

    @overload
    async def agenerate(
        self, prompt: Prompt, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> Completion: ...
    @overload
    async def agenerate(
        self, prompt: Prompts, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> list[Completion]: ...
    async def agenerate(
        self, prompt: Prompt | Prompts, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> Completion | list[Completion]:
        return await asyncio.wrap_future(
            self._submit(self._generate(prompt, merged(sampling_params, sampling)))
        )

    def stream(
        self, prompt: Prompt, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> Iterator[CompletionPart]:
        """The completion of a prompt in parts, as they arrive."""
        return self._parts(_completion(prompt, merged(sampling_params, sampling)))

    def astream(
        self, prompt: Prompt, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncIterator[CompletionPart]:
        return self._async_parts(_completion(prompt, merged(sampling_params, sampling)))

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: Sampling | None = None,
        **sampling: Unpack[Sampling],
    ) -> Completion:
        """The reply to a conversation."""
        return self._result(self._server.complete(_chat(messages, merged(sampling_params, sampling))))

    async def achat(
        self,
        messages: Sequence[Message],
        sampling_params: Sampling | None = None,
        **sampling: Unpack[Sampling],
    ) -> Completion:
        return await asyncio.wrap_future(
            self._submit(self._server.complete(_chat(messages, merged(sampling_params, sampling))))
        )

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: Sampling | None = None,
        **sampling: Unpack[Sampling],
    ) -> Iterator[CompletionPart]:
        """The reply to a conversation in parts, as they arrive."""
        return self._parts(_chat(messages, merged(sampling_params, sampling)))

    def astream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: Sampling | None = None,
        **sampling: Unpack[Sampling],
    ) -> AsyncIterator[CompletionPart]:
        return self._async_parts(_chat(messages, merged(sampling_params, sampling)))

    async def _generate(self, prompt: Prompt | Prompts, sampling: Sampling) -> Completion | list[Completion]:
        if not _is_batch(prompt):
            return await self._server.complete(_completion(cast(Prompt, prompt), sampling))
        numbered = enumerate(cast(list[Prompt], prompt))
        asks = [_completion(each, sampling, f"prompt[{place}]") for place, each in numbered]
        running = [asyncio.ensure_future(self._server.complete(ask)) for ask in asks]
        try:
            return await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    def _parts(self, ask: Ask) -> Iterator[CompletionPart]:
        parts: queue.SimpleQueue[CompletionPart | None] = queue.SimpleQueue()
        future = self._submit(self._server.stream(ask, parts.put))
        future.add_done_callback(lambda _: parts.put(None))
        try:
            while (part := parts.get()) is not None:
                yield part
            future.result()
        finally:
            future.cancel()

    async def _async_parts(self, ask: Ask) -> AsyncIterator[CompletionPart]:
        loop = asyncio.get_running_loop()
        parts: asyncio.Queue[CompletionPart | None] = asyncio.Queue()

        def put(part: CompletionPart | None) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, part)

        future = self._submit(self._server.stream(ask, put))
        future.add_done_callback(lambda _: put(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            future.result()
        finally:
            future.cancel()

    def _result(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        finally:
            future.cancel()  # has an effect only after an interruption

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._closing.is_set() or self._loop.is_closed():
            work.close()
            raise ServerError("the engine is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, config: ServeConfig) -> None:
        """Runs the loop in the engine's thread. It starts all children, because they die with the thread that
        did."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(config))
        finally:
            self._loop.close()

    async def _serve(self, config: ServeConfig) -> None:
        try:
            server = await LocalServer.start(config, replica_commands())
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(server)
        try:
            await self._closing.wait()
        finally:
            await server.close()


def engine_config(model: str | None, options: EngineOptions) -> ServeConfig:
    """Raises ConfigError, or TypeError for an unknown option."""
    known = [option.name for option in OPTIONS if option.name not in HTTP_ONLY]
    for name in options:
        if name not in known:
            if name in HTTP_ONLY:
                raise TypeError(f"{name} is an option of `arbora serve` only, as an Engine has no HTTP")
            raise TypeError(
                f"unknown option {name!r}.{did_you_mean(name, known)} There are {', '.join(known)}."
            )
    settings = {"log_level": Setting("log_level", "warning")}
    settings |= {name: Setting(name, value) for name, value in options.items()}
    return build_config(model, settings)


def _is_batch(prompt: Prompt | Prompts) -> TypeGuard[Prompts]:
    return isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))


def _completion(prompt: Prompt, sampling: Sampling, name: str = "prompt") -> Ask:
    check_names(sampling)
    return lambda service, model: ask_completion(service, model, prompt, sampling, name)


def _chat(messages: Sequence[Message], sampling: Sampling) -> Ask:
    check_names(sampling)
    return lambda service, model: ask_chat(service, model, messages, sampling)
