"""Reads request bodies within the size limit, decodes them, and names the field of every mistake."""

from __future__ import annotations

import codecs
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Raw
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from ...runtime.errors import RequestError
from ...runtime.type_mismatch import in_words
from ..core.type_errors import STEP_BYTES, json_mistake, type_error
from ..core.work.caller import LARGE_BODY, Caller, ClientGoneError
from ..core.work.thread_pool import FairThreadPool, Steps, run_now
from .body_kind import BodyKind, T
from .field_names import MAX_SHOWN, FieldNames
from .json_limits import check_field_sizes, check_shape
from .tenants import BODY_BYTES

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_MEMORY_BYTES = 512 * 1024 * 1024  # bytes of all bodies that are being received and decoded
FREE_BYTES = 64 * 1024  # first bytes of each body, which don't count, so small requests are never refused
_BROWSER_HEADERS = frozenset(("origin", "sec-fetch-site"))
_CURL_TYPE = "application/x-www-form-urlencoded"
"""The content type that `curl -d` sends for any body. A page's form can't send JSON as it: the form would
escape the braces."""
U = TypeVar("U")

Number: TypeAlias = int | float

_fields = msgspec.json.Decoder(dict[str, Raw])
_numbers = msgspec.json.Decoder(Number | list[Number | list[Number]])
_EMPTY = "is empty, but must be a JSON object"
_SURROGATE_BYTES = re.compile(rb"\xed[\xa0-\xbf]")


