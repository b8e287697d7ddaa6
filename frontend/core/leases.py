"""Leases on cached prefixes, as requests ask for them (docs/leases.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...runtime.errors import RequestError
from ...runtime.messages import EndLease, LeaseTerms
from .fields import MAX_TTL_S, MAX_UNDER_KEY, CacheLease
from .replica.engine_client import EngineClient

MAX_BREAKPOINTS = 4
DECISION_S = 2.0  # seconds from a reply's end until the server knows whether it calls tools


class Breakpoint(NamedTuple):
    """A cache breakpoint. `text` is the rendered conversation up to it."""

    text: str
    ttl_s: float


class Position(NamedTuple):
    """The first `tokens` of a prompt are leased for `ttl_s` seconds."""

    tokens: int
    ttl_s: float


def session_lease(lease: CacheLease, end: int | None = None) -> LeaseTerms:
    """The terms of a checked `cache_lease`: the first `end` tokens, or the prompt and the reply."""
    return LeaseTerms("session", lease.ttl_s, lease.key or "", end, lease.most or 1)


def conversation_lease(ttl_s: float, key: str = "") -> LeaseTerms:
    """Leases a prompt and its reply, which the conversation's next prompt will begin with."""
    return LeaseTerms("conversation", ttl_s, key)


def keep_alive_lease(seconds: float, key: str) -> LeaseTerms:
    """Ollama's `keep_alive`, which may be infinite. Conversations may share the key."""
    return LeaseTerms("keep_alive", min(seconds, MAX_TTL_S), key, most=MAX_UNDER_KEY)


def breakpoint_leases(positions: Sequence[Position]) -> list[LeaseTerms]:
    return [LeaseTerms("breakpoint", each.ttl_s, end=each.tokens) for each in positions]


def tool_pause_lease() -> LeaseTerms:
    """A short lease for a request with tools. `AwaitTools` prolongs it if the reply ends in calls."""
    return LeaseTerms("tool_pause", DECISION_S)


def end_lease(engine: EngineClient, namespace: str | None, tenant: str, key: str) -> None:
    """Ends the tenant's leases under `key`, if there are any."""
    if namespace is not None:
        engine.tell(EndLease(namespace, tenant, key))


def end_kept_alive(engine: EngineClient, namespace: str, tenant: str) -> None:
    """Ends all leases that the tenant has taken by `keep_alive`."""
    engine.tell(EndLease(namespace, tenant, None, "keep_alive"))


def check_breakpoints(param: str, number: int) -> None:
    if number > MAX_BREAKPOINTS:
        raise RequestError(
            f"The request has {number} blocks with {param}, but may have at most {MAX_BREAKPOINTS}: remove "
            "the first ones, because the last ones cover them.",
            param=param,
            code="invalid_value",
        )
