"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..service import Service
from .responses import ModelCard, ModelList


async def list_models(service: Service, request: Request) -> Response:
    return Response(
        msgspec.json.encode(ModelList([_card(service, name) for name in service.config.model_names])),
        media_type="application/json",
    )


async def show_model(service: Service, request: Request) -> Response:
    """Raises a 404 `RequestError` for a model that isn't served."""
    name = request.path_params["model"]
    service.check_model(name)
    return Response(msgspec.json.encode(_card(service, name)), media_type="application/json")


def _card(service: Service, name: str) -> ModelCard:
    model = service.engine.model
    return ModelCard(
        id=name,
        created=service.started,
        root=service.config.served_model_name,
        max_model_len=model.max_model_len if model else None,
    )