class BodyMemory:
    """Counts the bytes of bodies that are received or decoded. One client may have half of the limit."""

    def __init__(self, max_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._max = max_bytes
        self._max_of_one = max_bytes // 2
        self._taken = 0
        self._taken_by: Counter[str] = Counter()

    @contextlib.contextmanager
    def share(self, client: str) -> Iterator[Share]:
        """Counts the bytes of one body, and frees them at the end."""
        share = Share(self, client)
        try:
            yield share
        finally:
            self._taken -= share.taken
            self._taken_by[client] -= share.taken
            if not self._taken_by[client]:
                del self._taken_by[client]

    def take(self, size: int, client: str) -> None:
        """Counts `size` more bytes of a client. Raises a 503 `RequestError` if they exceed a limit."""
        if self._taken + size > self._max:
            raise _too_many("The server is receiving too many large requests at the moment.")
        if self._taken_by[client] + size > self._max_of_one:
            raise _too_many("The server is receiving too many large requests from this client at the moment.")
        self._taken += size
        self._taken_by[client] += size


class Share:
    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self._size = 0
        self.taken = 0

    def add(self, size: int) -> None:
        """Counts more bytes of the body. Raises `RequestError`."""
        self._size += size
        counted = max(0, self._size - FREE_BYTES) - self.taken
        if counted:
            self._memory.take(counted, self._client)
            self.taken += counted


def _too_many(problem: str) -> RequestError:
    return RequestError(f"{problem} Try again later.", status=503, code="too_many_large_requests")


class BodyReader:
    """Reads bodies, large ones on other threads."""

    def __init__(self, work: FairThreadPool) -> None:
        self.memory = BodyMemory()
        self._work = work
        self._names = FieldNames()

    async def raw(self, request: Request, caller: Caller) -> bytes:
        """The body without a byte-order mark. Raises `RequestError` (413, 503) or `ClientGoneError`."""
        with self.memory.share(caller.name) as share:
            return await _read_bytes(request, share)

    async def read(self, request: Request, caller: Caller, kind: BodyKind[T]) -> T:
        """The body as the kind's type. Raises `RequestError` (400, 413, 415, 503) or `ClientGoneError`."""
        _check_media_type(request.headers)
        with self.memory.share(caller.name) as share:
            body = await _read_bytes(request, share)
            request.scope[BODY_BYTES] = len(body)
            steps = self._read(body, kind)
            return run_now(steps) if len(body) <= LARGE_BODY else await self._work.run(caller, steps)

    def _read(self, body: bytes, kind: BodyKind[T]) -> Steps[T]:
        yield from _check_utf8(body)
        yield from check_shape(body)
        try:
            fields = _decode(_fields, body)
        except msgspec.ValidationError as error:
            raise _no_object(body, error) from None
        check_field_sizes(fields, kind.struct.__struct_fields__)
        yield
        self._names.check(fields, kind)
        yield
        try:
            return _decode(kind.decoder, body)
        except msgspec.ValidationError:
            rewritten = msgspec.json.encode(_rewrite_fields(fields))
        yield
        try:
            return kind.decoder.decode(rewritten)
        except msgspec.ValidationError as error:
            raise type_error(error, fields) from None


def _no_object(body: bytes, error: msgspec.ValidationError) -> RequestError:
    text = body.strip().decode()
    shown = text if len(text) <= MAX_SHOWN else in_words(str(error).rpartition("got `")[2].rstrip("`"))
    return RequestError(f"The request's body is {shown}, but must be a JSON object.", code="invalid_json")


def _check_media_type(headers: Headers) -> None:
    """Raises `RequestError` for a type other than JSON.

    A missing type and that of `curl -d` count as JSON, except from a browser, where a page of any site may
    send such a body. The browser tells by its headers that it sends a page's request.
    """
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise _wrong_media(
            f"The request's content-encoding is {coding[:MAX_SHOWN]!r}: send the body uncompressed, without "
            "that header."
        )
    is_page = not _BROWSER_HEADERS.isdisjoint(headers)
    sent = headers.get("content-type")
    if sent is None:
        if is_page:
            raise _wrong_media(
                "The request has no content type: send JSON as 'Content-Type: application/json'."
            )
        return
    media_type = sent.partition(";")[0].strip().lower()
    if media_type == _CURL_TYPE and not is_page:
        return
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise _wrong_media(
            f"The request's content type is {media_type[:MAX_SHOWN]!r}: send JSON as "
            "'Content-Type: application/json'."
        )


def _wrong_media(message: str) -> RequestError:
    return RequestError(message, status=415, code="unsupported_media_type")


def _decode(decoder: msgspec.json.Decoder[U], body: bytes) -> U:
    """Decodes a body. Raises `msgspec.ValidationError` for a wrong type, `RequestError` for invalid JSON."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        reason = f"is not valid JSON: {json_mistake(body, error)}" if body.strip() else _EMPTY
        raise RequestError(f"The request's body {reason}.", code="invalid_json") from None


def _check_utf8(body: bytes) -> Steps[None]:
    """Raises `RequestError` for a body that isn't UTF-8. Decoders check only the strings that they read."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    end = 0
    try:
        for start in range(0, len(body), STEP_BYTES):
            end = min(start + STEP_BYTES, len(body))
            decoder.decode(view[start:end])
            yield
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        place = end - len(error.object) + error.start
        why = ", half of a surrogate pair" if _SURROGATE_BYTES.match(body, place) else ""
        found = f"it has the byte 0x{body[place]:02x} at byte {place}{why}"
        raise RequestError(f"The request's body is not valid UTF-8: {found}.", code="invalid_json") from None


def _rewrite_fields(fields: dict[str, Raw]) -> dict[str, Raw]:
    """Turns whole floats into integers, also in lists, because some languages write 5 as 5.0 or 5e0."""
    return {name: _rewrite_numbers(value) for name, value in fields.items()}


def _rewrite_numbers(value: Raw) -> Raw:
    try:
        return Raw(msgspec.json.encode(_make_whole(_numbers.decode(value))))
    except (msgspec.ValidationError, OverflowError):  # not numbers, or an integer of more than 64 bits
        return value


def _make_whole(value: object) -> object:
    if isinstance(value, list):
        return [_make_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _read_bytes(request: Request, share: Share) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise _too_large()
            share.add(len(part))
            parts.append(part)
    except ClientDisconnect:
        raise ClientGoneError from None
    return b"".join(parts).removeprefix(codecs.BOM_UTF8)


def _too_large() -> RequestError:
    return RequestError(
        f"The request's body is larger than {MAX_BODY_BYTES} bytes.", status=413, code="body_too_large"
    )
