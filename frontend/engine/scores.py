"""Tokenizes a prompt with each of its choices, and finds the tokens to score."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...runtime.errors import RequestError
from ...runtime.messages import ModelReady, Tokens
from ..core.service import Service
from ..core.validation import invalid_field
from .fields import Message, list_messages
from .requests import tokenize
from .sampling import ScoreOptions, TokenizeOptions

_RENDERING = ("tools", "chat_template_kwargs", "cache_salt")


class ScoredPrompts(NamedTuple):
    """The prompt with each choice. The tokens from position `start` on are scored."""

    prompts: list[Tokens]
    start: int
    prompt_name: str


async def scored_prompts(
    service: Service,
    model: ModelReady,
    prompt: str | Sequence[Message],
    choices: Sequence[str],
    options: ScoreOptions,
) -> ScoredPrompts:
    """Tokenizes the prompts. Scored tokens follow the longest prefix shared by the prompt and its choices.

    Raises `RequestError` for choices that can't be scored.
    """
    _check_choices(choices)
    rendering = {name: options[name] for name in _RENDERING if name in options}  # type: ignore[literal-required]
    texts = isinstance(prompt, str)

    async def tokens(prompt: str | Sequence[Message], continues: bool) -> Tokens:
        extra = {} if texts else {**rendering, "continue_final_message": continues}
        return await tokenize(service, prompt, TokenizeOptions(**extra), model.max_model_len)  # type: ignore[typeddict-item]

    if isinstance(prompt, str):
        wholes = [await tokens(prompt + choice, False) for choice in choices]
        alone = [await tokens(prompt, False)]
    else:
        messages = list_messages(prompt)
        wholes = [await tokens(_continued(messages, choice), True) for choice in choices]
        alone = [await tokens(_continued(messages, ""), True)]
        if not _is_begun(messages):  # a template that trims texts renders the header as a whole only here
            alone.append(await tokens(messages, False))
    ids = [np.frombuffer(tokens, np.int32) for tokens in wholes]
    start = max(common_prefix([np.frombuffer(each, np.int32), *ids]) for each in alone)
    name = "prompt" if texts else "messages"
    _check_scored(choices, wholes, start, name)
    return ScoredPrompts(wholes, start, name)


def _is_begun(messages: Sequence[Message]) -> bool:
    """Whether the last message is the beginning of the assistant's reply."""
    last = messages[-1] if messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def _continued(messages: Sequence[Message], choice: str) -> list[Message]:
    """The conversation with the choice at the end of the assistant's message."""
    if not _is_begun(messages):
        return [*messages, {"role": "assistant", "content": choice}]
    content = messages[-1].get("content") or ""
    if not isinstance(content, str):
        message = f"messages[{len(messages) - 1}].content must be a text, because the choices continue it."
        raise RequestError(message, param=f"messages[{len(messages) - 1}].content", code="invalid_type")
    return [*messages[:-1], {**messages[-1], "content": content + choice}]


def common_prefix(prompts: Iterable[npt.NDArray[np.int32]]) -> int:
    """How many leading tokens are the same in all."""
    first, *others = prompts
    length = len(first)
    for other in others:
        length = min(length, len(other))
        differing = np.flatnonzero(first[:length] != other[:length])
        length = int(differing[0]) if len(differing) else length
    return length


def _check_choices(choices: Sequence[str]) -> None:
    is_list = isinstance(choices, Sequence) and not isinstance(choices, str) and len(choices) > 0
    if is_list and all(isinstance(choice, str) and choice for choice in choices):
        return
    raise invalid_field(
        "choices", f"is {reprlib.repr(choices)}, but must be a list of texts, none of them empty"
    )


def _check_scored(choices: Sequence[str], wholes: Sequence[Tokens], start: int, name: str) -> None:
    if start == 0:
        raise invalid_field(
            name,
            "shares no first token with all of its choices, and a first token has no "
            "log-probability: begin it with a text that the choices leave as it is",
        )
    for place, (choice, whole) in enumerate(zip(choices, wholes, strict=True)):
        if len(whole) // 4 <= start:
            raise invalid_field(
                f"choices[{place}]", f"is {reprlib.repr(choice)}, which adds no token to the prompt"
            )
