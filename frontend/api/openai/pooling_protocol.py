"""The bodies of requests to a model that pools, and of answers, in the forms of OpenAI, Jina and vLLM."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from ...core.declared import one_of, within
from ...core.fields import Priority, Salt


class PoolingFields(Struct, kw_only=True):
    """The fields of all requests."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, within(-1)] | None = None
    add_special_tokens: bool | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None


class EmbeddingRequest(PoolingFields, kw_only=True):
    input: str | list[str | int | list[int]]
    dimensions: Annotated[int, within(1)] | None = None
    encoding_format: Annotated[str, one_of(("float", "base64"))] | None = None


class ClassifyRequest(PoolingFields, kw_only=True):
    input: str | list[str | int | list[int]]
    use_activation: bool | None = None


class ScoreRequest(PoolingFields, kw_only=True):
    """Two texts or lists of texts, under one of four pairs of names."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    use_activation: bool | None = None


class Document(Struct):
    text: str


class RerankRequest(PoolingFields, kw_only=True):
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, within(0)] | None = None
    return_documents: bool | None = None
    use_activation: bool | None = None


class PoolingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Score(Struct, kw_only=True):
    object: Literal["score"] = "score"
    index: int
    score: float


class Class(Struct, kw_only=True):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Listing(Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    usage: PoolingUsage


class Embeddings(Listing, kw_only=True):
    data: list[Embedding]


class Scores(Listing, kw_only=True):
    data: list[Score]


class Classes(Listing, kw_only=True):
    data: list[Class]


class RankedDocument(Struct, kw_only=True):
    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class Ranking(Struct, kw_only=True):
    id: str
    model: str
    usage: PoolingUsage
    results: list[RankedDocument]
