"""OpenAI's API as an API of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from ...http.apis import Api, route
from ...http.endpoint import GenerationEndpoint
from ...http.http_service import HttpService
from ...http.operation import GENERATES, DescribedRoute, Operation
from ...http.pooling_endpoint import PoolingEndpoint
from .adapters import LoadRequest, UnloadRequest, load_adapter, unload_adapter
from .chat import prepare_chat
from .completions import prepare_completion
from .errors import error_json
from .models import list_models, show_model
from .pooling import prepare_classify, prepare_embeddings
from .pooling_protocol import (
    Classes,
    ClassifyRequest,
    EmbeddingRequest,
    Embeddings,
    Ranking,
    RerankRequest,
    ScoreRequest,
    Scores,
)
from .protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from .responses import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    DetokenizeResponse,
    ErrorResponse,
    ModelCard,
    ModelList,
    TokenizeResponse,
)
from .scores import prepare_rerank, prepare_score
from .tokenize import detokenize, tokenize

_CHAT = Operation(
    summary="Continue a conversation",
    body=ChatRequest,
    example={"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 100},
    reply=ChatCompletion,
    events=(ChatChunk,),
    errors=GENERATES,
)
_COMPLETION = Operation(
    summary="Continue a text",
    body=CompletionRequest,
    example={"prompt": "Once upon a time", "max_tokens": 50},
    reply=Completion,
    events=(CompletionChunk,),
    errors=GENERATES,
)
_LIST = Operation(summary="List the models", reply=ModelList)
_SHOW = Operation(summary="Describe a model", reply=ModelCard)
_TOKENIZE = Operation(
    summary="Tokenize a text or a conversation",
    body=TokenizeRequest,
    example={"prompt": "Why is the sky blue?"},
    reply=TokenizeResponse,
)
_DETOKENIZE = Operation(
    summary="Join tokens to a text",
    body=DetokenizeRequest,
    example={"tokens": [1, 2, 3]},
    reply=DetokenizeResponse,
)
_LOAD_ADAPTER = Operation(
    summary="Load a LoRA adapter",
    body=LoadRequest,
    example={"lora_name": "sql", "lora_path": "/adapters/sql"},
    reply_type="text/plain",
    errors=(403, 404, 503),
)
_UNLOAD_ADAPTER = Operation(
    summary="Unload a LoRA adapter",
    body=UnloadRequest,
    example={"lora_name": "sql"},
    reply_type="text/plain",
    errors=(403, 404, 503),
)


_POOLS = (404, 429, 504)
_EMBEDDINGS = Operation(
    summary="Make embeddings of texts",
    body=EmbeddingRequest,
    example={"input": ["Why is the sky blue?", "The sky is blue because of Rayleigh scattering."]},
    reply=Embeddings,
    errors=_POOLS,
)
_SCORE = Operation(
    summary="Score how well texts match",
    body=ScoreRequest,
    example={"text_1": "Why is the sky blue?", "text_2": ["Air scatters blue light.", "Rome is in Italy."]},
    reply=Scores,
    errors=_POOLS,
)
_RERANK = Operation(
    summary="Sort documents by how well they match a query",
    body=RerankRequest,
    example={"query": "Why is the sky blue?", "documents": ["Air scatters blue light.", "Rome is in Italy."]},
    reply=Ranking,
    errors=_POOLS,
)
_CLASSIFY = Operation(
    summary="Classify texts",
    body=ClassifyRequest,
    example={"input": ["What a beautiful day!"]},
    reply=Classes,
    errors=_POOLS,
)
_POOLING = (
    (("/v1/embeddings",), prepare_embeddings, _EMBEDDINGS),
    (("/v1/score", "/score"), prepare_score, _SCORE),
    (("/v1/rerank", "/rerank", "/v2/rerank"), prepare_rerank, _RERANK),
    (("/v1/classify", "/classify"), prepare_classify, _CLASSIFY),
)


def _routes(http: HttpService) -> Sequence[Route]:
    chat, completion = GenerationEndpoint(http, prepare_chat), GenerationEndpoint(http, prepare_completion)
    return [
        DescribedRoute("POST", "/v1/chat/completions", chat, _CHAT),
        DescribedRoute("POST", "/v1/completions", completion, _COMPLETION),
        route("GET", "/v1/models", http, list_models, _LIST),
        route("GET", "/v1/models/{model:path}", http, show_model, _SHOW),
        route("POST", "/tokenize", http, tokenize, _TOKENIZE),
        route("POST", "/detokenize", http, detokenize, _DETOKENIZE),
        *(
            DescribedRoute("POST", path, PoolingEndpoint(http, prepare), operation)
            for paths, prepare, operation in _POOLING
            for path in paths
        ),
        route("POST", "/v1/load_lora_adapter", http, load_adapter, _LOAD_ADAPTER),
        route("POST", "/v1/unload_lora_adapter", http, unload_adapter, _UNLOAD_ADAPTER),
    ]


OPENAI = Api(
    _routes,
    error_json,
    batched=("/v1/chat/completions", "/v1/completions", "/v1/embeddings"),
    name="OpenAI",
    error=ErrorResponse,
)
