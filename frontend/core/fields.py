"""The fields that say how a request's replies are sampled and cached, in every wire format."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypeAlias, get_args

from msgspec import Meta, Raw, Struct, field

from ...runtime.messages import AdditionalProperties as AllowedProperties
from ...runtime.messages import PropertyOrder
from ...runtime.messages import Whitespace as JsonWhitespace
from ...runtime.sampling_params import MAX_DRAFTS
from .declared import one_of, within

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024  # characters of one stop string
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1
MAX_TTL_S = 7 * 24 * 3600  # seconds that a lease or pin may last
MAX_UNDER_KEY = 64  # leases that one key may hold

JsonObject = dict[str, object]
NULL: Raw = field(default_factory=partial(Raw, b"null"))
"""The default of a `Raw` field, which can't be optional. An absent field counts as null."""
_SCHEMA_TYPES = ["object", "boolean", "string", "null"]
JsonSchema: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": _SCHEMA_TYPES})]
"""A JSON schema, or a string with its JSON."""

# The declared ranges hold in every wire format that has the field.
Temperature: TypeAlias = Annotated[float, within(0, 2)]
TopP: TypeAlias = Annotated[float, within(0, 1)]
TopK: TypeAlias = Annotated[int, within(-1)]
MinP: TypeAlias = Annotated[float, within(0, 1)]
RepetitionPenalty: TypeAlias = Annotated[float, within(0.01, 100)]
OccurrencePenalty: TypeAlias = Annotated[float, within(-2, 2)]
Tokens: TypeAlias = Annotated[int, within(0)]
TopLogprobs: TypeAlias = Annotated[int, within(0, MAX_LOGPROBS)]
Drafts: TypeAlias = Annotated[int, within(0, MAX_DRAFTS)]
Seed: TypeAlias = Annotated[int, within(-(2**63), MAX_SEED)]
Priority: TypeAlias = Annotated[int, within(-(2**31), 2**31 - 1)]
AdditionalProperties: TypeAlias = Annotated[str, one_of(get_args(AllowedProperties))]
Order: TypeAlias = Annotated[str, one_of(get_args(PropertyOrder))]
Whitespace: TypeAlias = Annotated[str, one_of(get_args(JsonWhitespace))]
Unenforced: TypeAlias = Annotated[str, one_of(("refuse", "allow"))]
TtlS: TypeAlias = Annotated[float, within(0, MAX_TTL_S, above_low=True)]
Salt: TypeAlias = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
_STOP_LENGTHS = {"minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
StopString: TypeAlias = Annotated[str, Meta(extra_json_schema=_STOP_LENGTHS)]
StopStrings: TypeAlias = Annotated[list[StopString], Meta(extra_json_schema={"maxItems": MAX_STOP_STRINGS})]


class CacheLease(Struct, kw_only=True):
    """Arbora's field `cache_lease`: the prompt and the reply stay cached for `ttl_s` seconds.

    A later request with the same `key` replaces the lease; with `most`, the key keeps up to `most` leases.
    """

    ttl_s: TtlS
    key: str | None = None
    most: Annotated[int, within(1, MAX_UNDER_KEY)] | None = None


class ReplyFields(Struct, kw_only=True):
    """The fields that every API has under these names: a constraint on the reply and how it is enforced, and
    how the prompt is cached. None means that a field is absent. `validation.check_fields` checks the declared
    ranges.
    """

    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    additional_properties: AdditionalProperties | None = None
    property_order: Order | None = None
    whitespace: Whitespace | None = None
    unenforced: Unenforced | None = None
    complete_json: bool | None = None
    cache_salt: Salt | None = None
    cache_prompt: bool | None = None
    cache_lease: CacheLease | None = None
    priority: Priority | None = None


class SamplerFields(ReplyFields, kw_only=True):
    """The sampler's fields that all APIs except Ollama's have under these names."""

    min_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: OccurrencePenalty | None = None
    frequency_penalty: OccurrencePenalty | None = None
    seed: Seed | None = None
    ignore_eos: bool | None = None
    speculate: Drafts | None = None


class SamplingFields(SamplerFields, kw_only=True):
    """All fields of a reply, with the names that OpenAI and vLLM give them."""

    max_tokens: Tokens | None = None
    n: Annotated[int, within(1, MAX_CHOICES)] | None = None
    logit_bias: dict[str, float] | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: TopLogprobs | None = None
    prompt_logprobs_start: Tokens | None = None

    @classmethod
    def copy_from(cls, request: ReplyFields, **others: object) -> SamplingFields:
        """The fields that `request` has under the names of this class, and `others`."""
        same = [name for name in request.__struct_fields__ if name in cls.__struct_fields__]
        fields: dict[str, Any] = {**{name: getattr(request, name) for name in same}, **others}
        return cls(**fields)
