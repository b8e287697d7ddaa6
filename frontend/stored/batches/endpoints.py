"""Calls the endpoint of a line as an HTTP request of the batch's key would."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from starlette.types import Message, Scope

from ....runtime.api_keys import ApiKey
from ...http.apis import ANSWER_ID, Api, Apis, Applications
from ...http.endpoint import IN_BACKGROUND, refusal_of
from ...http.http_service import HttpService
from ...http.outcome import end_hold
from ...http.tenants import SENT_KEY


class LineReply(NamedTuple):
    """The answer to a line. `retry_after` is in seconds, 0 if the answer has none."""

    status: int
    request_id: str
    body: bytes
    retry_after: int


class Endpoints:
    """The endpoints that lines may name, by their paths."""

    def __init__(self, http: HttpService, apis: Sequence[Api], apps: Applications) -> None:
        self._apis = Apis(apis[0], apis[1:])
        self._failed = http.metrics.failed
        self._apps = apps

    async def call(self, path: str, body: bytes, key: ApiKey | None) -> LineReply:
        """Sends the body to the endpoint at `path`. Returns its answer, which may be a refusal."""
        scope: Scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
            "client": None,
            "server": None,
            SENT_KEY: key,
            ANSWER_ID: f"req_{secrets.token_hex(12)}",
            IN_BACKGROUND: True,
        }
        answer = _Answer(body)
        try:
            await self._apps[path](scope, answer.receive, answer.send)
        except Exception as error:
            refusal = refusal_of(error, "a line of a batch failed")
            self._failed.labels(refusal.status).inc()
            answer = _Answer(b"")
            await self._apis.error_response(scope, refusal)(scope, answer.receive, answer.send)
        finally:
            end_hold(scope)
        return answer.reply(scope[ANSWER_ID])


class _Answer:
    """The ASGI channels of one request: its body and the parts of its answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []

    async def receive(self) -> Message:
        """Returns the body once, then waits for ever, as if the client never disconnected."""
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message.get("headers", ()))
        else:
            self._parts.append(message.get("body", b""))

    def reply(self, usual_id: str) -> LineReply:
        request_id = self._headers.get(b"x-request-id", b"").decode() or usual_id
        after = self._headers.get(b"retry-after", b"0")
        return LineReply(
            self._status, request_id, b"".join(self._parts), int(after) if after.isdigit() else 0
        )
