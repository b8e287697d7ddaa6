"""POST /v1/score and /v1/rerank: how well texts match, by a cross-encoder or by the cosine of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
from starlette.requests import Request

from ....runtime.errors import RequestError
from ....runtime.messages import Pooling
from ...core.pooling import MAX_INPUTS, Input, PooledInputs, PoolingJob, activate, name_inputs, normalize
from ...core.prepare import new_id
from ...core.service import Service
from ...core.validation import check_count, invalid_field
from ...core.work.thread_pool import Steps
from ...http.body_kind import Binding, BodyKind
from ...http.endpoint import Incoming, read_body
from ...http.http_service import HttpService
from ...http.pooling_endpoint import HttpPooling, prepare_inputs
from .fields import POOLING_INERT
from .pooling import OTHER_NAMES, check_request, count_usage, list_fields, make_draft
from .pooling_protocol import Document, RankedDocument, Ranking, RerankRequest, Score, ScoreRequest, Scores

_IN_RANKINGS = {**OTHER_NAMES, "top_k": "top_n", "texts": "documents", "return_text": "return_documents"}
_SCORE = BodyKind(
    ScoreRequest, POOLING_INERT, {ScoreRequest: Binding(ScoreRequest.__struct_fields__, OTHER_NAMES)}
)
_RERANK = BodyKind(
    RerankRequest, POOLING_INERT, {RerankRequest: Binding(RerankRequest.__struct_fields__, _IN_RANKINGS)}
)
_PAIRS = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
_encode = msgspec.json.encode
T = TypeVar("T", ScoreRequest, RerankRequest)
Text = TypeVar("Text", str, str | Document)
_Scorer: TypeAlias = Callable[[PooledInputs], list[float]]


async def prepare_score(http: HttpService, http_request: Request) -> HttpPooling:
    incoming = await read_body(http, http_request, _SCORE)
    names = _find_names(incoming.body)
    first, second = (_list_texts(name, getattr(incoming.body, name)) for name in names)
    if len(first) not in (1, len(second)):
        raise invalid_field(
            names[1],
            f"has {len(second)} texts, but {names[0]} has {len(first)}: it must have one, or as many",
        )
    id = new_id("score")
    job, score = await _prepare(incoming, id, names, first, second)
    return HttpPooling(job, partial(_write_scores, incoming.http.service, id, score))


async def prepare_rerank(http: HttpService, http_request: Request) -> HttpPooling:
    incoming = await read_body(http, http_request, _RERANK)
    request = incoming.body
    documents = _list_texts("documents", request.documents)
    texts = [each if isinstance(each, str) else each.text for each in documents]
    id = new_id("rerank")
    job, score = await _prepare(incoming, id, ("query", "documents"), [request.query], texts)
    characters = 0 if request.return_documents is False else sum(map(len, texts))
    return HttpPooling(
        job, partial(_write_ranking, incoming.http.service, id, score, request, texts), characters
    )


def _find_names(request: ScoreRequest) -> tuple[str, str]:
    """The names of the two fields with texts."""
    given = {name for pair in _PAIRS for name in pair if getattr(request, name) is not None}
    pair = next((pair for pair in _PAIRS if given == set(pair)), None)
    if pair is None:
        found = ", ".join(sorted(given)) or "none of them"
        choices = ", ".join(" with ".join(pair) for pair in _PAIRS)
        raise RequestError(
            f"The request has {found}, but needs two texts or lists of texts: {choices}.",
            param="text_1",
            code="invalid_value" if given else "missing_field",
        )
    return pair


def _list_texts(name: str, given: str | list[Text]) -> list[str | Text]:
    """The texts of a field. Raises `RequestError` if it has none, or too many."""
    texts = [given] if isinstance(given, str) else [*given]
    check_count(name, texts, MAX_INPUTS, "inputs")
    if not texts:
        raise invalid_field(name, "must not be empty: it has no texts")
    return texts


async def _prepare(
    incoming: Incoming[T],
    id: str,
    names: tuple[str, str],
    first: Sequence[str],
    second: Sequence[str],
) -> tuple[PoolingJob, _Scorer]:
    """The job, and the function that makes a score of each of the `second` texts. `first` has one text for
    all of them, or one for each."""
    request = incoming.body
    pooling = check_request(incoming.http.service, request)
    if len(pooling.labels) > 1:
        raise invalid_field(
            "model",
            f"has {len(pooling.labels)} classes, but scores need a model with one: use /v1/classify",
            "unsupported_task",
        )
    named_second: list[str] = name_inputs(names[1], len(second), True)
    if pooling.labels:
        repeated = [*first] * (len(second) // len(first))
        pairs: list[Input] = list(zip(repeated, second, strict=True))
        job = await prepare_inputs(incoming, id, make_draft(request, pairs, named_second))
        return job, partial(_score_pairs, pooling, request.use_activation is not False)
    inputs: list[Input] = [*first, *second]
    named = [*name_inputs(names[0], len(first), len(first) > 1), *named_second]
    job = await prepare_inputs(incoming, id, make_draft(request, inputs, named))
    return job, partial(_compare, len(first))


def _score_pairs(pooling: Pooling, activates: bool, pooled: PooledInputs) -> list[float]:
    scores = activate(pooled.vectors, pooling) if activates else pooled.vectors
    found: list[float] = scores[:, 0].tolist()
    return found


def _compare(firsts: int, pooled: PooledInputs) -> list[float]:
    """The cosines of the embeddings after the first `firsts` with those."""
    vectors = normalize(pooled.vectors)
    found: list[float] = np.sum(vectors[:firsts] * vectors[firsts:], axis=1).tolist()
    return found


def _write_scores(service: Service, id: str, score: _Scorer, pooled: PooledInputs) -> Steps[bytes]:
    data = [Score(index=index, score=value) for index, value in enumerate(score(pooled))]
    yield
    return _encode(Scores(data=data, **list_fields(service, id, pooled)))  # type: ignore[arg-type]


def _write_ranking(
    service: Service,
    id: str,
    score: _Scorer,
    request: RerankRequest,
    texts: Sequence[str],
    pooled: PooledInputs,
) -> Steps[bytes]:
    scores = score(pooled)
    order = sorted(range(len(scores)), key=lambda at: -scores[at])
    yield
    results = [
        RankedDocument(
            index=at,
            relevance_score=scores[at],
            document=msgspec.UNSET if request.return_documents is False else Document(texts[at]),
        )
        for at in order[: request.top_n or None]
    ]
    name = service.config.served_model_name
    return _encode(Ranking(id=id, model=name, usage=count_usage(pooled), results=results))
