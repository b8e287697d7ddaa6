"""POST and GET of /v1/batches."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from ....runtime.errors import RequestError
from ...core.declared import one_of, within
from ...core.validation import check_count, check_range, check_word
from ...http.body_kind import BodyKind
from ...http.http_service import HttpService
from ...http.tenants import caller_of, owner_of
from .answers import json_response, limit_of, not_found
from .records import batch_object, page_of
from .storage import open_store
from .store import KEPT_SECONDS
from .upload import ANCHOR_EVENT, LEAST_SECONDS, check_anchor

MOST_BATCHES_LISTED, USUALLY_LISTED = 100, 20
MOST_OPEN = 100
"""batches of one key that have not ended"""
MOST_METADATA = 16
KEY_CHARACTERS, VALUE_CHARACTERS = 64, 512
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])")
Window = Annotated[str, Meta(extra_json_schema={"pattern": f"^{_WINDOW.pattern}$"})]
Metadata = Annotated[
    dict[str, Annotated[str, Meta(extra_json_schema={"maxLength": VALUE_CHARACTERS})]],
    Meta(extra_json_schema={"maxProperties": MOST_METADATA, "propertyNames": {"maxLength": KEY_CHARACTERS}}),
]
_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600}


class OutputExpiry(Struct, kw_only=True):
    anchor: Annotated[str, one_of((ANCHOR_EVENT,))]
    seconds: Annotated[int, within(LEAST_SECONDS, KEPT_SECONDS)]


class CreateBatch(Struct, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: Window = "24h"
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


_BODY = BodyKind(CreateBatch)


async def create_batch(http: HttpService, request: Request, endpoints: Collection[str]) -> Response:
    """`endpoints` are the paths that lines may have."""
    config = http.service.config
    body = await http.bodies.read(request, caller_of(request, config), _BODY)
    check_word("endpoint", body.endpoint, sorted(endpoints))
    seconds = _window_seconds(body.completion_window)
    _check_metadata(body.metadata)
    owner = owner_of(request.scope)
    async with open_store(config) as store:
        await store.sweep()
        if await store.file(body.input_file_id, owner) is None:
            raise RequestError(
                f"There is no file {body.input_file_id[:100]!r}: upload one as input_file_id.",
                status=404,
                param="input_file_id",
                code="file_not_found",
            )
        record = await store.create_batch(
            owner=owner,
            model=config.served_model_name,
            endpoint=body.endpoint,
            window=body.completion_window,
            seconds=seconds,
            input_file=body.input_file_id,
            output_seconds=_output_seconds(body.output_expires_after),
            metadata=None if body.metadata is None else msgspec.json.encode(body.metadata).decode(),
            most_open=MOST_OPEN,
        )
    if record is None:
        raise RequestError(
            f"{MOST_OPEN} batches have not ended yet: wait for one of them, or cancel it.",
            status=429,
            code="too_many_batches",
        )
    return json_response(batch_object(record))


async def list_batches(http: HttpService, request: Request) -> Response:
    limit = limit_of(request, USUALLY_LISTED, MOST_BATCHES_LISTED)
    async with open_store(http.service.config) as store:
        records = await store.batches(owner_of(request.scope), request.query_params.get("after"), limit + 1)
    return json_response(page_of([batch_object(each) for each in records[:limit]], len(records) > limit))


async def show_batch(http: HttpService, request: Request) -> Response:
    batch = request.path_params["batch"]
    async with open_store(http.service.config) as store:
        record = await store.batch(batch, owner_of(request.scope))
    if record is None:
        raise not_found("batch", batch)
    return json_response(batch_object(record))


async def cancel_batch(http: HttpService, request: Request) -> Response:
    """Asks the batch's runner to stop. The batch is `cancelled` once its files are written."""
    batch, owner = request.path_params["batch"], owner_of(request.scope)
    async with open_store(http.service.config) as store:
        record = await store.cancel(batch, owner)
        found = record or await store.batch(batch, owner)
    if found is None:
        raise not_found("batch", batch)
    if record is None:
        raise RequestError(
            f"The batch is {found.status}, so it can't be cancelled.", status=409, code="batch_not_open"
        )
    return json_response(batch_object(record))


def _window_seconds(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNIT_SECONDS[found[2]] if found else 0
    if not 60 <= seconds <= KEPT_SECONDS:
        raise RequestError(
            f"completion_window is {window[:100]!r}, but must be a number of minutes, hours or days up to 30 "
            "days, such as '30m', '24h' or '7d'.",
            param="completion_window",
            code="invalid_value",
        )
    return seconds


def _output_seconds(expiry: OutputExpiry | None) -> int:
    if expiry is None:
        return KEPT_SECONDS
    check_anchor("output_expires_after.anchor", expiry.anchor)
    check_range("output_expires_after.seconds", expiry.seconds, LEAST_SECONDS, KEPT_SECONDS)
    return expiry.seconds


def _check_metadata(metadata: dict[str, str] | None) -> None:
    check_count("metadata", metadata, MOST_METADATA, "keys")
    for name, value in (metadata or {}).items():
        if len(name) > KEY_CHARACTERS or len(value) > VALUE_CHARACTERS:
            raise RequestError(
                f"metadata has a key of {len(name)} characters with a value of {len(value)}, but they may "
                f"have at most {KEY_CHARACTERS} and {VALUE_CHARACTERS}.",
                param="metadata",
                code="invalid_value",
            )
