"""A replica of a model as Ray Serve runs it: one engine, to whose scheduler the ingress processes connect."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import zmq
import zmq.asyncio
from msgspec.structs import replace

from ...runtime.messages import ModelReady, PeerDown
from ...runtime.processes.sockets import ANY_EPOCH, Outbox, Replica, tokenizer_address
from ..core.replica.engine_client import EngineClient
from ..core.service import Service
from ..engine.local_server import LocalServer
from ..engine.thread import EngineThread
from .messages import EngineState, FromIngress, Join, Leave, Release
from .relay import FleetKeys, Relay
from .request_router import ADDRESS
from .settings import ModelSettings
from .ticket import Ticket

POLL_SECONDS = 0.1
"""seconds in which the ingress processes learn that the engine has begun to start again"""
SILENT_SECONDS = 10.0
"""seconds after the last message of an ingress process until its requests are aborted"""
EPOCH_BITS = 30


@dataclass
class _Ingress:
    """An ingress process: its inbox, the requests that Serve counts here, and what it last reported."""

    identity: bytes
    joined: Join
    relay: Relay
    heard_at: float
    held: dict[str, asyncio.Event] = field(default_factory=dict)


class ModelReplica:
    """Runs the engine. Ingress processes find it by `record_replica_metadata`, and join it with their inboxes
    over ZeroMQ, by which requests and tokens then travel. Serve knows of a request by the call of `hold`,
    which lasts as long as the request: so it counts the replica's requests, and drains it before it ends."""

    async def __init__(self, settings: ModelSettings, keys: FleetKeys) -> None:  # type: ignore[misc]
        """Awaited by Serve."""
        self._keys = keys
        self._clients: dict[int, _Ingress] = {}
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._address = keys.bind(self._socket)
        self._state = EngineState(ANY_EPOCH, "", None)
        self._to_scheduler: Relay | None = None
        self._decoder: msgspec.msgpack.Decoder[FromIngress] = msgspec.msgpack.Decoder(FromIngress)
        first_epoch = 1 + secrets.randbits(EPOCH_BITS)
        self._engine = await asyncio.to_thread(lambda: EngineThread(settings.build_config(), first_epoch))
        self._client = await self._engine.run_async(lambda server: server.call(_get_client))
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    def record_replica_metadata(self) -> Mapping[str, str]:
        return {ADDRESS: self._address}

    def record_autoscaling_stats(self) -> Mapping[str, float]:
        """The replica's load, for the autoscaling policy."""
        loads = [each.joined for each in self._clients.values()]
        return {
            "backlog_s": max((each.backlog_s for each in loads), default=0.0),
            "step_s": max((each.step_s for each in loads), default=0.0),
        }

    async def check_health(self) -> None:
        """Raises ServerError if the engine has ended. One that starts again is healthy."""
        await self._engine.run_async(_check_running)

    async def hold(self, ticket: Ticket) -> None:
        """Returns when a request has ended that an ingress process has sent to the scheduler."""
        if (ingress := self._clients.get(ticket.client)) is not None:
            ended = ingress.held.setdefault(ticket.request, asyncio.Event())
            try:
                await ended.wait()
            finally:
                ingress.held.pop(ticket.request, None)

    async def __del__(self) -> None:
        """Called by Serve once no request is open: saves the cache, and ends the engine."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._engine.close)
        for client in list(self._clients):
            self._forget(client)
        if self._to_scheduler is not None:
            self._to_scheduler.close()
        self._socket.close(linger=0)
        self._context.term()

    async def _receive(self) -> None:
        while True:
            identity, frame = await self._socket.recv_multipart()
            match self._decoder.decode(frame):
                case Join() as join:
                    is_new = self._join(identity, join)
                    await self._tell(identity, is_new)
                case Leave(client):
                    self._forget(client)
                case Release(client, request):
                    if (ingress := self._clients.get(client)) is not None:
                        ingress.held.setdefault(request, asyncio.Event()).set()

    async def _watch(self) -> None:
        """Tells the ingress processes when the engine starts again, and forgets silent ones."""
        while True:
            client = self._client
            ready = client.model if client.is_up else None
            if (client.epoch, ready) != (self._state.epoch, self._state.ready):
                self._change_state(client.epoch, ready)
                for ingress in self._clients.values():
                    await self._tell(ingress.identity)
            now = time.monotonic()
            for number in [
                number for number, each in self._clients.items() if now - each.heard_at > SILENT_SECONDS
            ]:
                self._forget(number)
            await asyncio.sleep(POLL_SECONDS)

    def _change_state(self, epoch: int, ready: ModelReady | None) -> None:
        address = self._state.scheduler
        if epoch != self._state.epoch:
            if self._to_scheduler is not None:
                self._to_scheduler.close()
            local = Replica(self._client.directory, epoch).scheduler
            self._to_scheduler, address = Relay.receive(self._keys, local)
        self._state = EngineState(epoch, address, ready)

    async def _tell(self, identity: bytes, is_new: bool = False) -> None:
        state = replace(self._state, is_new=is_new)
        await self._socket.send_multipart([identity, msgspec.msgpack.encode(state)])

    def _join(self, identity: bytes, join: Join) -> bool:
        """Takes an ingress process's report. Returns whether it was not known."""
        known = self._clients.get(join.client)
        if known is None:
            source = tokenizer_address(self._client.directory, join.client)
            relay = Relay.send(self._keys, source, join.inbox)
            self._clients[join.client] = _Ingress(identity, join, relay, time.monotonic())
        else:
            known.identity, known.joined, known.heard_at = identity, join, time.monotonic()
        return known is None

    def _forget(self, client: int) -> None:
        """Aborts the requests of an ingress process."""
        ingress = self._clients.pop(client, None)
        if ingress is None:
            return
        if self._state.ready is not None:
            address = Replica(self._client.directory, self._state.epoch).scheduler
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
            with contextlib.closing(Outbox(context, address, ANY_EPOCH)) as scheduler:
                scheduler.send(PeerDown("tokenizer", client))
        for ended in ingress.held.values():
            ended.set()
        ingress.relay.close()


async def _check_running(server: LocalServer) -> None:
    server.check_running()


async def _get_client(service: Service, ready: ModelReady) -> EngineClient:
    return service.engine
