"""A ticket stands for a request where Ray Serve routes. The request goes to the replica's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

ReplicaListener = Callable[[Mapping[str, str]], None]

_listeners: dict[str, ReplicaListener] = {}


def listen_for_replicas(model: str, listener: ReplicaListener) -> None:
    """From now on, the listener gets the addresses of a model's replicas by their ids when these change, in
    any thread."""
    _listeners[model] = listener


def note_replicas(model: str, addresses: Mapping[str, str]) -> None:
    """Tells the listener of a model, if this process has one, to which replicas Serve routes."""
    if (listener := _listeners.get(model)) is not None:
        listener(addresses)


class Chooser(Protocol):
    """Chooses the replica of a request, in the ingress process that has it."""

    async def choose(self, replicas: Collection[str]) -> str | None:
        """The id of the best of the replicas; None if no connection to one of them is up."""

    def route(self, replica: str) -> None:
        """Sends the request to the replica, which has its ticket."""


class Ticket:
    """A request of an ingress process, by the process's client number and the id of the request's first
    choice. Its `chooser` stays in the process."""

    def __init__(self, client: int, request: str, chooser: Chooser | None = None) -> None:
        self.client = client
        self.request = request
        self.chooser = chooser

    def __reduce__(self) -> tuple[type[Ticket], tuple[int, str]]:
        return Ticket, (self.client, self.request)
