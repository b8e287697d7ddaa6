"""The connections of an ingress process to replicas that come and go, without a Ray cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.core.replica.generation import Generation
from arbora.frontend.ray_serve import fleet as fleet_module
from arbora.frontend.ray_serve.fleet import Fleet
from arbora.frontend.ray_serve.relay import FleetKeys
from arbora.frontend.ray_serve.settings import ModelSettings
from arbora.frontend.ray_serve.ticket import Chooser, Ticket, note_replicas
from arbora.runtime.messages import Generate
from arbora.runtime.sampling_params import SamplingParams

MODEL = "m"
ADDRESS = "tcp://127.0.0.1:9"  # nothing answers there


class Handle:
    """Keeps the tickets that Serve would route, each held until its future is done."""

    def __init__(self) -> None:
        self.tickets: list[tuple[Ticket, asyncio.Future[None]]] = []

    def options(self, method_name: str) -> Handle:
        assert method_name == "hold"
        return self

    def remote(self, ticket: Ticket) -> asyncio.Future[None]:
        self.tickets.append((ticket, asyncio.get_running_loop().create_future()))
        return self.tickets[-1][1]

    async def take_chooser(self, number: int) -> Chooser:
        async with asyncio.timeout(5):
            while len(self.tickets) <= number:
                await asyncio.sleep(0.001)
        chooser = self.tickets[number][0].chooser
        assert chooser is not None
        return chooser


class Ingress(SimpleNamespace):
    """A fleet, the handle by which it routes, and the requests that it has sent to replicas."""

    handle: Handle
    fleet: Fleet
    sent: list[tuple[Generation, int]]


@pytest_asyncio.fixture
async def ingress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ingress]:
    handle: Any = Handle()
    settings = ModelSettings(None, MODEL, {}, max_numbers=4)
    fleet = Fleet(handle, settings, FleetKeys.generate(), tmp_path)
    sent: list[tuple[Generation, int]] = []

    def send_to(generation: Generation, number: int) -> bool:
        sent.append((generation, number))
        return True

    monkeypatch.setattr(fleet.client, "send_to", send_to)
    yield Ingress(handle=handle, fleet=fleet, sent=sent)
    for _, held in handle.tickets:
        if not held.done():
            held.set_result(None)
    await fleet.close()


async def update(*replicas: str) -> None:
    note_replicas(MODEL, dict.fromkeys(replicas, ADDRESS))
    await asyncio.sleep(0.01)


def make_generation() -> Generation:
    return Generation([Generate("id", 1, b"\0" * 4, SamplingParams(max_tokens=1))])


async def test_a_replica_that_is_retired_while_serve_routes_to_it_loses_no_request(ingress: Ingress) -> None:
    await update("a")
    generation = make_generation()
    ingress.fleet.place(generation)
    first = await ingress.handle.take_chooser(0)
    await update()  # nothing is held by the replica, so its connection is closed
    assert ingress.fleet.replicas == 0
    first.route("a")
    again = await ingress.handle.take_chooser(1)
    ingress.handle.tickets[0][1].set_result(None)
    await update("b")
    again.route("b")
    await asyncio.sleep(0.01)
    assert ingress.sent == [(generation, 0)]


async def retire_a_replica_with_a_request(ingress: Ingress) -> None:
    await update("a")
    ingress.fleet.place(make_generation())
    (await ingress.handle.take_chooser(0)).route("a")
    await update()
    assert ingress.fleet.replicas == 1, "it drains"


async def test_a_retired_replica_keeps_its_requests_for_a_time(
    ingress: Ingress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "DRAIN_SECONDS", 0.2)
    await retire_a_replica_with_a_request(ingress)
    await asyncio.sleep(0.3)
    assert ingress.fleet.replicas == 0


async def test_a_replica_that_serve_routes_to_again_is_kept(
    ingress: Ingress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "DRAIN_SECONDS", 0.1)
    await retire_a_replica_with_a_request(ingress)
    await update("a")
    await asyncio.sleep(0.2)
    assert ingress.fleet.replicas == 1
    assert ingress.fleet.client.count_replicas() == 1


async def test_a_client_shares_nothing_with_processes_that_are_not_there(ingress: Ingress) -> None:
    assert not ingress.fleet.client._others
