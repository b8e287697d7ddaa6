"""Supervisor ↔ its children: readiness, signs of life, draining."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..api_keys import ApiKey
from .base import Message
from .steps import ModelReady

LoadState: TypeAlias = Literal["unloaded", "loading", "loaded"]


class PeerUp(Message):
    """A replica (scheduler and model) serves now, in the given epoch."""

    epoch: int
    ready: ModelReady
    replica: int = 0


class PeerDown(Message):
    """A replica or a tokenizer process (`client`) died. Its requests are lost."""

    role: Literal["replica", "tokenizer"]
    client: int = 0
    replica: int = 0


class PeerResponds(Message):
    """Whether a replica, which is up, gives signs of life. The supervisor ends a stuck one later."""

    responds: bool
    replica: int = 0


class ModelState(Message):
    """Whether a model that may be unloaded is loaded, and when it will be unloaded if no request comes."""

    state: LoadState
    expires_at: float | None = None
    """in seconds since 1970; None while requests need it, or if it stays loaded"""
    error: str = ""
    """why it could not be loaded"""


class UseModel(Message):
    """The tokenizer process has requests for a model: load it, and do not unload it."""

    client: int
    model: int


class LeaveModel(Message):
    """The tokenizer process has no requests for a model any more."""

    client: int
    model: int
    keep_alive: float | None
    """seconds until the model may be unloaded, None for ever"""


class NewKeys(Message):
    """Replaces the known API keys."""

    keys: tuple[ApiKey, ...]


class Drain(Message):
    """Take no new requests, finish the open ones, then answer `Drained` and exit."""


class GiveUp(Message):
    """The time to drain is over: end the open requests with an error."""


class Ready(Message):
    """The process can take work. The scheduler passes on the model's `ModelReady`."""

    role: Literal["tokenizer", "scheduler"]
    client: int = 0
    model: ModelReady | None = None


class KnowsReplica(Message):
    """The tokenizer process has heard of a replica that is up, so it answers requests."""

    client: int


class Alive(Message):
    """A sign of life, every second."""

    pid: int
    stalled_s: float  # seconds since the main loop's last progress


class Failed(Message):
    """The process cannot start, and exits after this."""

    role: Literal["tokenizer", "scheduler", "model"]
    message: str  # text that is shown to the user
    client: int = 0


class Drained(Message):
    role: Literal["tokenizer", "scheduler"]
    client: int = 0
