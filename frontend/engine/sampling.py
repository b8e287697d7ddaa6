"""The keyword arguments of `Engine`'s methods, and the checks of their names."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict, TypeVar, cast

from ..core.text.close_names import did_you_mean

S = TypeVar("S", bound=Mapping[str, object])
T = TypeVar("T")


class ReplyOptions(TypedDict, total=False):
    """The fields of `Sampling`, described there, that `arbora.gen` takes too."""

    min_tokens: int
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    ignore_eos: bool
    speculate: int
    additional_properties: Literal["declared", "schema"]
    property_order: Literal["schema", "any"]
    whitespace: Literal["model", "compact", "spaced", "indented"]
    unenforced: Literal["refuse", "allow"]
    complete_json: bool
    cache_salt: str
    cache_prompt: bool
    priority: int


class Sampling(ReplyOptions, total=False):
    """How a reply is sampled and when it ends. Options that are left out have the defaults of the HTTP API,
    except that a reply without `max_tokens` may fill the context.

    max_tokens: the most tokens of the reply, fewer where the prompt leaves less of the context
    min_tokens: the fewest tokens before it may end
    n: how many replies to compute; choice i with a seed is a single reply with seed + i
    temperature: 0 takes the most likely token, 1 samples as the model predicts
    top_p: sample from the most likely tokens that together have this probability; 0 takes the most likely
    top_k: sample from this many of the most likely tokens
    min_p: leave out tokens less likely than this part of the most likely one
    repetition_penalty: above 1, tokens of the prompt and the reply become less likely
    presence_penalty: subtracted from the logits of tokens that the reply has
    frequency_penalty: the same, times how often the reply has them
    logit_bias: added to the logits, by token id
    seed: with the same one the reply is the same
    stop: the reply ends before the first of these strings
    stop_token_ids: the reply ends with the first of these tokens
    include_stop_str_in_output: it ends after the string instead
    skip_special_tokens: false leaves special tokens in the text
    ignore_eos: continue after the model's own end
    speculate: how many tokens to guess at most in a step; 0 for none. Replies stay the same
    logprobs: how many alternatives to report with each token
    prompt_logprobs: the same for each prompt token; not in streams
    prompt_logprobs_start: only for prompt tokens from this position on, so that those before may come from
        the cache
    json_schema: the reply must match this schema or a value of this type, such as a dataclass or pydantic
        model, or with true be any JSON object; `Completion.value` is the value
    regex: the reply must match it
    choice: the reply must be one of these texts
    grammar: the reply must match it, in Lark or GBNF; at most one of these four may be given
    additional_properties: "declared" forbids properties beside an object's declared ones, unless its schema
        mentions them; with "schema" they are forbidden only where the schema says so
    property_order: "any" allows a schema's properties in any order, else they have the schema's
    whitespace: white space between the tokens of JSON: "model", as the model chooses, "compact", "spaced" or
        "indented"
    unenforced: "allow" to leave out of a schema what can't be enforced, and list it in the reply's
        `unenforced`; else it is refused. Unknown formats are refused only with "refuse"
    complete_json: the reply matches even where `max_tokens` ends it
    cache_salt: cached prefixes are shared only among requests with the same salt
    cache_prompt: false to read nothing from the cache and leave nothing in it
    model: the name of an adapter; without it the base model computes the reply
    cache_lease: {"ttl_s": 300, "key": "mine"} to evict prompt and reply last for five minutes, or until
        another request with the key; with "most" the key keeps several
    priority: lower is served earlier
    """

    max_tokens: int
    n: int
    temperature: float
    seed: int
    stop: str | Sequence[str]
    logprobs: int
    prompt_logprobs: int
    prompt_logprobs_start: int
    json_schema: object
    regex: str
    choice: Sequence[str]
    grammar: str
    cache_lease: Mapping[str, object]
    model: str


class Rendering(TypedDict, total=False):
    """How a conversation becomes a prompt.

    tools: the tools that the prompt describes, as in OpenAI's API
    add_generation_prompt: false leaves out the header of the assistant's reply
    continue_final_message: the reply continues the last message
    chat_template_kwargs: more variables of the chat template
    """

    tools: Sequence[Mapping[str, object]]
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, object]


class ChatOptions(Sampling, Rendering, total=False):
    """The options of a chat: those of `Sampling` and `Rendering`, and these.

    tool_choice: "auto", "none", "required", or a function as in OpenAI's API
    parallel_tool_calls: false allows one call at most
    """

    tool_choice: str | Mapping[str, object]
    parallel_tool_calls: bool


class TokenizeOptions(Rendering, total=False):
    """The options of `Engine.tokenize`: those of `Rendering` for a conversation, and this.

    cache_salt: earlier replies with this salt keep the tokens that they were sampled with
    """

    cache_salt: str


class ScoreOptions(TypedDict, total=False):
    """The options of `Engine.score`; each means the same as for a chat. `cache_lease` keeps what the choices
    share."""

    tools: Sequence[Mapping[str, object]]
    chat_template_kwargs: Mapping[str, object]
    cache_salt: str
    cache_prompt: bool
    cache_lease: Mapping[str, object]
    priority: int
    model: str


_INSTEAD = {
    "response_format": 'use json_schema=SCHEMA, or json_schema=True for {"type": "json_object"}',
    "guided_json": "use json_schema",
    "guided_regex": "use regex",
    "guided_choice": "use choice",
    "guided_grammar": "use grammar",
    "guided_decoding": "use json_schema, regex, choice or grammar",
    "structured_outputs": "use json_schema, regex, choice or grammar",
    "max_completion_tokens": "use max_tokens",
    "max_new_tokens": "use max_tokens",
    "stream": "call `stream` or `stream_chat`",
}
"""Advice for names of fields that are not options."""


def check_names(given: Mapping[str, object], options: type) -> None:
    """Raises TypeError for a name that is no option, as for a function's unknown keyword.

    `options` is the TypedDict that has the options.
    """
    known = options.__annotations__
    unknown = sorted(given.keys() - known.keys())
    if not unknown:
        return
    name = unknown[0]
    if name in _INSTEAD:
        raise TypeError(f"{name} is no sampling option: {_INSTEAD[name]}")
    if name in ChatOptions.__annotations__ and options is Sampling:
        raise TypeError(f"{name} is an option of `chat` and `stream_chat` only, as a prompt has no messages")
    kind = "sampling option" if "temperature" in known else "option"
    raise TypeError(f"unknown {kind} {name!r}.{did_you_mean(name, known)} There are {', '.join(known)}.")


def merge(params: Sampling | None, options: S) -> S:
    """The fields of both, in which `options` override `params`. Raises TypeError if `params` is no
    `Sampling`."""
    if params is None:
        return options
    if not isinstance(params, Mapping):
        raise TypeError(
            f"the second argument is {reprlib.repr(params)}, but must be a Sampling such as "
            "arbora.Sampling(max_tokens=16)"
        )
    return {**params, **options}  # type: ignore[return-value]


def merge_each(params: Sampling | Sequence[Sampling] | None, options: S, count: int, name: str) -> list[S]:
    """As `merge`, for each of `count` prompts, which are called `name`."""
    return [merge(each, options) for each in repeat_for_each(params, count, name)]


def repeat_for_each(params: T | Sequence[T], count: int, name: str) -> list[T]:
    """The parameters of each of `count` prompts. Raises TypeError for another number of parameters."""
    each = list(params) if isinstance(params, list | tuple) else [cast(T, params)] * count
    if len(each) != count:
        raise TypeError(
            f"sampling_params has {len(each)} entries for {count} {name}: give one for all, or one for each"
        )
    return each
