"""POST /v1/embeddings and /v1/classify: a vector of each input."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request

from ....runtime.messages import Pooling
from ...core.pooling import (
    MAX_INPUTS,
    Input,
    PooledInputs,
    PoolingDraft,
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
from ...http.endpoint import read_body
from ...http.http_service import HttpService
from ...http.pooling_endpoint import HttpPooling, check_embeds, prepare_inputs, write_rows
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
OTHER_NAMES = {"activation": "use_activation", "softmax": "use_activation"}
"""Other servers' names of fields."""
_EMBEDDINGS = BodyKind(
    EmbeddingRequest, POOLING_INERT, {EmbeddingRequest: Binding(EmbeddingRequest.__struct_fields__)}
)
_CLASSIFY = BodyKind(
    ClassifyRequest, POOLING_INERT, {ClassifyRequest: Binding(ClassifyRequest.__struct_fields__, OTHER_NAMES)}
)


async def prepare_embeddings(http: HttpService, http_request: Request) -> HttpPooling:
    incoming = await read_body(http, http_request, _EMBEDDINGS)
    service, request = incoming.http.service, incoming.body
    check_request(service, request)
    pooling = check_embeds(service)
    check_range("dimensions", request.dimensions, 1, pooling.size)
    id = new_id("embd")
    draft = await service.work.call(incoming.caller, _read_input, request, request.input)
    job = await prepare_inputs(incoming, id, draft)
    return HttpPooling(job, partial(_write_embeddings, service, pooling, request, id))


async def prepare_classify(http: HttpService, http_request: Request) -> HttpPooling:
    incoming = await read_body(http, http_request, _CLASSIFY)
    service, request = incoming.http.service, incoming.body
    pooling = check_request(service, request)
    check_classifies(pooling)
    id = new_id("classify")
    draft = await service.work.call(incoming.caller, _read_input, request, request.input)
    job = await prepare_inputs(incoming, id, draft)
    return HttpPooling(job, partial(_write_classes, service, pooling, request, id))


def check_request(service: Service, request: PoolingFields) -> Pooling:
    """Raises `RequestError` for a field out of its range, or a model that does not pool."""
    service.check_model(request.model)
    _, pooling = check_pooling(service)
    check_declared(request)
    return pooling


def check_classifies(pooling: Pooling) -> None:
    if not pooling.labels:
        raise invalid_field("model", "is no classifier: use /v1/embeddings", "unsupported_task")


def _read_input(request: PoolingFields, given: str | list[str | int | list[int]]) -> PoolingDraft:
    is_list = isinstance(given, list) and not all(isinstance(each, int) for each in given[:1])
    check_count("input", given if is_list else (), MAX_INPUTS, "inputs")
    items = read_items(given, "input")
    return make_draft(request, items, name_inputs("input", len(items), is_list))


def make_draft(request: PoolingFields, inputs: Sequence[Input], names: Sequence[str]) -> PoolingDraft:
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
    rows = yield from write_rows(vectors, is_base64=request.encoding_format == "base64")
    data = [
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, row) for index, row in enumerate(rows)
    ]
    return b'%b"data":[%b]%b' % (before, b",".join(data), after)


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
