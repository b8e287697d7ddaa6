"""The messages between the ingress processes and the replicas of a model, beside those of their engines."""

from __future__ import annotations

from typing import TypeAlias

from ...runtime.messages import Message, ModelReady


class Join(Message):
    """An ingress process, each second: it sends requests as this client, and gets answers at `inbox`. The
    rest is what it knows of the replica's load, as in `Load`."""

    client: int
    inbox: str
    backlog_s: float = 0.0
    step_s: float = 0.0


class Leave(Message):
    """The ingress process takes the replica for dead, or ends: abort its requests."""

    client: int


class Release(Message):
    """A request of the ingress process has ended."""

    client: int
    request: str


class EngineState(Message):
    """The epoch of the replica's engine and the address of its scheduler. `ready` is None while the engine
    starts again. `is_new`: the replica knows no request that the ingress process sent before."""

    epoch: int
    scheduler: str
    ready: ModelReady | None
    is_new: bool = False


FromIngress: TypeAlias = Join | Leave | Release
