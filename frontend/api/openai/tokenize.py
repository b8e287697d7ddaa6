"""POST /tokenize and /detokenize, in vLLM's forms."""

from __future__ import annotations

from array import array
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ....runtime.errors import RequestError
from ....runtime.messages import ModelReady, Tokens
from ...core.conversation import tool_definitions
from ...core.draft import Prompt
from ...core.prepare import MAX_COUNTED_TOKENS
from ...core.service import Service
from ...core.validation import check_count, check_token_ids
from ...http.apis import json_response
from ...http.body_kind import BodyKind
from ...http.endpoint import read_body
from ...http.http_service import HttpService
from .chat import conversation_of
from .fields import IN_PROMPTS, IN_TOKENS, INERT
from .protocol import DetokenizeRequest, PromptFields, TokenizeRequest
from .responses import DetokenizeResponse, TokenizeResponse

_TOKENIZE = BodyKind(TokenizeRequest, INERT, IN_PROMPTS)
_DETOKENIZE = BodyKind(DetokenizeRequest, INERT, IN_TOKENS)


async def tokenize(http: HttpService, http_request: Request) -> Response:
    """The ids of a text, or of a conversation rendered by the chat template."""
    incoming = await read_body(http, http_request, _TOKENIZE)
    service, request = incoming.http.service, incoming.body
    service.check_model(request.model)
    tokens = await incoming.tokenize(lambda _, body: prompt_of(body, body.prompt), request.cache_salt)
    respond = partial(_make_token_response, service, tokens, bool(request.return_token_strs))
    return await service.work.call(incoming.caller, respond)


def _make_token_response(service: Service, tokens: Tokens, with_strings: bool) -> Response:
    ids = array("i", tokens).tolist()
    strings = [service.tokenizer.token_text(token) for token in ids] if with_strings else None
    most = _known_model(service).max_model_len
    return json_response(TokenizeResponse(count=len(ids), max_model_len=most, tokens=ids, token_strs=strings))


def prompt_of(request: PromptFields, text: str | None) -> Prompt:
    """The prompt of a request. Raises `RequestError` unless it has either a text or a conversation."""
    if (text is None) == (request.messages is None):
        given = "Neither prompt nor messages is" if text is None else "Both prompt and messages are"
        raise RequestError(f"{given} given: give one of them.", param="prompt", code="invalid_value")
    if text is not None:
        return Prompt(param="prompt", items=[text], special=request.add_special_tokens is not False)
    return Prompt(
        param="messages",
        conversation=conversation_of(request),
        tools=tool_definitions(request.tools),
        special=bool(request.add_special_tokens),
    )


async def detokenize(http: HttpService, http_request: Request) -> Response:
    """The text of token ids, including special tokens."""
    incoming = await read_body(http, http_request, _DETOKENIZE)
    service = incoming.http.service
    service.check_model(incoming.body.model)
    tokens = incoming.body.tokens
    return await service.work.call(
        incoming.caller, _make_text_response, service, tokens, _known_model(service)
    )


def _make_text_response(service: Service, tokens: list[int], model: ModelReady) -> Response:
    check_count("tokens", tokens, max(MAX_COUNTED_TOKENS, model.max_model_len), "ids")
    check_token_ids("tokens", tokens, model.vocab_size)
    text = service.tokenizer.decode(array("i", tokens).tobytes(), skip_special_tokens=False)
    return json_response(DetokenizeResponse(text))


def _known_model(service: Service) -> ModelReady:
    return service.engine.model or service.engine.check_serving()
