"""What the server says about a request that has ended: sizes, times and outcome, never keys and texts.

`RequestRecords` keeps the last requests of this process in memory, for `GET /server/requests`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec
from msgspec import Struct
from starlette.types import Scope

from ...runtime.errors import RequestError
from .outcome import Outcome
from .tenants import owner_of

MAX_RECENT = 200  # requests that are kept
MAX_FAILED = 50  # failed requests that are kept, also if newer ones have not failed
MAX_PATH = 100  # characters of a path or a name
MAX_REASON = 200  # characters of an error's message
MAX_SEARCHED = 2048  # characters of a message that are searched for quoted values
_POLLED = ("/health", "/ping", "/version", "/metrics", "/cache", "/server", "/page", "/docs", "/openapi.json")
"""Paths that programs and the page ask for again and again. GET requests for them, for `/` and for what is
below them are logged only if they fail, and not kept."""
_LOOKED_UP = ("/cache/explain", "/tokenize", "/detokenize")
"""Paths that the page asks beside each request for the model. The same holds for all methods."""
_QUOTED = re.compile(
    r""" "(?:[^"\\]|\\.)*(?:"|$) | (?<!\w)'(?:[^'\\]|\\.)*(?:'|$) """, re.DOTALL | re.VERBOSE
)


class RequestRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that has ended. Unknown values are left out. Times are in seconds, `ended_at` since 1970."""

    ended_at: float
    id: str | None = None
    method: str
    path: str
    model: str | None = None
    key: str | None = None
    status: int | None = None
    code: str | None = None
    reason: str | None = None
    client: str | None = None
    total_s: float
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue_s: float | None = None
    first_token_s: float | None = None
    between_tokens_s: float | None = None
    tokens_per_s: float | None = None
    finish: list[str] | None = None


class KeptRequests(Struct):
    """The records that a process keeps, the oldest first."""

    recent: list[RequestRecord]
    failed: list[RequestRecord]


_Kept: TypeAlias = "deque[tuple[str, RequestRecord]]"  # the owners of requests, and their records
_decoder = msgspec.json.Decoder(KeptRequests)


class RequestRecords:
    """The last requests of this process that have ended, and the last that failed. `model` is the served
    model's name."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._recent: _Kept = deque(maxlen=MAX_RECENT)
        self._failed: _Kept = deque(maxlen=MAX_FAILED)

    def add(self, scope: Scope, outcome: Outcome) -> None:
        if not is_poll(outcome):
            self.keep(owner_of(scope), outcome)

    def keep(self, owner: str, outcome: Outcome) -> None:
        """Keeps the record of a request, for the API key with the hash `owner`."""
        record = make_record(outcome, self._model)
        self._recent.append((owner, record))
        if has_failed(outcome):
            self._failed.append((owner, record))

    def encode(self, owner: str | None) -> bytes:
        """JSON of the `KeptRequests` of an API key; None: of all requests."""
        recent, failed = (
            [record for whose, record in kept if owner is None or whose == owner]
            for kept in (self._recent, self._failed)
        )
        return msgspec.json.encode(KeptRequests(recent, failed))


def merge_records(encoded: Iterable[bytes]) -> KeptRequests:
    """The last requests of several processes, the newest first."""
    parts = [_decoder.decode(each) for each in encoded]
    recent, failed = (
        sorted((record for part in parts for record in getattr(part, name)), key=_ended_at, reverse=True)
        for name in ("recent", "failed")
    )
    return KeptRequests(recent[:MAX_RECENT], failed[:MAX_FAILED])


def _ended_at(record: RequestRecord) -> float:
    return record.ended_at


def is_poll(outcome: Outcome) -> bool:
    """Whether a request is one of the many that only look at the server, its cache or its tokens."""
    path = outcome.path
    return path in _LOOKED_UP or (
        outcome.method in ("GET", "HEAD")
        and (path == "/" or any(path == each or path.startswith(f"{each}/") for each in _POLLED))
    )


def has_failed(outcome: Outcome) -> bool:
    return outcome.status >= 400 or outcome.error is not None


def explain(error: RequestError) -> str:
    """The message of an error for the log, in one line. Without the values that it quotes, if they may be
    texts of the request."""
    text = error.message[:MAX_SEARCHED]
    if error.status == 400:
        text = _QUOTED.sub("…", text)
    short = text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in short)


def find_model(outcome: Outcome, served: str) -> str | None:
    """The name that the request used for the model, once the request was accepted; None before."""
    if outcome.timer is None or outcome.timer.sampling is None:
        return None
    return outcome.model or served


def make_record(outcome: Outcome, model: str) -> RequestRecord:
    """The record of a request. `model` is the served model's name."""
    timer = outcome.timer
    usage = None if timer is None else timer.usage
    return RequestRecord(
        ended_at=round(outcome.ended_at, 3),
        id=outcome.id or None,
        method=outcome.method,
        path=outcome.path[:MAX_PATH],
        model=(find_model(outcome, model) or "")[:MAX_PATH] or None,
        key=outcome.key,
        status=outcome.status or None,
        code=outcome.code,
        reason=None if outcome.error is None else explain(outcome.error),
        client="gone" if outcome.is_abandoned else None,
        total_s=round(outcome.seconds, 6),
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        output_tokens=None if usage is None else usage.completion_tokens,
        queue_s=None if timer is None else _round(timer.queued_s),
        first_token_s=None if timer is None else _round(timer.first_token_s),
        between_tokens_s=None if timer is None else _round(timer.between_tokens_s),
        tokens_per_s=None if timer is None else _round(timer.tokens_per_s),
        finish=None if timer is None else timer.ends or None,
    )


def list_fields(outcome: Outcome, model: str) -> dict[str, object]:
    """The members of a JSON line of the log: a record, with its time as text."""
    fields: dict[str, object] = msgspec.to_builtins(make_record(outcome, model))
    ended = datetime.fromtimestamp(fields.pop("ended_at"), UTC)  # type: ignore[arg-type]
    return {"time": ended.isoformat(timespec="milliseconds"), **fields}


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
