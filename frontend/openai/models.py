"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..service import Service
from .responses import ModelCard, ModelList


async def list_models(service: Service, request: Request) -> Response:
    return Response(msgspec.json.encode(ModelList([_card(service)])), media_type="application/json")


async def show_model(service: Service, request: Request) -> Response:
    """Raises a 404 `RequestError` for a model that isn't served."""
    service.check_model(request.path_params["model"])
    return Response(msgspec.json.encode(_card(service)), media_type="application/json")


def _card(service: Service) -> ModelCard:
    name = service.config.served_model_name
    model = service.engine.model
    return ModelCard(
        id=name, created=service.started, root=name, max_model_len=model.max_model_len if model else None
    )
