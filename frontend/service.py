"""What every endpoint works with: built once at start-up, the same for all requests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version

from ..runtime.config import ServeConfig
from ..runtime.errors import RequestError
from ..runtime.messages import ModelReady, Tokens
from .caller import Caller
from .engine_client import EngineClient
from .fair_threads import FairThreads
from .metrics import Metrics
from .openai.body import BodyReader
from .steps import Steps, run_now
from .text.chat_template import ChatTemplate
from .text.long_texts import LongTexts, TooLongError, is_long
from .text.prompt_memo import PromptMemo
from .text.reasoning import ReasoningFormat, detect_reasoning
from .text.tokenizer import Tokenizer
from .text.tool_calls import ToolFormat, detect_format

VERSION = version("arbora")  # read at start: later there may be no descriptor left to read it with


@dataclass(frozen=True)
class Service:
    config: ServeConfig
    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate | None
    long_texts: LongTexts
    memo: PromptMemo
    reasoning: ReasoningFormat | None
    tool_format: ToolFormat
    metrics: Metrics
    fingerprint: str
    work: FairThreads
    bodies: BodyReader
    started: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def load(cls, config: ServeConfig, engine: EngineClient, tokenizer: Tokenizer) -> Service:
        template = ChatTemplate.load(config.model, tokenizer)
        reasoning = detect_reasoning(template, tokenizer)
        long_texts = LongTexts(tokenizer)
        memo = PromptMemo(tokenizer, long_texts=long_texts, keeps_replies=not config.deterministic)
        tools = detect_format(template)
        work = FairThreads()
        return cls(
            config,
            engine,
            tokenizer,
            template,
            long_texts,
            memo,
            reasoning,
            tools,
            Metrics(memo),
            fingerprint(config),
            work,
            BodyReader(work),
        )

    async def encode(self, text: str, special: bool, caller: Caller, most: int, param: str) -> Tokens:
        """The ids of a text, with the tokenizer's own special tokens around it if `special`.

        Raises `RequestError` naming `param` if there are more than `most`.
        """
        return await self._run(self.long_texts.steps(text, special, most), text, caller, most, param)

    async def encode_rendered(
        self, text: str, special: bool, namespace: str | None, caller: Caller, most: int, param: str
    ) -> Tokens:
        """The ids of a rendered conversation, those of the namespace's replies as they were sampled."""
        if special:
            return await self.encode(text, True, caller, most, param)
        return await self._run(self.memo.steps(namespace, text, most), text, caller, most, param)

    async def _run(self, steps: Steps[Tokens], text: str, caller: Caller, most: int, param: str) -> Tokens:
        try:
            return await self.work.run(caller, steps) if is_long(text) else run_now(steps)
        except TooLongError as error:
            model = self.engine.model
            why = f": this model's maximum context length is {model.max_model_len} tokens" if model else ""
            problem = f"{param} has at least {error.tokens} tokens, but may have at most {most}{why}."
            raise _too_long(problem, param) from None

    def check_model(self, name: str | None) -> None:
        """Raises a 404 `RequestError` for a model that isn't served. An empty name counts as none."""
        served = self.config.model_names
        if name and name not in served:
            raise RequestError(
                f"The model {name!r} does not exist; this server serves {' and '.join(map(repr, served))}.",
                status=404,
                param="model",
                code="model_not_found",
            )


def fingerprint(config: ServeConfig) -> str:
    """OpenAI's `system_fingerprint`: with the same one a seed gives the same reply."""
    mode = ("deterministic",) if config.deterministic else ()
    parts = (VERSION, config.model.name, config.device, config.dtype, *mode)
    return "fp_" + sha256("/".join(parts).encode()).hexdigest()[:12]


def room_for_reply(
    model: ModelReady, prompt_tokens: int, max_tokens: int | None, param: str, prompt_param: str
) -> int:
    """The most tokens that the reply may have: `max_tokens`, or what the prompt leaves of the context if that
    is less. Raises `RequestError` if the prompt leaves nothing, which names the prompt's field, and if
    `max_tokens` alone is more than the context, which names `param`."""
    most = model.max_model_len
    context = f"This model's maximum context length is {most} tokens"
    if max_tokens is not None and max_tokens > most:
        message = f"{context}, but {param} is {max_tokens}: lower it to {most} at most, or leave it out."
        raise _too_long(message, param)
    room = most - prompt_tokens
    if room < (0 if max_tokens == 0 else 1):
        problem = f"but the prompt has {prompt_tokens}, and the reply needs some too"
        raise _too_long(f"{context}, {problem}.", prompt_param)
    return room if max_tokens is None else min(room, max_tokens)


def _too_long(message: str, param: str) -> RequestError:
    return RequestError(message, param=param, code="context_length_exceeded")
