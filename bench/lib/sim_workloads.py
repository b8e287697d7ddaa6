"""Workloads for `scheduler_sim`: tenants, prompts and times of requests."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = 512  # tokens in a block of the trace
FIRST_OUTPUT = 1 << 30  # ids of sampled tokens: no prompt has them by chance

FLOOD_PROMPT = 20_000  # tokens that no other request has
FLOOD_DOCUMENT = 10_000  # tokens, where the flood shares any
FLOOD_REQUESTS = 200
FLOOD_S = 60.0
CHAT_TENANTS = 8
CHATS_PER_TENANT = 4
CHAT_S = 240.0
CHAT_PAUSE_S = 6.0  # mean, between the turns of a chat
SYSTEM_PROMPT = 1_500  # tokens, one for each tenant
TURN = 250  # tokens that a user's turn adds
REPLY = 120


@dataclass(frozen=True)
class Arrival:
    """One request. `prompt` packs its token ids when it is sent; the reply repeats `output_token`."""

    at_ms: float
    tenant: str
    group: str
    prompt: Callable[[], bytes]
    max_tokens: int
    output_token: int


def trace(path: Path, tenants: int, limit: int | None) -> list[Arrival]:
    """The trace's requests; those of one conversation have one of `tenants` tenants."""
    arrivals = []
    with path.open() as lines:
        for number, line in enumerate(lines):
            fields = json.loads(line)
            blocks, length = fields["hash_ids"], fields["input_length"]
            arrivals.append(
                Arrival(
                    at_ms=fields["timestamp"],
                    tenant=f"tenant {blocks[0] % tenants}",
                    group="all",
                    prompt=lambda blocks=blocks, length=length: _of_blocks(blocks, length),  # type: ignore[misc]
                    max_tokens=max(1, fields["output_length"]),
                    output_token=FIRST_OUTPUT + number,
                )
            )
    return arrivals[:limit]


def _of_blocks(blocks: list[int], length: int) -> bytes:
    return b"".join(array("i", [block]).tobytes() * BLOCK for block in blocks)[: 4 * length]


def hostile(seed: int, shared: int) -> list[Arrival]:
    """A tenant floods the server with long prompts, which share their first tokens, while others chat."""
    source = random.Random(seed)
    document = _fresh(source, shared)
    arrivals = [_flood(source, document) for _ in range(FLOOD_REQUESTS)]
    for tenant in range(CHAT_TENANTS):
        system = _fresh(source, SYSTEM_PROMPT)
        for chat in range(CHATS_PER_TENANT):
            output_token = FIRST_OUTPUT + tenant * CHATS_PER_TENANT + chat
            arrivals += _chat(source, f"chat {tenant}", system, output_token)
    return sorted(arrivals, key=lambda arrival: arrival.at_ms)


def _flood(source: random.Random, document: bytes) -> Arrival:
    prompt = document + _fresh(source, FLOOD_PROMPT)
    return Arrival(source.uniform(0, FLOOD_S * 1e3), "flood", "flood", lambda: prompt, 20, FIRST_OUTPUT - 1)


def _chat(source: random.Random, tenant: str, history: bytes, output_token: int) -> Iterator[Arrival]:
    """Turns at human pace: the next prompt follows after the time to read the reply."""
    at_ms = source.uniform(0, CHAT_PAUSE_S * 1e3)
    while at_ms < CHAT_S * 1e3:
        history += _fresh(source, TURN)
        prompt = history
        yield Arrival(at_ms, tenant, "chats", lambda prompt=prompt: prompt, REPLY, output_token)  # type: ignore[misc]
        history += array("i", [output_token] * REPLY).tobytes()
        at_ms += source.expovariate(1 / (CHAT_PAUSE_S * 1e3))


def _fresh(source: random.Random, tokens: int) -> bytes:
    return array("i", source.choices(range(FIRST_OUTPUT - 1), k=tokens)).tobytes()
