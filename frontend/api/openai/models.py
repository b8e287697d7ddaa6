"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ....runtime.config import BUILTIN_MODEL
from ...core.service import Service
from ...http.apis import json_response
from ...http.http_service import HttpService
from .responses import ModelCard, ModelList


async def list_models(http: HttpService, request: Request) -> Response:
    cards = [_card(each.service, name) for each in http.models for name in each.service.model_names]
    return json_response(ModelList(cards))


async def show_model(http: HttpService, request: Request) -> Response:
    """Describes the model. Raises a 404 `RequestError` for a model that isn't served."""
    name = request.path_params["model"]
    service = http.find_model(name).service
    service.check_model(name)
    return json_response(_card(service, name))


def _card(service: Service, name: str) -> ModelCard:
    """The card of the model or an adapter, whose `parent` is the model, and whose `root` is its directory."""
    model, adapter, served = (
        service.engine.model,
        service.find_adapter(name),
        service.config.served_model_name,
    )
    template = service.template
    return ModelCard(
        id=name,
        created=service.started,
        root=served if adapter is None else adapter.path,
        parent=None if adapter is None else served,
        max_model_len=model.max_model_len if model else None,
        is_loaded=service.engine.is_up,
        device=service.config.device,
        sampling=msgspec.structs.asdict(model.sampling) if model else None,
        is_builtin=adapter is None and service.config.model == BUILTIN_MODEL,
        template_has_tools=template is not None and template.support(with_tools=True).tools,
    )
