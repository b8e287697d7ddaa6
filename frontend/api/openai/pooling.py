"""POST /v1/embeddings and /v1/classify: a vector of each input."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
from starlette.requests import Request

from ....runtime.messages import Pooling
from ...core.pooling import (
    MAX_INPUTS,
    Input,
    PooledInputs,
    PoolingDraft,
    Vectors,
    activate,
    check_pooling,
    name_inputs,
    shorten_vectors,
)
from ...core.prepare import new_id
from ...core.service import Service
from ...core.validation import check_count, check_declared, check_range, invalid_field
from ...core.work.thread_pool import Steps
from ...http.body_kind import Binding, BodyKind
from ...http.endpoint import Incoming, read_body
from ...http.http_service import HttpService
from ...http.pooling_endpoint import HttpPooling, prepare_inputs
from .completions import read_items
from .fields import POOLING_INERT
from .pooling_protocol import (
    Class,
    Classes,
    ClassifyRequest,
    EmbeddingRequest,
    Embeddings,
    PoolingFields,
    PoolingUsage,
)

_encode = msgspec.json.encode
STEP_NUMBERS = 8192
"""numbers that take about 1 ms to write"""
_EMBEDDINGS = BodyKind(
    EmbeddingRequest, POOLING_INERT, {EmbeddingRequest: Binding(("dimensions", "encoding_format"))}
)
_CLASSIFY = BodyKind(ClassifyRequest, POOLING_INERT)


async def prepare_embeddings(http: HttpService, http_request: Request) -> HttpPooling:
    incoming = await read_body(http, http_request, _EMBEDDINGS)
    service, request = http.service, incoming.body
    pooling = check_request(service, request)
    check_embeds(pooling)
    check_range("dimensions", request.dimensions, 1, pooling.size)
    id = new_id("embd")
    job = await prepare_inputs(incoming, id, _read_input(request, request.input))
    return HttpPooling(job, partial(_write_embeddings, service, pooling, request, id))


async def prepare_classify(http: HttpService, http_request: Request) -> HttpPooling:
    incoming = await read_body(http, http_request, _CLASSIFY)
    service, request = http.service, incoming.body
    pooling = check_request(service, request)
    check_classifies(pooling)
    id = new_id("classify")
    job = await prepare_inputs(incoming, id, _read_input(request, request.input))
    return HttpPooling(job, partial(_write_classes, service, pooling, request, id))


def check_request(service: Service, request: PoolingFields) -> Pooling:
    """Raises `RequestError` for a field out of its range, or a model that does not pool."""
    service.check_model(request.model)
    _, pooling = check_pooling(service)
    check_declared(request)
    return pooling


def check_embeds(pooling: Pooling) -> None:
    if pooling.labels:
        raise invalid_field(
            "model",
            "is a classifier and makes no embeddings: use /v1/classify, /v1/score or /v1/rerank",
            "unsupported_task",
        )


def check_classifies(pooling: Pooling) -> None:
    if not pooling.labels:
        raise invalid_field("model", "is no classifier: use /v1/embeddings", "unsupported_task")


def _read_input(request: PoolingFields, given: str | list[str | int | list[int]]) -> PoolingDraft:
    items = read_items(given, "input")
    is_list = isinstance(given, list) and not isinstance(given[0], int)
    return make_draft(request, items, name_inputs("input", len(items), is_list))


def make_draft(request: PoolingFields, inputs: Sequence[Input], names: Sequence[str]) -> PoolingDraft:
    check_count(names[-1].partition("[")[0], inputs, MAX_INPUTS, "inputs")
    return PoolingDraft(
        inputs=inputs,
        names=names,
        truncate=request.truncate_prompt_tokens,
        special=request.add_special_tokens is not False,
        priority=request.priority,
        salt=request.cache_salt,
        user=request.user,
    )


def count_usage(pooled: PooledInputs) -> PoolingUsage:
    return PoolingUsage(pooled.usage.prompt_tokens, pooled.usage.prompt_tokens)


def list_fields(service: Service, id: str, pooled: PooledInputs) -> dict[str, object]:
    """The fields of a `Listing`."""
    name = service.config.served_model_name
    return {"id": id, "created": int(time.time()), "model": name, "usage": count_usage(pooled)}


def _write_embeddings(
    service: Service, pooling: Pooling, request: EmbeddingRequest, id: str, pooled: PooledInputs
) -> Steps[bytes]:
    vectors = shorten_vectors(pooled.vectors, request.dimensions, pooling.is_normalized)
    head = _encode(Embeddings(data=[], **list_fields(service, id, pooled)))  # type: ignore[arg-type]
    before, after = head.split(b'"data":[]')
    values = write_rows(vectors, is_base64=request.encoding_format == "base64")
    rows = yield from values
    data = [
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, row) for index, row in enumerate(rows)
    ]
    return b'%b"data":[%b]%b' % (before, b",".join(data), after)


def write_rows(vectors: Vectors, *, is_base64: bool = False) -> Steps[list[bytes]]:
    """The JSON of each vector: a list of numbers, or the base64 of its float32 numbers."""
    step = max(1, STEP_NUMBERS // vectors.shape[1])
    written: list[bytes] = []
    for start in range(0, len(vectors), step):
        rows = np.ascontiguousarray(vectors[start : start + step], "<f4")
        if is_base64:
            written += [b'"%b"' % base64.b64encode(row) for row in rows]
        else:
            written += [_encode(row) for row in rows.tolist()]
        yield
    return written


def _write_classes(
    service: Service, pooling: Pooling, request: ClassifyRequest, id: str, pooled: PooledInputs
) -> Steps[bytes]:
    logits = pooled.vectors
    shares = logits if request.use_activation is False else activate(logits, pooling)
    best = logits.argmax(axis=1).tolist()
    data = [
        Class(index=index, label=pooling.labels[best[index]], probs=probs, num_classes=len(probs))
        for index, probs in enumerate(shares.tolist())
    ]
    yield
    return _encode(Classes(data=data, **list_fields(service, id, pooled)))  # type: ignore[arg-type]
