"""What every endpoint works with: built once at start-up, the same for all requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version

from ..runtime.config import ServeConfig
from ..runtime.errors import RequestError
from ..runtime.messages import ModelReady, Tokens
from .engine_client import EngineClient
from .metrics import Metrics
from .openai.body import BodyReader
from .text.chat_template import ChatTemplate
from .text.prompt_memo import PromptMemo
from .text.reasoning import ReasoningFormat, detect_reasoning
from .text.tokenizer import Tokenizer
from .text.tool_calls import ToolFormat, detect_format

LONG_TEXT = 16_384  # characters: about 5 ms of tokenizing, which other streams need not wait for


@dataclass(frozen=True)
class Service:
    config: ServeConfig
    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate | None
    memo: PromptMemo
    reasoning: ReasoningFormat | None
    tool_format: ToolFormat
    metrics: Metrics
    bodies: BodyReader = field(default_factory=BodyReader)
    started: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def load(cls, config: ServeConfig, engine: EngineClient, tokenizer: Tokenizer) -> Service:
        template = ChatTemplate.load(config.model, tokenizer)
        reasoning = detect_reasoning(template, tokenizer)
        memo = PromptMemo(tokenizer)
        tools = detect_format(template)
        return cls(config, engine, tokenizer, template, memo, reasoning, tools, Metrics(memo))

    @cached_property
    def fingerprint(self) -> str:
        """OpenAI's: with the same one a seed gives the same reply."""
        config = self.config
        mode = ("deterministic",) if config.deterministic else ()
        parts = (version("arbora"), config.model.name, config.device, config.dtype, *mode)
        return "fp_" + sha256("/".join(parts).encode()).hexdigest()[:12]

    async def encode(self, text: str, add_special_tokens: bool) -> Tokens:
        """Long texts on another thread; `tokenizers` lets go of the interpreter meanwhile."""
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text, add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens)

    async def encode_rendered(self, text: str, add_special_tokens: bool, namespace: str | None) -> Tokens:
        """The ids of a rendered conversation, those of the namespace's replies as they were sampled."""
        if add_special_tokens:
            return await self.encode(text, add_special_tokens=True)
        if len(text) < LONG_TEXT:
            return self.memo.encode(namespace, text)
        return await asyncio.to_thread(self.memo.encode, namespace, text)

    def check_model(self, name: str | None) -> None:
        """Raises a 404 `RequestError` for a model that isn't served."""
        served = self.config.served_model_name
        if name is not None and name != served:
            raise RequestError(
                f"The model {name!r} does not exist; this server serves {served!r}.",
                status=404,
                param="model",
                code="model_not_found",
            )


def room_for_reply(
    model: ModelReady, prompt_tokens: int, max_tokens: int | None, param: str, prompt_param: str
) -> int:
    """How many tokens the reply may have. Raises `RequestError` when prompt and reply exceed the context: it
    names the field of the prompt if that is too long by itself, else `param`."""
    room = model.max_model_len - prompt_tokens
    context = f"This model's maximum context length is {model.max_model_len} tokens"
    if room < (0 if max_tokens == 0 else 1):
        problem = f"but the prompt has {prompt_tokens}, and the reply needs some too"
        raise _too_long(f"{context}, {problem}.", prompt_param)
    if max_tokens is not None and max_tokens > room:
        raise _too_long(
            f"{context}, of which the prompt has {prompt_tokens}. "
            f"That leaves {room} for the reply, but {param} is {max_tokens}.",
            param,
        )
    return room if max_tokens is None else max_tokens


def _too_long(message: str, param: str) -> RequestError:
    return RequestError(message, param=param, code="context_length_exceeded")
