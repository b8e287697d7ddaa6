"""POST /api/embed and the older /api/embeddings."""

from __future__ import annotations

import time
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...core.pooling import MAX_INPUTS, PooledInputs, PoolingDraft, Vectors, name_inputs, shorten_vectors
from ...core.prepare import new_id
from ...core.validation import check_count, check_declared, check_range
from ...core.work.thread_pool import Steps
from ...http.apis import json_response
from ...http.body_kind import Binding, BodyKind, InertFields
from ...http.endpoint import read_body
from ...http.http_service import HttpService
from ...http.pooling_endpoint import HttpPooling, check_embeds, prepare_inputs, write_rows
from .keep_alive import keep_alive_seconds, keep_model
from .models import checked_name
from .protocol import EmbeddingsRequest, EmbedRequest
from .responses import Embedded

_INERT = InertFields(without_effect=("options",))
_EMBED = BodyKind(EmbedRequest, _INERT, {EmbedRequest: Binding(("dimensions", "truncate"))})
_OLDER = BodyKind(EmbeddingsRequest, _INERT)


async def prepare_embed(http: HttpService, http_request: Request) -> HttpPooling | Response:
    """The embeddings of all texts, each of the length 1. Texts that are too long are cut."""
    arrived = time.monotonic_ns()
    incoming = await read_body(http, http_request, _EMBED)
    service, request = incoming.http.service, incoming.body
    seconds = keep_alive_seconds(request.keep_alive)
    keep_model(http_request, seconds, is_shared=service.config.has_several_keys)
    name = checked_name(service, request.model)
    check_declared(request)
    pooling = check_embeds(service)
    check_range("dimensions", request.dimensions, 1, pooling.size)
    texts = [request.input] if isinstance(request.input, str) else request.input
    if texts in ([], [""]):
        return json_response(_make_answer(name, [], arrived, 0))
    check_count("input", texts, MAX_INPUTS, "inputs")
    draft = PoolingDraft(
        inputs=texts,
        names=name_inputs("input", len(texts), not isinstance(request.input, str)),
        truncate=None if request.truncate is False else -1,
        truncate_param="truncate",
    )
    job = await prepare_inputs(incoming, new_id("ollama"), draft)
    return HttpPooling(job, partial(_write, name, arrived, request.dimensions))


async def prepare_embeddings(http: HttpService, http_request: Request) -> HttpPooling | Response:
    """The embedding of one text, of any length."""
    incoming = await read_body(http, http_request, _OLDER)
    service, request = incoming.http.service, incoming.body
    seconds = keep_alive_seconds(request.keep_alive)
    keep_model(http_request, seconds, is_shared=service.config.has_several_keys)
    checked_name(service, request.model)
    pooling = check_embeds(service)
    if not request.prompt:
        return json_response(b'{"embedding":[]}')
    draft = PoolingDraft(inputs=[request.prompt], names=["prompt"], truncate=-1, truncate_param="truncate")
    job = await prepare_inputs(incoming, new_id("ollama"), draft)
    return HttpPooling(job, partial(_write_one, pooling.is_normalized))


def _write(name: str, arrived: int, dimensions: int | None, pooled: PooledInputs) -> Steps[bytes]:
    rows = yield from write_rows(shorten_vectors(pooled.vectors, dimensions, True))
    return msgspec.json.encode(_make_answer(name, rows, arrived, pooled.usage.prompt_tokens))


def _make_answer(name: str, rows: list[bytes], arrived: int, prompt_tokens: int) -> Embedded:
    return Embedded(
        model=name,
        embeddings=msgspec.Raw(b"[%b]" % b",".join(rows)),
        total_duration=time.monotonic_ns() - arrived,
        load_duration=0,
        prompt_eval_count=prompt_tokens,
    )


def _write_one(is_normalized: bool, pooled: PooledInputs) -> Steps[bytes]:
    vectors: Vectors = shorten_vectors(pooled.vectors, None, is_normalized)
    (row,) = yield from write_rows(vectors)
    return b'{"embedding":%b}' % row
