"""Reads request bodies within the size limit, decodes them, and names the field of every fault."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from typing import Generic, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Raw
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from ...runtime.errors import RequestError
from ..request.type_errors import in_words, type_error
from ..text.close_names import close_name, did_you_mean
from ..work.caller import LARGE_BODY, Caller, ClientGoneError
from ..work.fair_threads import FairThreads
from ..work.steps import Steps, run_now
from .body_limits import check_field_sizes, check_shape
from .body_memory import BodyMemory, Share
from .tenants import BODY_BYTES

MAX_BODY_BYTES = 32 * 1024 * 1024
UTF8_BYTES = 1024 * 1024  # of a body, checked in one step
MOST_SHOWN = 100  # characters of a name, which may be as long as the body
MOST_WARNINGS = 10  # of one request
MOST_WARNED = 100  # fields in all
_NOTHING = (b"null", b"false", b'""', b"[]", b"{}")  # values that ask for nothing
_BROWSER_HEADERS = frozenset(("origin", "sec-fetch-site"))
T = TypeVar("T", bound=msgspec.Struct)
U = TypeVar("U")
log = logging.getLogger(__name__)

Number: TypeAlias = int | float

_fields = msgspec.json.Decoder(dict[str, Raw])
_numbers = msgspec.json.Decoder(Number | list[Number | list[Number]])

FieldCheck: TypeAlias = Callable[[bytes], str | None]
"""Takes the JSON of a field that has no effect. Returns what to log once, or raises `RequestError`."""


@dataclass(frozen=True)
class BodyKind(Generic[T]):
    """The type of an endpoint's bodies. `inert` has a check for each known field without effect.

    A request may rely on the `binding` fields, so an unknown name that is close to one of them is an error.
    `elsewhere` has the paths that other names are fields of.
    """

    type: type[T]
    inert: Mapping[str, FieldCheck]
    binding: Collection[str] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.type)

    @cached_property
    def required(self) -> list[str]:
        return [each.name for each in msgspec.structs.fields(self.type) if each.required]


class BodyReader:
    """Reads bodies, large ones on other threads; remembers which unknown fields it has warned of."""

    def __init__(self, work: FairThreads) -> None:
        self.memory = BodyMemory()
        self._work = work
        self._warned: set[str] = set()

    async def read(self, request: Request, caller: Caller, kind: BodyKind[T]) -> T:
        """The body as the kind's type. Raises `RequestError` (400, 413, 415, 503) or `ClientGoneError`."""
        _check_media_type(request.headers)
        with self.memory.share(caller.name) as share:
            body = await _bytes_within_limit(request, share)
            request.scope[BODY_BYTES] = len(body)
            steps = self._read(body, kind)
            return run_now(steps) if len(body) <= LARGE_BODY else await self._work.run(caller, steps)

    def _read(self, body: bytes, kind: BodyKind[T]) -> Steps[T]:
        yield from _check_utf8(body)
        yield from check_shape(body)
        try:
            fields = _decoded(_fields, body)
        except msgspec.ValidationError as error:
            raise _no_object(body, error) from None
        check_field_sizes(fields, kind.type.__struct_fields__)
        yield
        self._check_names(fields, kind)
        yield
        try:
            return _decoded(kind.decoder, body)
        except msgspec.ValidationError:
            rewritten = msgspec.json.encode(_with_whole_numbers(fields))
        yield
        try:
            return kind.decoder.decode(rewritten)
        except msgspec.ValidationError as error:
            raise type_error(error, fields) from None

    def _check_names(self, fields: dict[str, Raw], kind: BodyKind[T]) -> None:
        known = kind.type.__struct_fields__
        unknown = fields.keys() - set(known)
        for name in unknown & kind.inert.keys():
            advice = kind.inert[name](bytes(fields[name]))
            if advice is not None and self._may_warn(name):
                log.warning("the request field %r has no effect. %s", name, advice)
        unknown -= kind.inert.keys()
        _check_misplaced(unknown, fields, kind)
        _check_binding(unknown, fields, kind.binding)
        self._warn("", unknown, known)
        self._check_inner_names("", fields, kind.type)

    def _check_inner_names(self, path: str, fields: dict[str, Raw], kind: type[msgspec.Struct]) -> None:
        for outer, inner_kind in _inner_kinds(kind).items():
            if outer not in fields:
                continue
            try:
                inner = _decoded(_fields, bytes(fields[outer]))
            except msgspec.ValidationError:
                continue
            self._warn(
                f"{path}{outer}.",
                inner.keys() - set(inner_kind.__struct_fields__),
                inner_kind.__struct_fields__,
            )
            self._check_inner_names(f"{path}{outer}.", inner, inner_kind)

    def _warn(self, path: str, unknown: Set[str], known: Sequence[str]) -> None:
        """Finding the name that was meant takes time, so a request gets only a few warnings."""
        for name in islice(unknown, MOST_WARNINGS):
            shown = path + name[:MOST_SHOWN]
            if self._may_warn(shown):
                near = close_name(name, known)
                meant = "" if near is None else f": did you mean {path}{near}?"
                log.warning("ignoring the unknown request field %r%s", shown, meant)

    def _may_warn(self, field: str) -> bool:
        """True once for each field, and for at most `MOST_WARNED` fields."""
        if field in self._warned or len(self._warned) >= MOST_WARNED:
            return False
        self._warned.add(field)
        return True


