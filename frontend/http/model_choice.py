"""Finds the model of a request, and waits until it is loaded."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.requests import Request

from ...runtime.errors import RequestError
from ..core.work.caller import Caller, ClientGoneError
from .http_service import HttpService
from .outcome import MODEL_HOLD


async def choose_model(
    http: HttpService, request: Request, name: str | None, caller: Caller, *, loads: bool = True
) -> HttpService:
    """The service of the model of this name. With `loads` the model is loaded, and stays so until the request
    ends. Raises `RequestError` for an unknown model or one that can't be loaded, and `ClientGoneError` once
    the client has disconnected."""
    chosen = http.find_model(name)
    use = chosen.service.engine.use
    if use is None or not loads:
        return chosen
    if request.scope.get(MODEL_HOLD) is None:
        request.scope[MODEL_HOLD] = use.hold()
    if not chosen.service.engine.is_up:
        await _load(chosen, caller)
    return chosen


async def _load(http: HttpService, caller: Caller) -> None:
    engine, most = http.service.engine, http.service.config.max_waiting
    if engine.loading >= most:
        raise RequestError(
            f"{most} requests wait already until the model is loaded; try again later.",
            status=429,
            code="rate_limit_exceeded",
        )
    loading = asyncio.ensure_future(engine.load())
    leaving = asyncio.ensure_future(caller.left())
    try:
        await asyncio.wait((loading, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            raise ClientGoneError
        loading.result()
    finally:
        for task in (loading, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
