"""A tokenizer process's use of a model that the supervisor loads when it is needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from copy import copy

from ....runtime.errors import RequestError
from ....runtime.messages import LeaveModel, LoadState, Message, ModelState, UseModel

RETRY_SECONDS = 10.0
"""seconds after a failed load in which requests get its error, before another one is tried"""


class ModelUse:
    """Tells the supervisor, by `send`, when requests of this process begin and cease to need the model, and
    knows whether it is loaded. `keep_alive`: the seconds after the last request until it is unloaded, if that
    request asks for no others; None for ever."""

    def __init__(
        self, client: int, model: int, keep_alive: float | None, send: Callable[[Message], None]
    ) -> None:
        self.state: LoadState = "loading" if model == 0 else "unloaded"
        self.changed = asyncio.Event()
        """set at each change of the state"""
        self._client = client
        self._model = model
        self._default = keep_alive
        self._send = send
        self._holds = 0
        self._expires_at: float | None = None
        self._error: RequestError | None = None
        self._failed_at = 0.0

    @property
    def expires_at(self) -> float | None:
        """When the model will be unloaded if no request comes, in seconds since 1970; None: never."""
        if self._holds and self._default is not None:
            return time.time() + self._default
        return self._expires_at

    def hold(self) -> ModelHold:
        """Keeps the model loaded, and loads it if it is not."""
        self._holds += 1
        if self._holds == 1 or self.state == "unloaded":
            if self.state == "unloaded" and not self._has_just_failed:
                self.state, self._error = "loading", None
            if self._error is None:
                self._send(UseModel(self._client, self._model))
        return ModelHold(self._default, self._release)

    @property
    def is_held(self) -> bool:
        """Whether requests of this process need the model."""
        return self._holds > 0

    def unload_if_idle(self) -> None:
        """Lets the model be unloaded at once, if no request of this process needs it."""
        if not self._holds:
            self._send(LeaveModel(self._client, self._model, 0.0))

    def check(self) -> None:
        """Raises the `RequestError` of a load that has just failed."""
        if self._error is not None:
            raise copy(self._error)  # each request has its own traceback

    def take(self, message: ModelState) -> RequestError | None:
        """Takes the state. Returns the error if the model could not be loaded."""
        failed_before = self._error is not None
        self._error = None
        self._expires_at = message.expires_at
        # Requests that wait keep it in use, so the supervisor loads it again unless that has failed.
        waits = message.state == "unloaded" and self._holds and not message.error
        self.state = "loading" if waits else message.state
        if message.error:
            self._error = RequestError(
                f"The model could not be loaded: {message.error}", status=503, code="model_not_loaded"
            )
            if not failed_before:  # otherwise the supervisor repeats the state
                self._failed_at = time.monotonic()
        self.changed.set()
        return self._error

    @property
    def _has_just_failed(self) -> bool:
        return self._error is not None and time.monotonic() - self._failed_at < RETRY_SECONDS

    def _release(self, keep_alive: float | None) -> None:
        self._holds -= 1
        if not self._holds:
            self._send(LeaveModel(self._client, self._model, keep_alive))


class ModelHold:
    """Keeps a model loaded until `end`. `keep_alive`: how many seconds longer, None for ever; the last hold
    that ends decides."""

    def __init__(self, keep_alive: float | None, release: Callable[[float | None], None]) -> None:
        self.keep_alive = keep_alive
        self._release: Callable[[float | None], None] | None = release

    def end(self) -> None:
        """Ends the hold. A second call has no effect."""
        if self._release is not None:
            self._release(self.keep_alive)
            self._release = None
