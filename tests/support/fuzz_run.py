"""Sends generated requests to a server on several connections, and notes every answer that is wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from arbora.frontend.api.openai.fields import INERT
from arbora.frontend.api.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    PinRequest,
    TokenizeRequest,
)
from fuzz_bodies import Case
from fuzz_checks import fault_of
from raw_http import Answer, KeptConnection, request_bytes

ANSWER_WITHIN_S = 120.0
_KINDS = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, PinRequest)
KNOWN_FIELDS = frozenset(INERT.fixed).union(*(kind.__struct_fields__ for kind in _KINDS), ("cache_salt",))
_SLOWEST_KEPT = 10


@dataclass
class Outcome:
    """`busy` counts the messages of answers that ask to come back, with status 429 or 503. `slowest` are
    the longest waits in seconds with their requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    busy: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: list[tuple[float, str]] = field(default_factory=list)

    def take(self, case: Case, answer: Answer, seconds: float) -> None:
        self.statuses[answer.status] += 1
        self.kinds[case.kind] += 1
        if answer.status in (429, 503):
            self.busy[answer.body[:200].decode(errors="replace")] += 1
        fault = fault_of(case, answer, KNOWN_FIELDS)
        if fault is not None:
            self.faults.append(f"{fault}\n  {case}\n  {answer.status} {answer.body[:300]!r}")
        if len(self.slowest) < _SLOWEST_KEPT or seconds > self.slowest[-1][0]:
            self.slowest = sorted([*self.slowest, (seconds, str(case))], reverse=True)[:_SLOWEST_KEPT]


async def send_all(
    url: str, cases: Iterable[Case], connections: int, headers: tuple[tuple[str, str], ...] = ()
) -> Outcome:
    outcome = Outcome()
    remaining = iter(cases)
    await asyncio.gather(*(_send(url, remaining, outcome, headers) for _ in range(connections)))
    return outcome


async def _send(
    url: str, cases: Iterator[Case], outcome: Outcome, headers: tuple[tuple[str, str], ...]
) -> None:
    address = urlsplit(url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    connection = KeptConnection(host, port)
    for case in cases:
        request = request_bytes(
            case.method, case.path, [*headers, *case.headers], case.body, f"{host}:{port}"
        )
        started = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                answer = await connection.exchange(request, has_body=case.method != "HEAD")
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            outcome.faults.append(f"no answer ({error!r})\n  {case}")
            await connection.close()
            continue
        outcome.take(case, answer, time.monotonic() - started)
    await connection.close()