def _no_object(body: bytes, error: msgspec.ValidationError) -> RequestError:
    text = body.strip().decode()
    shown = text if len(text) <= MOST_SHOWN else in_words(str(error).rpartition("got `")[2].rstrip("`"))
    return RequestError(f"The request's body is {shown}, but must be a JSON object.", code="invalid_json")


def _check_misplaced(unknown: Set[str], fields: Mapping[str, Raw], kind: BodyKind[T]) -> None:
    """Raises `RequestError` for a request that has another endpoint's field and lacks one of its own."""
    missing = [name for name in kind.required if name not in fields]
    for name in sorted(unknown & kind.elsewhere.keys()) if missing else ():
        raise RequestError(
            f"The required field {missing[0]} is missing, and {name} is a field of {kind.elsewhere[name]}: "
            f"send the request there, or {missing[0]} here.",
            param=missing[0],
            code="missing_field",
        )


def _check_binding(unknown: Set[str], fields: Mapping[str, Raw], binding: Collection[str]) -> None:
    """Raises `RequestError` for a name that seems to be a misspelt constraint: ignoring it would give a reply
    that matches nothing."""
    for name in sorted(unknown)[:MOST_WARNED]:
        if binding and bytes(fields[name]) not in _NOTHING and close_name(name, binding):
            raise RequestError(
                f"{name} is no known field.{did_you_mean(name, binding)}",
                param=name,
                code="unknown_parameter",
            )


@cache
def _inner_kinds(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The fields that may be objects of a known type. A type that forbids other fields reports them
    itself."""
    return {
        name: inner
        for name, hint in get_type_hints(kind).items()
        for inner in get_args(hint)
        if isinstance(inner, type)
        and issubclass(inner, msgspec.Struct)
        and not inner.__struct_config__.forbid_unknown_fields
    }


def _check_media_type(headers: Headers) -> None:
    """A missing type counts as JSON, except from a browser: a page of any site may send a body without a
    type."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise _wrong_media(
            f"The request's content-encoding is {coding[:MOST_SHOWN]!r}: send the body uncompressed, without "
            "that header."
        )
    sent = headers.get("content-type")
    if sent is None:
        if not _BROWSER_HEADERS.isdisjoint(headers):
            raise _wrong_media(
                "The request has no content type: send JSON as 'Content-Type: application/json'."
            )
        return
    media_type = sent.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise _wrong_media(
            f"The request's content type is {media_type[:MOST_SHOWN]!r}: send JSON as "
            "'Content-Type: application/json'."
        )


def _wrong_media(message: str) -> RequestError:
    return RequestError(message, status=415, code="unsupported_media_type")


def _decoded(decoder: msgspec.json.Decoder[U], body: bytes) -> U:
    """Raises `msgspec.ValidationError` for JSON of another type, `RequestError` for a body that is not
    JSON."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        reason = f"is not valid JSON: {error}" if body.strip() else "is empty, but must be a JSON object"
        raise RequestError(f"The request's body {reason}.", code="invalid_json") from None


def _check_utf8(body: bytes) -> Steps[None]:
    """Checked once and first: decoders check only the strings that they read."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    try:
        for start in range(0, len(body), UTF8_BYTES):
            decoder.decode(view[start : start + UTF8_BYTES])
            yield
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        message = f"The request's body is not valid UTF-8: it has the byte 0x{error.object[error.start]:02x}."
        raise RequestError(message, code="invalid_json") from None


def _with_whole_numbers(fields: dict[str, Raw]) -> dict[str, Raw]:
    """Some languages write 5 as 5.0 or 5e0. Such numbers become integers, in lists of numbers too."""
    return {name: _in_whole_numbers(value) for name, value in fields.items()}


def _in_whole_numbers(value: Raw) -> Raw:
    try:
        return Raw(msgspec.json.encode(_whole(_numbers.decode(value))))
    except (msgspec.ValidationError, OverflowError):  # neither, or an integer of more than 64 bits
        return value


def _whole(value: object) -> object:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _bytes_within_limit(request: Request, share: Share) -> bytes:
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
    return b"".join(parts)


def _too_large() -> RequestError:
    return RequestError(
        f"The request's body is larger than {MAX_BODY_BYTES} bytes.", status=413, code="body_too_large"
    )
