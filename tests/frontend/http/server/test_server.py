"""The HTTP server stops as soon as it is told to, although its main loop sleeps most of the time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
import uvloop
from arbora.frontend.http.server import server as module


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is sent")


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("way", ["stop", "signal"])
def test_the_server_stops_at_once(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DATE_S", 1000.0)
    raised_again: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: raised_again.append(number))

    async def check() -> None:
        server = module._UvicornServer(uvicorn.Config(no_app, lifespan="off", log_config=None))
        server.config.load()
        with server.capture_signals():
            running = asyncio.create_task(server.main_loop())
            await asyncio.sleep(0.01)
            assert not running.done()
            if way == "stop":
                server.stop()
            else:
                os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(30):
                await running

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(check())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert raised_again == ([signal.SIGTERM] if way == "signal" else [])
