"""`arbora.Engine`: a model in this process tree, without HTTP."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from . import work
from .completion import CompletionPart
from .local_server import EngineRequest
from .options import EngineOptions, engine_config, errors_with_keywords
from .thread import EngineThread, Work

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


def _wait(function: Callable[P, Work[T]]) -> Callable[Concatenate[Engine, P], T]:
    """Makes a method that blocks until the function's work has its result."""

    def call(self: Engine, /, *args: P.args, **named: P.kwargs) -> T:
        return self._thread.run(function(*args, **named))

    return _describe(call, function, function.__name__)


def _await(function: Callable[P, Work[T]]) -> Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]]:
    """Makes a coroutine method that awaits the result of the function's work."""

    async def call(self: Engine, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._thread.run_async(function(*args, **named))

    return _describe(call, function, f"a{function.__name__}")


def _iterate(
    function: Callable[P, EngineRequest],
) -> Callable[Concatenate[Engine, P], Iterator[CompletionPart]]:
    """Makes a method that returns an iterator over the parts of the reply."""

    def call(self: Engine, /, *args: P.args, **named: P.kwargs) -> Iterator[CompletionPart]:
        return self._thread.stream(function(*args, **named))

    return _describe(call, function, function.__name__)


def _iterate_async(
    function: Callable[P, EngineRequest],
) -> Callable[Concatenate[Engine, P], AsyncIterator[CompletionPart]]:
    """Makes a method that returns an async iterator over the parts of the reply."""

    def call(self: Engine, /, *args: P.args, **named: P.kwargs) -> AsyncIterator[CompletionPart]:
        return self._thread.stream_async(function(*args, **named))

    return _describe(call, function, f"a{function.__name__}")


def _describe(method: F, function: Callable[..., object], name: str) -> F:
    """Copies the function's docstring and parameters to the method, for `help`."""
    functools.update_wrapper(method, function)
    method.__module__, method.__name__, method.__qualname__ = __name__, name, f"Engine.{name}"
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [self, *inspect.signature(function).parameters.values()]
    method.__dict__["__signature__"] = inspect.Signature(parameters)
    return method


class Engine:
    """A model that is ready when the constructor returns and ends with `close`.

    `model` is a directory, a GGUF file, a name such as qwen3:0.6b or Qwen/Qwen3-0.6B, or None for the
    built-in one. Use it as a context manager, from any thread, also while an asyncio loop runs. Every method
    has an async twin. All methods raise `RequestError` for a request that can't be served and `ServerError`
    when the model's processes can't go on; the constructor raises `ConfigError` for a model or options that
    can't be used.

    A prompt is text or token ids; a chat is a list of messages as in OpenAI's API. The fields of `Sampling`
    (for chats of `ChatOptions`) are keyword arguments, or one `Sampling` as the second argument, or both. A
    call for a list of prompts or conversations also takes a list, one `Sampling` for each. With `use_tqdm` it
    shows a progress bar.
    """

    def __init__(self, model: str | None = None, **options: Unpack[EngineOptions]) -> None:
        with errors_with_keywords():
            self._thread = EngineThread(engine_config(model, options))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the model's processes. Open requests raise `ServerError`. A second call has no effect."""
        self._thread.close()

    generate, agenerate = _wait(work.generate), _await(work.generate)
    chat, achat = _wait(work.chat), _await(work.chat)
    stream, astream = _iterate(work.stream), _iterate_async(work.stream)
    stream_chat, astream_chat = _iterate(work.stream_chat), _iterate_async(work.stream_chat)
    tokenize, atokenize = _wait(work.tokenize), _await(work.tokenize)
    score, ascore = _wait(work.score), _await(work.score)
    embed, aembed = _wait(work.embed), _await(work.embed)
    load_adapter, aload_adapter = _wait(work.load_adapter), _await(work.load_adapter)
    unload_adapter, aunload_adapter = _wait(work.unload_adapter), _await(work.unload_adapter)
    end_lease, aend_lease = _wait(work.end_lease), _await(work.end_lease)
