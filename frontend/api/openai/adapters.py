"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

from __future__ import annotations

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ...core import adapters
from ...http.body_kind import BodyKind, FixedField, InertFields
from ...http.http_service import HttpService
from ...http.tenants import caller_of


class LoadRequest(Struct, kw_only=True):
    lora_name: str
    lora_path: str
    load_inplace: bool | None = None


class UnloadRequest(Struct, kw_only=True):
    lora_name: str


_LOAD = BodyKind(LoadRequest, InertFields({"is_3d_lora_weight": FixedField(("false",))}))
_UNLOAD = BodyKind(UnloadRequest, InertFields(without_effect=("lora_int_id",)))


async def load_adapter(http: HttpService, request: Request) -> Response:
    body = await http.bodies.read(request, caller_of(request, http.service.config), _LOAD)
    replaces = bool(body.load_inplace)
    await adapters.load_adapter(http.service, body.lora_name, body.lora_path, replaces=replaces)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(http: HttpService, request: Request) -> Response:
    body = await http.bodies.read(request, caller_of(request, http.service.config), _UNLOAD)
    await adapters.unload_adapter(http.service, body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")
