"""GET /api/tags, /api/ps and /api/version, and POST /api/show."""

from __future__ import annotations

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
"""The time until the model is unloaded. It never is, but clients expect a time."""
_LATEST = ":latest"
"""The tag of a name that has no tag."""

_SHOW = BodyKind(ShowRequest)


class Models:
    """The handlers that describe the model."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files

    async def tags(self, http: HttpService, request: Request) -> Response:
        files = self._files
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
                    for name in http.service.model_names
                ]
            )
        )

    async def running(self, http: HttpService, request: Request) -> Response:
        """Lists the loaded model. The list is empty before the model is loaded."""
        service, files = http.service, self._files
        model = service.engine.model
        names = () if model is None else service.model_names
        expires = datetime.fromtimestamp(service.started, UTC) + FOR_EVER
        return json_response(
            RunningList(
                [
                    RunningModel(
                        name=add_tag(name),
                        model=add_tag(name),
                        size=files.size,
                        digest=files.digest,
                        details=files.details,
                        expires_at=rfc3339(expires),
                        size_vram=files.size if service.config.device == "cuda" else 0,
                        context_length=0 if model is None else model.max_model_len,
                    )
                    for name in names
                ]
            )
        )

    async def show(self, http: HttpService, http_request: Request) -> Response:
        """Describes the model. Raises a 404 `RequestError` for a model that isn't served."""
        service = http.service
        request = await http.bodies.read(http_request, caller_of(http_request, service.config), _SHOW)
        checked_name(service, request.model or request.name)
        files, info = self._files, dict(self._files.info)
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
