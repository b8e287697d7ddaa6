"""Reads the body of POST /cache/pin, which names a prefix as OpenAI's requests do."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from msgspec.structs import replace
from starlette.requests import Request

from ....runtime.errors import RequestError
from ....runtime.messages import ModelReady, PinPrefix, Tokens
from ...core.draft import Limits
from ...core.prepare import cache_namespace, new_id, reply_tokens, tokenize
from ...core.service import Service
from ...core.validation import check_declared, check_salt, check_token_ids
from ...core.work.caller import Caller
from ...http.body_kind import BodyKind
from ...http.http_service import HttpService
from ...http.model_choice import choose_model
from ...http.tenants import cache_scope, caller_of
from .fields import IN_PROMPTS, INERT
from .protocol import PinRequest
from .tokenize import prompt_of

_BODY = BodyKind(PinRequest, INERT, IN_PROMPTS)


class PinOrder(NamedTuple):
    """The scheduler's message, the name of the field with the prefix, and the digest of its adapter."""

    service: Service
    pin: PinPrefix
    param: str
    adapter: str


async def read_pin(http: HttpService, http_request: Request) -> PinOrder:
    """Reads a request to pin a prefix, and loads its model.

    Raises `RequestError` for a prefix that can't be pinned.
    """
    caller = caller_of(http_request, http.service.config)
    request = await http.bodies.read(http_request, caller, _BODY)
    service = (await choose_model(http, http_request, request.model, caller)).service
    adapter = service.find_adapter(request.model)
    model = service.engine.check_serving()
    check_declared(request)
    check_salt(request.cache_salt)
    scope = cache_scope(http_request, service.config)
    param = "prompt" if request.messages is None else "messages"
    tokens = await _read_prefix(service, scope, request, model, caller)
    _check_length(model, len(tokens) // 4, param)
    namespace = cache_namespace(scope, request.cache_salt, adapter)
    pin = PinPrefix(service.engine.client, 0, new_id("pin"), scope, namespace, tokens, request.ttl_s)
    return PinOrder(service, pin, param, "" if adapter is None else adapter.digest)


async def _read_prefix(
    service: Service, scope: str, request: PinRequest, model: ModelReady, caller: Caller
) -> Tokens:
    if isinstance(request.prompt, list):
        check_token_ids("prompt", request.prompt, model.vocab_size)
        return array("i", request.prompt).tobytes()
    # The next message of the conversation may not be a reply.
    fields = replace(request, add_generation_prompt=request.add_generation_prompt is True)
    prompt = prompt_of(fields, request.prompt)
    most = model.max_model_len
    return await tokenize(service, prompt, fields.cache_salt, caller, scope, most, request.model)


def _check_length(model: ModelReady, count: int, param: str) -> None:
    if count < model.page_size:
        raise RequestError(
            f"The prefix has {count} tokens, but only full pages of {model.page_size} tokens are "
            f"pinned: pin at least {model.page_size} tokens.",
            param=param,
            code="prefix_too_short",
        )
    reply_tokens(model, count, Limits(None, ""), param)
