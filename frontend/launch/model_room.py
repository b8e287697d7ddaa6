"""Makes room for a model that is to be loaded: unloads others, the least recently used ones first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from ...runtime.byte_sizes import in_units
from .errors import ServerError
from .served_model import ServedModel

ROOM_SECONDS = 120.0
"""how long a model waits until others are no longer in use"""
POLL_SECONDS = 0.1
logger = logging.getLogger(__name__)


class ModelRoom:
    """Loads one model at a time, and only if the free memory suffices for what the model takes.

    `find_free` returns the free bytes; None: each model takes all memory, so only one is loaded at a time.
    """

    def __init__(self, find_free: Callable[[], int] | None = None, seconds: float = ROOM_SECONDS) -> None:
        self._find_free = find_free
        self._seconds = seconds
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def make(self, model: ServedModel, models: Sequence[ServedModel]) -> AsyncIterator[None]:
        """Unloads others until the model fits. Raises ServerError if they stay in use for too long. Another
        model is loaded only after the block."""
        async with self._turn:
            end = time.monotonic() + self._seconds
            while (others := _list_loaded(model, models)) and not self._has_room(model):
                idle = [each for each in others if each.is_idle]
                if idle:
                    await _unload(min(idle, key=lambda each: each.last_used), model)
                elif time.monotonic() > end:
                    raise ServerError(self._tell_shortage(model, others))
                else:
                    await asyncio.sleep(POLL_SECONDS)
            yield

    def _has_room(self, model: ServedModel) -> bool:
        return self._find_free is not None and model.hosted.memory <= self._find_free()

    def _tell_shortage(self, model: ServedModel, others: Sequence[ServedModel]) -> str:
        names = " and ".join(each.name for each in others)
        if self._find_free is None:
            return f"{model.name} needs the memory that {names} takes; requests use it. Try again later."
        return (
            f"{model.name} needs about {in_units(model.hosted.memory)}, but {in_units(self._find_free())} "
            f"are free, and requests use {names}. Try again later."
        )


def _list_loaded(model: ServedModel, models: Sequence[ServedModel]) -> list[ServedModel]:
    return [each for each in models if each is not model and not each.is_unloaded.is_set()]


async def _unload(victim: ServedModel, model: ServedModel) -> None:
    logger.info("unloading %s, because %s needs its memory", victim.name, model.name)
    victim.evict()
    while not victim.is_unloaded.is_set() and not victim.users:
        await asyncio.sleep(POLL_SECONDS)
