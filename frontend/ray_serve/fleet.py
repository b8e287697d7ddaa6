"""A model's replicas as an ingress process sees them: joins them, and has Ray Serve choose among them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from ...runtime.errors import RequestError
from ...runtime.messages import PeerDown, PeerResponds, PeerUp
from ...runtime.processes.sockets import ANY_EPOCH, Outbox, Replica, tokenizer_address
from ..core.replica.engine_client import EngineClient
from ..core.replica.generation import Generation
from ..launch.serve import DRAIN_SECONDS
from .messages import EngineState, FromIngress, Join, Leave, Release
from .relay import FleetKeys, Relay
from .settings import ModelSettings
from .ticket import Ticket, listen_for_replicas

JOIN_SECONDS = 1.0
UNANSWERED_SECONDS = 3.0
"""seconds without an answer after which a replica gets no new requests, unless all are silent"""
CLIENT_BITS = 30


@dataclass
class _Link:
    """The connection to a replica. `epoch` is that of its engine while that is up, else `ANY_EPOCH`; `held`
    counts the tickets there."""

    id: str
    number: int
    socket: zmq.asyncio.Socket
    attending: asyncio.Task[None] | None = None
    epoch: int = ANY_EPOCH
    relay: Relay | None = None
    scheduler: str = ""
    held: int = 0
    leaving: asyncio.TimerHandle | None = None
    """ends the connection to a replica that Serve has retired; None: Serve routes to the replica"""
    answered_at: float = 0.0
    responds: bool = True

    def send(self, message: FromIngress) -> None:
        """Sends a message; it is lost if the connection is closed, or a dead replica has left too many
        unread."""
        with contextlib.suppress(zmq.ZMQError):
            sending = asyncio.ensure_future(self.socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK))
            sending.add_done_callback(asyncio.Future.exception)  # so that nobody logs it


class _PlacedRequest:
    """A generation on its way to a replica, as the `Chooser` of its ticket. Serve may call it in a thread of
    its own."""

    def __init__(self, fleet: Fleet, generation: Generation) -> None:
        self.generation = generation
        self.link: _Link | None = None
        self.has_ended = False
        self._fleet = fleet

    async def choose(self, replicas: Collection[str]) -> str | None:
        choosing = self._fleet.choose(self.generation, replicas)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(choosing, self._fleet.loop))

    def route(self, replica: str) -> None:
        self._fleet.loop.call_soon_threadsafe(self._fleet.route, self, replica)


class Fleet:
    """Replaces the supervisor for the engine client: tells it which replicas are up, each by a number, and is
    its `Placement`.

    A request gets a ticket, by which Serve chooses the replica and counts the request there. Requests and
    tokens travel over ZeroMQ. A replica that Serve retires keeps its connection until its tickets have ended,
    or for `DRAIN_SECONDS`: then requests that are still open go on at another replica.
    """

    def __init__(
        self, handle: DeploymentHandle[Any], settings: ModelSettings, keys: FleetKeys, directory: Path
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.number = 1 + secrets.randbits(CLIENT_BITS)
        # Ingress processes do not know each other, so the client has no others to share with.
        self.client = EngineClient(
            directory, self.number, clients=0, replicas=settings.max_numbers, placement=self
        )
        self._keys = keys
        self._directory = directory
        self._context = zmq.asyncio.Context()
        own = tokenizer_address(directory, self.number)
        self._relay, self._inbox = Relay.receive(keys, own)
        self._to_client = Outbox(zmq.Context(self._context), own, ANY_EPOCH)
        self._links: dict[str, _Link] = {}
        self._placed: dict[Generation, _PlacedRequest] = {}
        self._tasks: set[asyncio.Task[None]] = {asyncio.create_task(self.client.run())}
        self._decoder = msgspec.msgpack.Decoder(EngineState)
        listen_for_replicas(settings.name, self._update_soon)
        self._handle = handle.options(method_name="hold")  # starts Serve's router

    async def close(self) -> None:
        for link in list(self._links.values()):
            self._close(link)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._to_client.close()
        self._relay.close()
        self.client.close()
        self._context.term()

    # For the engine client.

    @property
    def replicas(self) -> int:
        return len(self._links)

    def place(self, generation: Generation) -> None:
        placed = self._placed.get(generation)
        if placed is not None and placed.link is None:
            return
        if placed is not None:
            self._release(placed)
        self._placed[generation] = _PlacedRequest(self, generation)
        task = asyncio.create_task(self._hold(self._placed[generation]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, generation: Generation) -> None:
        placed = self._placed.pop(generation, None)
        if placed is not None:
            self._release(placed)

    # For tickets.

    async def choose(self, generation: Generation, replicas: Collection[str]) -> str | None:
        """The id of the best replica for a generation; None if none of them is up."""
        ids = {self._links[id].number: id for id in replicas if id in self._links}
        chosen = self.client.choose(generation, ids)
        return None if chosen is None else ids[chosen]

    def route(self, placed: _PlacedRequest, replica: str) -> None:
        """Sends a generation to the replica that has its ticket."""
        link = placed.link = self._links.get(replica)
        if link is not None:
            link.held += 1
        if placed.has_ended:
            self._release(placed)
        elif link is None:  # Serve has retired the replica meanwhile, and this ended its connection
            self.end(placed.generation)
            self.place(placed.generation)
        elif not self.client.send_to(placed.generation, link.number):
            self.place(placed.generation)

    async def _hold(self, placed: _PlacedRequest) -> None:
        """Keeps a ticket at a replica until the generation ends or leaves the replica."""
        ticket = Ticket(self.number, placed.generation.requests[0].request, placed)
        try:
            await self._handle.remote(ticket)
        except (RayError, RayServeException) as error:
            await asyncio.sleep(0)  # `route` may have been called in Serve's thread
            if placed.has_ended:
                pass
            elif placed.link is None:
                placed.generation.fail(_explain(error))
            else:
                self._lose(placed.link)
        finally:
            if (link := placed.link) is not None:
                link.held -= 1
                self._close_if_unused(link)

    def _release(self, placed: _PlacedRequest) -> None:
        """Ends a ticket, now or once it is at a replica."""
        placed.has_ended = True
        if placed.link is not None:
            placed.link.send(Release(self.number, placed.generation.requests[0].request))

    def _update_soon(self, addresses: Mapping[str, str]) -> None:
        self.loop.call_soon_threadsafe(self._update, addresses)

    def _update(self, addresses: Mapping[str, str]) -> None:
        """Connects to the replicas to which Serve now routes, and closes unused connections to others.

        addresses: the address of each replica, by its id."""
        for id, address in addresses.items():
            if id not in self._links:
                self._open(id, address)
        for link in list(self._links.values()):
            if link.id not in addresses:
                link.leaving = link.leaving or self.loop.call_later(DRAIN_SECONDS, self._close, link)
            elif link.leaving is not None:
                link.leaving.cancel()
                link.leaving = None
            self._close_if_unused(link)

    def _open(self, id: str, address: str) -> None:
        used = {each.number for each in self._links.values()}
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        self._keys.connect(socket, address)
        link = _Link(id, next(number for number in count() if number not in used), socket)
        link.answered_at = time.monotonic()
        self._links[id] = link
        link.attending = asyncio.create_task(self._attend(link))

    async def _attend(self, link: _Link) -> None:
        """Joins the replica each second, and takes the state of its engine, until cancelled."""
        while True:
            load = self.client.measure_load(link.number)
            link.send(Join(self.number, self._inbox, load.backlog_s, load.step_s))
            until = time.monotonic() + JOIN_SECONDS
            while (left := until - time.monotonic()) > 0 and await link.socket.poll(1000 * left):
                self._take(link, self._decoder.decode(await link.socket.recv()))
                link.answered_at = time.monotonic()
            responds = time.monotonic() - link.answered_at < UNANSWERED_SECONDS
            if responds != link.responds:
                link.responds = responds
                self._to_client.send(PeerResponds(responds, link.number))

    def _take(self, link: _Link, state: EngineState) -> None:
        if state.ready is None:
            self._lose(link, is_alive=True)
        elif state.epoch != link.epoch or state.is_new:
            self._lose(link, is_alive=True)
            if link.scheduler != state.scheduler:
                if link.relay is not None:
                    link.relay.close()
                local = Replica(self._directory, state.epoch, link.number).scheduler
                link.relay = Relay.send(self._keys, local, state.scheduler)
            link.epoch, link.scheduler = state.epoch, state.scheduler
            self._to_client.send(PeerUp(state.epoch, state.ready, link.number))

    def _lose(self, link: _Link, *, is_alive: bool = False) -> None:
        """Has the requests of a replica sent to others. Unless it is known to be alive, it aborts them if it
        is."""
        if link.epoch != ANY_EPOCH:
            link.epoch = ANY_EPOCH
            if not is_alive:
                link.send(Leave(self.number))
            self._to_client.send(PeerDown("replica", replica=link.number))

    def _close_if_unused(self, link: _Link) -> None:
        if link.leaving is not None and not link.held and self._links.get(link.id) is link:
            self._close(link)

    def _close(self, link: _Link) -> None:
        del self._links[link.id]
        if link.leaving is not None:
            link.leaving.cancel()
        self._lose(link)
        if link.attending is not None:
            link.attending.cancel()
        link.socket.close(linger=200)
        if link.relay is not None:
            link.relay.close()


def _explain(error: Exception) -> RequestError:
    return RequestError(
        f"No replica can take the request: {error}", status=503, code="model_not_ready", retry_after=1
    )
