"""`LLM` and `SamplingParams` as in vLLM's offline scripts, on top of `Engine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack, cast

from .completion import Choice, Completion, TokenLogprob
from .engine import Engine
from .options import EngineOptions
from .requests import Prompt
from .sampling import ChatOptions, Rendering, Sampling, check_names
from .work import Conversation, Conversations

_NAMES = {"max_num_seqs": "max_running", "quantization": "quantize", "kv_cache_dtype": "kv_dtype"}
_INSTEAD = {
    "gpu_memory_utilization": 'use kv_memory, the memory of the KV cache, such as "4GiB"',
    "tensor_parallel_size": "one device runs the model; leave it out",
    "seed": "give each SamplingParams a seed",
    "trust_remote_code": "no code of a model is ever run",
    "enable_prefix_caching": "it is always on; no_prefix_cache=True turns it off",
}
"""advice by the name of an argument of vLLM's that `LLM` lacks"""


class Logprob(NamedTuple):
    """`rank` counts from 1; None for a token that is not among the alternatives."""

    logprob: float
    rank: int | None


@dataclass(frozen=True)
class CompletionOutput:
    """One reply. `logprobs` has the alternatives to each token and the token itself by id."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob] | None] | None
    finish_reason: str
    stop_reason: str | int | None


@dataclass(frozen=True)
class RequestOutput:
    """The replies to one prompt. `prompt` is None for token ids and conversations."""

    prompt: str | None
    prompt_token_ids: Sequence[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True


class SamplingParams:
    """The fields of `Sampling`. `max_tokens` is 16 by default; with None a reply may fill the context."""

    def __init__(self, **fields: Unpack[Sampling]) -> None:
        check_names(fields, Sampling)
        self.fields: Sampling = {"max_tokens": 16, **fields}


class LLM:
    """An `Engine` with the methods and results of vLLM's `LLM`. It ends with the script."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        for name in options:
            if name in _INSTEAD:
                raise TypeError(f"LLM has no argument {name}: {_INSTEAD[name]}")
        named = {_NAMES.get(name, name): value for name, value in options.items()}
        self.engine = Engine(model, **cast(EngineOptions, named))

    def generate(
        self,
        prompts: str | Mapping[str, Any] | Sequence[int] | Sequence[str | list[int] | Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """One result for each prompt: a text, token ids, `{"prompt": …}` or `{"prompt_token_ids": …}`."""
        is_one = isinstance(prompts, str | Mapping) or (bool(prompts) and hasattr(prompts[0], "__index__"))
        given = [prompts] if is_one else list(prompts)
        plain = [_prompt(each, f"prompts[{place}]") for place, each in enumerate(given)]
        completions = self.engine.generate(plain, _fields(sampling_params), use_tqdm=use_tqdm)
        return [_output(*pair) for pair in zip(plain, completions, strict=True)]

    def chat(
        self,
        messages: Conversation | Conversations,
        sampling_params: SamplingParams | None = None,
        use_tqdm: bool = True,
        **rendering: Unpack[Rendering],
    ) -> list[RequestOutput]:
        """One result for each conversation."""
        several = bool(messages) and isinstance(messages[0], list | tuple)
        conversations = cast(Conversations, messages if several else [list(messages)])
        options = cast(ChatOptions, {**_fields(sampling_params), **rendering})
        completions = self.engine.chat(conversations, use_tqdm=use_tqdm, **options)
        return [_output(None, completion) for completion in completions]


def _fields(params: SamplingParams | None) -> Sampling:
    if params is not None and not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params is {params!r}, but must be one SamplingParams for all prompts")
    return (params or SamplingParams()).fields


def _prompt(prompt: Any, name: str) -> Any:
    """A prompt of `Engine`'s."""
    if not isinstance(prompt, Mapping):
        return prompt
    if len(prompt) == 1 and prompt.keys() <= {"prompt", "prompt_token_ids"}:
        return next(iter(prompt.values()))
    raise TypeError(f"{name} has the keys {sorted(prompt)}, but must have prompt or prompt_token_ids alone")


def _output(prompt: Prompt | None, completion: Completion) -> RequestOutput:
    return RequestOutput(
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=list(completion.prompt_tokens),
        prompt_logprobs=_by_id(completion.prompt_logprobs),
        outputs=[_choice(*each) for each in enumerate(completion.choices)],
    )


def _choice(index: int, choice: Choice) -> CompletionOutput:
    logprobs = [entry.logprob or 0.0 for entry in choice.logprobs]
    return CompletionOutput(
        index=index,
        text=choice.text,
        token_ids=choice.tokens,
        cumulative_logprob=sum(logprobs) if logprobs else None,
        logprobs=_by_id(choice.logprobs),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
    )


def _by_id(entries: Sequence[TokenLogprob]) -> list[dict[int, Logprob] | None] | None:
    return [_alternatives(entry) for entry in entries] or None


def _alternatives(entry: TokenLogprob) -> dict[int, Logprob] | None:
    if entry.logprob is None:
        return None
    ranked = {token: Logprob(value, rank) for rank, (token, value) in enumerate(entry.top, start=1)}
    return {entry.token: Logprob(entry.logprob, None), **ranked}
