"""A server with a scripted scheduler for each file of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from http_world import HttpWorld, http_world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world
