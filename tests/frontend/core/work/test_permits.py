"""Permits: tenants take turns, and no permit is lost."""

from __future__ import annotations

import asyncio

import pytest
from arbora.frontend.core.work.permits import Permits


async def test_tenants_take_turns_and_one_tenant_s_holders_come_in_order() -> None:
    permits, order = Permits(2), list[str]()

    async def work(name: str, count: int) -> None:
        async with permits.hold(count, name[0]):
            order.append(name)
            await asyncio.sleep(0)

    waiting = [("a1", 5), ("a2", 1), ("a3", 2), ("b1", 2), ("b2", 1), ("c1", 1)]
    await asyncio.gather(*(work(name, count) for name, count in waiting))
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2"]


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_holder_that_is_cancelled_gives_its_permits_back(is_granted: bool) -> None:
    permits = Permits(2)

    async def work() -> None:
        async with permits.hold(2):
            pass

    async with permits.hold(1 if not is_granted else 2):
        leaving, staying = asyncio.ensure_future(work()), asyncio.ensure_future(work())
        await asyncio.sleep(0)
        if not is_granted:
            leaving.cancel()
    if is_granted:
        leaving.cancel()  # it has the permits, but did not run since
    await asyncio.wait_for(staying, 5)
    assert leaving.cancelled()
    async with asyncio.timeout(5), permits.hold(2):
        pass
