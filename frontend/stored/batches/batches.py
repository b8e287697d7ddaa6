"""The endpoints of /v1/batches."""

from __future__ import annotations

import re
import secrets
import time
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from ....runtime.errors import RequestError
from ...core.declared import one_of, within
from ...core.validation import check_count, check_range, check_word, invalid_field
from ...http.body_kind import BodyKind
from ..records.paging import Page
from ..stored_request import MAX_METADATA, StoredRequest
from .batch_service import BatchService
from .file_store import KEPT_SECONDS
from .files import ANCHOR_EVENT, MIN_SECONDS, check_anchor
from .objects import BatchObject, RequestCounts, StoredBatch

PAGE_BATCHES = (20, 100)
"""Batches on a page of a list: the default and the maximum."""
MAX_OPEN = 100
"""Maximum batches of one key that have not ended."""
KEY_CHARACTERS, VALUE_CHARACTERS = 64, 512
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])")
Window = Annotated[str, Meta(extra_json_schema={"pattern": f"^{_WINDOW.pattern}$"})]
Metadata = Annotated[
    dict[str, Annotated[str, Meta(extra_json_schema={"maxLength": VALUE_CHARACTERS})]],
    Meta(extra_json_schema={"maxProperties": MAX_METADATA, "propertyNames": {"maxLength": KEY_CHARACTERS}}),
]
_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600}


class OutputExpiry(Struct, kw_only=True):
    anchor: Annotated[str, one_of((ANCHOR_EVENT,))]
    seconds: Annotated[int, within(MIN_SECONDS, KEPT_SECONDS)]


class CreateBatch(Struct, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: Window = "24h"
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


_BODY = BodyKind(CreateBatch)
_Request = StoredRequest[BatchService]


async def create_batch(request: _Request) -> BatchObject:
    service = request.service
    store = service.store()
    body = await request.read_body(_BODY)
    check_word("endpoint", body.endpoint, sorted(service.endpoints))
    seconds = _parse_window(body.completion_window)
    _check_metadata(body.metadata)
    now = int(time.time())
    batch = StoredBatch(
        id=f"batch_{secrets.token_hex(16)}",
        endpoint=body.endpoint,
        model=service.http.service.config.served_model_name,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        status="validating",
        created_at=now,
        expires_at=now + seconds,
        request_counts=RequestCounts(0, 0, 0),
        metadata=body.metadata,
        owner=request.owner,
        output_seconds=_check_output_seconds(body.output_expires_after),
    )
    return await store.create(batch, MAX_OPEN)


async def list_batches(request: _Request) -> Page[BatchObject]:
    rows = partial(request.service.store().list_page, request.owner)
    return await request.list_page(PAGE_BATCHES, BatchObject, rows)


async def show_batch(request: _Request) -> BatchObject:
    return await request.service.store().find(request.id, request.owner)


async def cancel_batch(request: _Request) -> BatchObject:
    """Asks the batch's runner to stop. The batch is `cancelled` once its files are written."""
    batch = await request.service.store().cancel(request.id, request.owner)
    if batch.status != "cancelling":
        raise RequestError(
            f"The batch is {batch.status}, so it can't be cancelled.", status=409, code="batch_not_open"
        )
    return batch


def _parse_window(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNIT_SECONDS[found[2]] if found else 0
    if not 60 <= seconds <= KEPT_SECONDS:
        raise invalid_field(
            "completion_window",
            f"is {window[:100]!r}, but must be a number of minutes, hours or days up to 30 "
            "days, such as '30m', '24h' or '7d'",
        )
    return seconds


def _check_output_seconds(expiry: OutputExpiry | None) -> int:
    if expiry is None:
        return KEPT_SECONDS
    check_anchor("output_expires_after.anchor", expiry.anchor)
    check_range("output_expires_after.seconds", expiry.seconds, MIN_SECONDS, KEPT_SECONDS)
    return expiry.seconds


def _check_metadata(metadata: dict[str, str] | None) -> None:
    check_count("metadata", metadata, MAX_METADATA, "keys")
    for name, value in (metadata or {}).items():
        if len(name) > KEY_CHARACTERS or len(value) > VALUE_CHARACTERS:
            raise invalid_field(
                "metadata",
                f"has a key of {len(name)} characters with a value of {len(value)}, but they may "
                f"have at most {KEY_CHARACTERS} and {VALUE_CHARACTERS}",
            )
