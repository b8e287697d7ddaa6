"""GET /v1/models and /v1/models/{id} in Anthropic's form."""

from __future__ import annotations

import reprlib
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from ...core.service import Service
from ...core.validation import check_range, invalid_field
from ...http.apis import json_response
from ...http.http_service import HttpService
from .responses import ModelInfo, ModelPage

DEFAULT_LIMIT = 20
MAX_MODELS = 1000
MAX_DIGITS = 20  # decimal digits of `limit`; Python's int takes at most 4,300


async def list_models(http: HttpService, request: Request) -> Response:
    """A page of the models, as `limit`, `after_id` and `before_id` of the query say."""
    query, names = request.query_params, http.model_names
    limit = _limit(query.get("limit"))
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None:
        names = names[_place("after_id", after, names) + 1 :]
    if before is not None:
        names = names[: _place("before_id", before, names)]
    page = names[-limit:] if before is not None and after is None else names[:limit]
    answer = ModelPage(
        data=[_info(http.find_model(name).service, name) for name in page],
        has_more=len(page) < len(names),
        first_id=page[0] if page else None,
        last_id=page[-1] if page else None,
    )
    return json_response(answer)


async def show_model(http: HttpService, request: Request) -> Response:
    """Describes the model. Raises a 404 `RequestError` for a model that isn't served."""
    name = request.path_params["model"]
    service = http.find_model(name).service
    service.check_model(name)
    return json_response(_info(service, name))


def _info(service: Service, name: str) -> ModelInfo:
    model = service.engine.model
    most = None if model is None else model.max_model_len
    return ModelInfo(
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(service.started, UTC).isoformat().replace("+00:00", "Z"),
        max_input_tokens=most,
        max_tokens=most,
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        problem = f"is {reprlib.repr(text)}, but must be a number between 1 and {MAX_MODELS}"
        raise invalid_field("limit", problem)
    check_range("limit", int(text), 1, MAX_MODELS)
    return int(text)


def _place(param: str, id: str, names: list[str]) -> int:
    if id not in names:
        raise invalid_field(param, f"is {id!r}, which is no model of the list ({', '.join(names)})")
    return names.index(id)
