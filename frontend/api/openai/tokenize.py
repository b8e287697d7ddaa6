"""POST /tokenize and /detokenize, in vLLM's forms."""

from __future__ import annotations

from array import array
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ....runtime.errors import RequestError
from ....runtime.messages import ModelReady, Tokens
from ...core.conversation import render, tool_definitions
from ...core.prepare import cache_namespace
from ...core.service import Service
from ...core.validation import check_count, check_salt, check_token_ids
from ...core.work.caller import Caller
from ...http.body_kind import BodyKind
from ...http.http_service import HttpService
from ...http.tenants import cache_scope, caller_of
from .binding_fields import IN_PROMPTS, IN_TOKENS
from .chat import conversation_of
from .fixed_fields import INERT_FIELDS
from .protocol import DetokenizeRequest, PromptFields, TokenizeRequest
from .responses import DetokenizeResponse, TokenizeResponse

MOST_TOKENS = 1 << 20  # of a text that is only counted, unless the model's context is longer

_TOKENIZE = BodyKind(TokenizeRequest, INERT_FIELDS, IN_PROMPTS)
_DETOKENIZE = BodyKind(DetokenizeRequest, INERT_FIELDS, IN_TOKENS)


async def tokenize(http: HttpService, http_request: Request) -> Response:
    """The ids of a text, or of a conversation rendered by the chat template."""
    service = http.service
    caller = caller_of(http_request, service.config)
    request = await http.bodies.read(http_request, caller, _TOKENIZE)
    service.check_model(request.model)
    check_salt(request.cache_salt)
    model = _known_model(service)
    scope = cache_scope(http_request, service.config)
    most = max(MOST_TOKENS, model.max_model_len)
    tokens = await prompt_tokens(service, scope, request, request.prompt, caller, most)
    respond = partial(_tokenized, service, model, tokens, bool(request.return_token_strs))
    return await service.work.call(caller, respond)


def _tokenized(service: Service, model: ModelReady, tokens: Tokens, with_strings: bool) -> Response:
    ids = array("i", tokens).tolist()
    strings = [service.tokenizer.token_text(token) for token in ids] if with_strings else None
    return _json(
        TokenizeResponse(count=len(ids), max_model_len=model.max_model_len, tokens=ids, token_strs=strings)
    )


async def prompt_tokens(
    service: Service, scope: str, request: PromptFields, prompt: str | None, caller: Caller, most: int
) -> Tokens:
    """The prompt's tokens, at most `most`. The names of the caller's namespaces begin with `scope`.

    Raises `RequestError` unless the request has either a prompt or a conversation.
    """
    if (prompt is None) == (request.messages is None):
        given = "Neither prompt nor messages is" if prompt is None else "Both prompt and messages are"
        raise RequestError(f"{given} given: give one of them.", param="prompt", code="invalid_value")
    if prompt is not None:
        special = request.add_special_tokens is not False
        return await service.encode(prompt, special, caller, most, "prompt")
    renderer = caller.with_messages(len(request.messages or ()))
    text = await service.work.call(renderer, _rendered, service, request)
    namespace = cache_namespace(scope, request.cache_salt)
    special = bool(request.add_special_tokens)
    return await service.encode_rendered(text, special, namespace, caller, most, "messages")


def _rendered(service: Service, request: PromptFields) -> str:
    return render(service.template, conversation_of(request), tool_definitions(request.tools))


async def detokenize(http: HttpService, http_request: Request) -> Response:
    """The text of token ids, including special tokens."""
    service = http.service
    caller = caller_of(http_request, service.config)
    request = await http.bodies.read(http_request, caller, _DETOKENIZE)
    service.check_model(request.model)
    return await service.work.call(caller, _detokenized, service, request.tokens, _known_model(service))


def _detokenized(service: Service, tokens: list[int], model: ModelReady) -> Response:
    check_count("tokens", tokens, max(MOST_TOKENS, model.max_model_len), "ids")
    check_token_ids("tokens", tokens, model.vocab_size)
    text = service.tokenizer.decode(array("i", tokens).tobytes(), skip_special_tokens=False)
    return _json(DetokenizeResponse(text))


def _known_model(service: Service) -> ModelReady:
    return service.engine.model or service.engine.check_serving()


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
