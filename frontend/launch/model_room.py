"""Makes room for a model that is to be loaded: unloads others, the least recently used ones first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from ...runtime.byte_sizes import in_units
from .errors import ServerError
from .served_model import ServedModel

ROOM_SECONDS = 120.0
"""how long a model waits until others are no longer in use"""
POLL_SECONDS = 0.1
logger = logging.getLogger(__name__)


class _Shortage(NamedTuple):
    """Why a model can't be loaded. `is_final`: unloading others would not help."""

    text: str
    is_final: bool = False


class ModelRoom:
    """Loads one model at a time, and only if the free memory suffices for what the model takes.

    `find_free` returns the free bytes, and may block; None: each model takes all memory, so only one is
    loaded at a time. `seconds`: how long a model waits for memory that requests use.
    """

    def __init__(self, find_free: Callable[[], int] | None = None, seconds: float = ROOM_SECONDS) -> None:
        self._find_free = find_free
        self._seconds = seconds
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def make(self, model: ServedModel, models: Sequence[ServedModel]) -> AsyncIterator[None]:
        """Unloads others until the model fits. Raises ServerError if they stay in use for too long, or if the
        model is too large for the machine. Another model is loaded only after the block."""
        async with self._turn:
            end = time.monotonic() + self._seconds
            while (shortage := await self._find_shortage(model, models)) is not None:
                idle = [each for each in _list_loaded(model, models) if each.is_idle]
                if shortage.is_final or (not idle and time.monotonic() > end):
                    raise ServerError(shortage.text)
                if idle:
                    await _unload(min(idle, key=lambda each: each.last_used), model)
                else:
                    await asyncio.sleep(POLL_SECONDS)
            yield

    async def _find_shortage(self, model: ServedModel, models: Sequence[ServedModel]) -> _Shortage | None:
        """What the model lacks; None if it can be loaded. The server's first load is always tried."""
        others = _list_loaded(model, models)
        names = " and ".join(each.name for each in others)
        if self._find_free is None:
            text = f"{model.name} needs the memory that {names} takes; requests use it. Try again later."
            return _Shortage(text) if others else None
        needed, free = model.hosted.memory, await asyncio.to_thread(self._find_free)
        if needed <= free or model.starts_server:
            return None
        lacks = f"{model.name} needs about {in_units(needed)}, but "
        most = free + sum(each.hosted.memory for each in others)
        if needed > most:
            return _Shortage(
                f"{lacks}only {in_units(most)} are free when all other models are unloaded. Use a smaller "
                "model or quantization, or lower --kv-memory.",
                is_final=True,
            )
        return _Shortage(f"{lacks}{in_units(free)} are free, and requests use {names}. Try again later.")


def _list_loaded(model: ServedModel, models: Sequence[ServedModel]) -> list[ServedModel]:
    return [each for each in models if each is not model and not each.is_unloaded.is_set()]


async def _unload(victim: ServedModel, model: ServedModel) -> None:
    logger.info("unloading %s, because %s needs its memory", victim.name, model.name)
    victim.evict()
    while not victim.is_unloaded.is_set() and not victim.users:
        await asyncio.sleep(POLL_SECONDS)
