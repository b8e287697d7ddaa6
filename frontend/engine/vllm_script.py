"""`LLM` and `SamplingParams` as in vLLM's offline scripts, on top of `Engine`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack, cast

from .completion import Choice, Completion, TokenLogprob
from .engine import Engine
from .requests import Prompt
from .sampling import Rendering, Sampling, check_names, repeat_for_each
from .vllm_options import read_options
from .work import Conversation, Conversations


class Logprob(NamedTuple):
    """A token's log-probability. `rank` counts from 1. It is None for a token outside of the alternatives."""

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
    """The replies to one prompt. `prompt` is None for token ids and conversations. `request_id` counts the
    prompts of an `LLM`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True


class SamplingParams:
    """The fields of `Sampling`, which are also attributes. Fields that are not given are None. `max_tokens`
    is 16 by default; with None a reply may fill the context."""

    fields: Sampling

    def __init__(self, **fields: Unpack[Sampling]) -> None:
        check_names(fields, Sampling)
        self.__dict__["fields"] = {"max_tokens": 16, **fields}

    def __getattr__(self, name: str) -> Any:
        if name not in Sampling.__annotations__:
            raise AttributeError(f"SamplingParams has no field {name!r}")
        return self.__dict__["fields"].get(name)

    def __setattr__(self, name: str, value: object) -> None:
        check_names({name: value}, Sampling)
        self.__dict__["fields"][name] = value

    def __repr__(self) -> str:
        return f"SamplingParams({', '.join(f'{name}={value!r}' for name, value in self.fields.items())})"


@dataclass(frozen=True)
class LoRARequest:
    """The adapter of a call's replies. `lora_int_id` has no effect, as adapters are known by their names."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class LLM:
    """An `Engine` with the methods and results of vLLM's `LLM`. It ends with the script.

    Options are those of `Engine` and the arguments of vLLM's `LLM`. A warning names options without effect.
    An option that can't be fulfilled raises TypeError. With a `seed` a script samples the same replies each
    time that it runs.
    """

    def __init__(self, model: str | None = None, *, seed: int | None = None, **options: Any) -> None:
        read = read_options(model, options)
        self.engine = Engine(read.model, **read.engine)
        self._defaults = read.sampling
        self._seeds = None if seed is None else random.Random(seed)
        self._ids = map(str, itertools.count())
        self._adapters: set[LoRARequest] = set()

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns the sampling values that the model recommends."""
        return SamplingParams()

    def generate(
        self,
        prompts: str | Mapping[str, Any] | Sequence[int] | Sequence[str | list[int] | Mapping[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """One result for each prompt: a text, token ids, `{"prompt": …}` or `{"prompt_token_ids": …}`.

        `sampling_params` and `lora_request` may be lists, with one entry for each prompt.
        """
        is_one = isinstance(prompts, str | Mapping) or (bool(prompts) and hasattr(prompts[0], "__index__"))
        given = [prompts] if is_one else list(prompts)
        plain = [_prompt(each, f"prompts[{place}]") for place, each in enumerate(given)]
        sampling = self._sampling(sampling_params, len(plain), "prompts", lora_request)
        completions = self.engine.generate(plain, sampling, use_tqdm=use_tqdm)
        return [_output(next(self._ids), *pair) for pair in zip(plain, completions, strict=True)]

    def chat(
        self,
        messages: Conversation | Conversations,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        **rendering: Unpack[Rendering],
    ) -> list[RequestOutput]:
        """One result for each conversation. `sampling_params` and `lora_request` may be lists, with one entry
        for each."""
        several = bool(messages) and isinstance(messages[0], list | tuple)
        conversations = cast(Conversations, messages if several else [list(messages)])
        sampling = self._sampling(sampling_params, len(conversations), "conversations", lora_request)
        completions = self.engine.chat(conversations, sampling, use_tqdm=use_tqdm, **rendering)
        return [_output(next(self._ids), None, completion) for completion in completions]

    def _sampling(
        self,
        params: SamplingParams | Sequence[SamplingParams] | None,
        count: int,
        name: str,
        adapters: LoRARequest | Sequence[LoRARequest | None] | None,
    ) -> list[Sampling]:
        """The fields for each of `count` prompts, which are called `name`. Loads their adapters."""
        given = SamplingParams() if params is None else params
        fields = [_fields(each) for each in repeat_for_each(given, count, name)]
        return [
            self._seeded({**self._defaults, **each, **self._adapter(adapter)})
            for each, adapter in zip(fields, repeat_for_each(adapters, count, name), strict=True)
        ]

    def _adapter(self, wanted: LoRARequest | None) -> Sampling:
        """The field that chooses an adapter, which is loaded if it isn't yet."""
        if wanted is None:
            return {}
        if wanted not in self._adapters:
            self.engine.load_adapter(wanted.lora_name, wanted.lora_path)
            self._adapters.add(wanted)
        return {"model": wanted.lora_name}

    def _seeded(self, fields: Sampling) -> Sampling:
        if self._seeds is None or fields.get("seed") is not None:
            return fields
        return {**fields, "seed": self._seeds.getrandbits(48)}


def _fields(params: object) -> Sampling:
    if not isinstance(params, SamplingParams):
        raise TypeError(
            f"sampling_params is {params!r}, but must be a SamplingParams, or one for each prompt"
        )
    return params.fields


def _prompt(prompt: Any, name: str) -> Any:
    """Converts a prompt of vLLM to one of `Engine`."""
    if not isinstance(prompt, Mapping):
        return prompt
    if len(prompt) == 1 and prompt.keys() <= {"prompt", "prompt_token_ids"}:
        return next(iter(prompt.values()))
    raise TypeError(f"{name} has the keys {sorted(prompt)}, but must have prompt or prompt_token_ids alone")


def _output(request_id: str, prompt: Prompt | None, completion: Completion) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
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
