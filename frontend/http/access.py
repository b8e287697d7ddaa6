"""Decides which requests reach the application, and adds the headers that all answers have.

An answer's id repeats the client's `x-request-id`, so that its log and the server's can be compared. Without
one an answer has the id of its reply, or a new id if it has no reply. Some APIs have a header of their own
for it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...runtime.api_keys import ApiKey
from ...runtime.errors import RequestError
from .allowances import openai_headers
from .apis import ALLOWANCES, ANSWER_ID, Api, Apis, Headers
from .hosts import AllowedOrigins, check_page, choose_hosts, preflight_headers
from .http_service import HttpService
from .outcome import TIMER
from .tenants import SENT_KEY, sent_keys

REQUEST_ID = b"x-request-id"
MAX_ID_CHARACTERS = 128
METRICS_PATH = "/metrics"
OPEN_PATHS = frozenset(("/health", "/health/live", "/health/ready", "/ping", "/version", METRICS_PATH))
_UNUSUAL = re.compile(rb"[^A-Za-z0-9._:/+=@-]")
_HOW_TO_SEND = "A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
_TWO_KEYS = RequestError(
    "The request has different API keys in its headers authorization and x-api-key: send only one.",
    status=401,
    code="contradictory_api_keys",
)


class AccessMiddleware:
    """Calls the application for requests to a known host that no foreign page has sent, and that have a known
    key or one of the `open_paths`. It answers the preflight requests of allowed origins.

    The scope's `SENT_KEY` has the known key for the application. Answers get their id, the CORS headers, and
    headers about the key's limits if the scope has `ALLOWANCES`. The answers to each key are counted.
    """

    def __init__(self, app: ASGIApp, apis: Apis, http: HttpService, open_paths: Collection[str]) -> None:
        config = http.service.config
        self._app = app
        self._apis = apis
        self._keys = http.keys
        self._needs_key = bool(config.api_keys)
        self._open_paths = open_paths
        self._hosts = choose_hosts(config)
        self._origins = AllowedOrigins(config.allowed_origins)
        self._answers = http.metrics.key_answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        api = self._apis.of(scope["path"], scope["headers"])
        ids = _choose_ids(scope, api.id_header)
        cors = self._origins.headers(sent.get("origin", ""))
        added = [(name.encode(), value.encode("latin-1")) for name, value in cors.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, message["status"])
                headers = [*_with_ids(message.get("headers", ()), ids), *_allowances(scope, api), *added]
                message = {**message, "headers": headers}
            await send(message)

        await self._choose_app(scope, sent)(scope, receive, send_with_headers)

    def _choose_app(self, scope: Scope, sent: Mapping[str, str]) -> ASGIApp:
        """The application, or the answer to a preflight request or to one that may not reach it."""
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in sent
        if is_preflight and self._origins.has(sent.get("origin", "")):
            return Response(status_code=204, headers=preflight_headers(sent))
        error = self._check(scope, sent)
        return self._app if error is None else self._apis.error_response(scope, error)

    def _check(self, scope: Scope, sent: Mapping[str, str]) -> RequestError | None:
        """The error of a request that may not reach the application. Puts the key into the scope."""
        if self._hosts is not None:
            error = check_page(sent, self._hosts, self._origins)
            if error is not None:
                return error
        if not self._needs_key:
            return None
        keys = sent_keys(scope)
        key = self._keys.find(*keys) if len(keys) == 1 else None
        if key is None and scope["path"] not in self._open_paths:
            return _TWO_KEYS if len(keys) > 1 else _refuse_key(sent, keys)
        scope[SENT_KEY] = key
        return None

    def _count(self, scope: Scope, status: int) -> None:
        key: ApiKey | None = scope.get(SENT_KEY)
        if key is not None and TIMER in scope:
            self._answers.labels(key.name, status).inc()


def _refuse_key(sent: Mapping[str, str], keys: Collection[str]) -> RequestError:
    """The error of a request without a known key; `keys` has the unknown one, if one was sent."""
    if keys:
        problem = "The API key in this request is unknown."
    elif sent.get("authorization") and " " not in sent["authorization"].strip():
        problem = "The header authorization must have 'Bearer ' before the API key."
    else:
        problem = "This request has no API key."
    return RequestError(f"{problem} {_HOW_TO_SEND}", status=401, code="invalid_api_key")


def render_refusal(
    apis: Apis, origins: AllowedOrigins, path: str, headers: Headers, error: RequestError
) -> tuple[int, Headers, bytes]:
    """The status, the headers and the body of a refusal, for a request that the application does not see."""
    scope: Scope = {"path": path, "headers": headers}
    ids = _choose_ids(scope, apis.of(path, headers).id_header)
    origin = dict(headers).get(b"origin", b"").decode("latin-1")
    response = apis.error_response(scope, error, {**origins.headers(origin)})
    return response.status_code, _with_ids(response.raw_headers, ids), bytes(response.body)


def _allowances(scope: Scope, api: Api) -> Headers:
    """The headers that say how much the request's key may still use."""
    allowances = scope.get(ALLOWANCES)
    return () if allowances is None else (api.allowance_headers or openai_headers)(allowances)


def _choose_ids(scope: Scope, own: bytes) -> dict[bytes, bytes]:
    """The answer's ids, by header. If the API has an `own` header, puts the id into the scope too."""
    sent = clean_id(dict(scope["headers"]).get(REQUEST_ID, b""))
    ids = {REQUEST_ID: sent} if sent else {}
    if own:
        ids[own] = sent or new_id()
        scope[ANSWER_ID] = ids[own].decode()
    return ids


def _with_ids(headers: Headers, ids: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer, in which `ids` replace its ids. An answer without an id gets one."""
    kept = [header for header in headers if header[0] not in ids]
    if REQUEST_ID not in ids and REQUEST_ID not in dict(kept):
        kept.append((REQUEST_ID, next(iter(ids.values()), None) or new_id()))
    return [*kept, *ids.items()]


def new_id() -> bytes:
    return b"req_" + secrets.token_hex(12).encode()


def clean_id(sent: bytes) -> bytes:
    """The id without characters that a terminal, a log or a page would interpret."""
    return _UNUSUAL.sub(b"", sent[: 4 * MAX_ID_CHARACTERS])[:MAX_ID_CHARACTERS]
