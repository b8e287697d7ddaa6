"""GET /api/tags, /api/ps and /api/version, and POST /api/show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response

from ...core.service import VERSION, Service
from ...http.apis import json_response
from ...http.body_kind import BodyKind
from ...http.http_service import HttpService
from ...http.tenants import caller_of
from .answers import rfc3339
from .model_files import ModelFiles
from .protocol import ShowRequest
from .responses import ListedModel, ModelList, RunningList, RunningModel, ShownModel, Version

API_VERSION = "0.12.11"
"""The version of Ollama whose API these paths have. Clients compare it."""
FOR_EVER = timedelta(days=365 * 100)
"""The time until a model is unloaded that never is: clients expect a time."""
_LATEST = ":latest"
"""The tag of a name that has no tag."""

_SHOW = BodyKind(ShowRequest)


class Models:
    """The handlers that describe the models. `files` are those of the models in the server's order."""

    def __init__(self, files: Sequence[ModelFiles]) -> None:
        self._files = files

    def _list(self, http: HttpService) -> list[tuple[Service, ModelFiles]]:
        services = [each.service for each in http.models]
        return list(zip(services, self._files, strict=True))

    async def tags(self, http: HttpService, request: Request) -> Response:
        return json_response(
            ModelList(
                [
                    ListedModel(
                        name=add_tag(name),
                        model=add_tag(name),
                        modified_at=rfc3339(files.modified),
                        size=files.size,
                        digest=files.digest,
                        details=files.details,
                    )
                    for service, files in self._list(http)
                    for name in service.model_names
                ]
            )
        )

    async def running(self, http: HttpService, request: Request) -> Response:
        """Lists the loaded models. The list is empty before a model is loaded."""
        return json_response(
            RunningList(
                [
                    RunningModel(
                        name=add_tag(name),
                        model=add_tag(name),
                        size=files.size,
                        digest=files.digest,
                        details=files.details,
                        expires_at=rfc3339(_find_expiry(service)),
                        size_vram=files.size if service.config.device == "cuda" else 0,
                        context_length=service.engine.model.max_model_len,
                    )
                    for service, files in self._list(http)
                    if service.engine.model is not None and service.engine.is_loaded is not False
                    for name in service.model_names
                ]
            )
        )

    async def show(self, http: HttpService, http_request: Request) -> Response:
        """Describes the model. Raises a 404 `RequestError` for a model that isn't served."""
        request = await http.bodies.read(http_request, caller_of(http_request, http.service.config), _SHOW)
        service = http.find_model(request.model or request.name).service
        checked_name(service, request.model or request.name)
        files = next(files for each, files in self._list(http) if each is service)
        info = dict(files.info)
        if service.engine.model is not None:
            info[f"{files.details.family}.context_length"] = service.engine.model.max_model_len
        return json_response(
            ShownModel(
                template=service.template.source() if service.template is not None else "",
                details=files.details,
                model_info=info,
                capabilities=_capabilities(service),
                modified_at=rfc3339(files.modified),
            )
        )

    async def version(self, http: HttpService, request: Request) -> Response:
        return json_response(Version(API_VERSION, VERSION))


def _find_expiry(service: Service) -> datetime:
    """When the model will be unloaded if no request comes: far in the future if it stays loaded."""
    at = None if service.engine.use is None else service.engine.use.expires_at
    if at is None:
        return datetime.fromtimestamp(service.started, UTC) + FOR_EVER
    return datetime.fromtimestamp(at, UTC)


def _capabilities(service: Service) -> list[str]:
    """The model's abilities under Ollama's names. With any chat template a conversation may have tools."""
    if service.engine.model is not None and service.engine.model.pooling is not None:
        return ["embedding"]
    return [
        "completion",
        *(["tools"] if service.template is not None else []),
        *(["thinking"] if service.reasoning is not None else []),
    ]


def checked_name(service: Service, name: str | None) -> str:
    """The name to show in the reply. Raises a 404 `RequestError` for a model that isn't served."""
    service.check_model(find_name(service, name))
    return name or service.config.served_model_name


def find_name(service: Service, name: str | None) -> str | None:
    """The name without a tag that it need not have."""
    return name.removesuffix(_LATEST) if name and name not in service.model_names else name


def add_tag(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else name + _LATEST
