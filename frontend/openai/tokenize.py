"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from array import array

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ...runtime.messages import ModelReady, Tokens
from ..service import Service
from ..tenants import cache_namespace, cache_scope
from .conversation import render, tool_definitions
from .protocol import DetokenizeRequest, PromptFields, TokenizeRequest
from .responses import DetokenizeResponse, TokenizeResponse
from .validation import check_salt, check_token_ids

_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)


async def tokenize(service: Service, http_request: Request) -> Response:
    """The ids of a text, or of a conversation as the chat template renders it."""
    request = await service.bodies.read(http_request, _tokenize_decoder, TokenizeRequest)
    service.check_model(request.model)
    check_salt(request.cache_salt)
    model = _known_model(service)
    scope = cache_scope(http_request, service.config)
    ids = array("i", await prompt_tokens(service, scope, request, request.prompt)).tolist()
    strings = [service.tokenizer.token_text(token) for token in ids] if request.return_token_strs else None
    return _json(
        TokenizeResponse(count=len(ids), max_model_len=model.max_model_len, tokens=ids, token_strs=strings)
    )


async def prompt_tokens(service: Service, scope: str, request: PromptFields, prompt: str | None) -> Tokens:
    """`scope` is what the names of the caller's namespaces begin with.

    Raises `RequestError` unless there is either a prompt or a conversation.
    """
    if (prompt is None) == (request.messages is None):
        raise RequestError("Give either prompt or messages.", param="prompt", code="invalid_value")
    if prompt is not None:
        return await service.encode(prompt, request.add_special_tokens is not False)
    text = render(service.template, request, tool_definitions(request.tools))
    namespace = cache_namespace(scope, request.cache_salt)
    return await service.encode_rendered(text, bool(request.add_special_tokens), namespace)


async def detokenize(service: Service, http_request: Request) -> Response:
    """The text of ids, special tokens included."""
    request = await service.bodies.read(http_request, _detokenize_decoder, DetokenizeRequest)
    service.check_model(request.model)
    check_token_ids("tokens", request.tokens, _known_model(service).vocab_size)
    text = service.tokenizer.decode(array("i", request.tokens).tobytes(), skip_special_tokens=False)
    return _json(DetokenizeResponse(text))


def _known_model(service: Service) -> ModelReady:
    return service.engine.model or service.engine.check_serving()


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
