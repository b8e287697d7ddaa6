"""The objects that serve every request, built once at start-up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib.metadata import version

from ...runtime.config import ServeConfig
from ...runtime.errors import RequestError
from ...runtime.messages import Adapter, ForgetPrompts, FromTokenizer, RememberReply, Tokens
from .cache_misses.recent_prompts import RecentPrompts
from .replica.engine_client import EngineClient
from .text.chat_template import ChatTemplate
from .text.close_names import close_name
from .text.prompt_memo import PromptMemo
from .text.prompt_rules import PromptRules
from .text.reasoning import ReasoningFormat, detect_reasoning
from .text.tokenizer import Tokenizer
from .tools.call_format import ToolFormat
from .tools.response_template import read_response_template
from .tools.tool_formats import detect_format
from .work.permits import Permits
from .work.thread_pool import FairThreadPool

VERSION = version("arbora")  # read at start, because later no file descriptor may be free


@dataclass(frozen=True)
class Service:
    config: ServeConfig
    engine: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate | None
    memo: PromptMemo
    reasoning: ReasoningFormat | None
    tool_format: ToolFormat
    fingerprint: str
    work: FairThreadPool
    permits: Permits
    """for the choices and inputs that this process may have in the scheduler, where those of a request can
    wait here"""
    recent: RecentPrompts = field(default_factory=RecentPrompts)
    started: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def load(
        cls,
        config: ServeConfig,
        engine: EngineClient,
        tokenizer: Tokenizer,
        work: FairThreadPool | None = None,
    ) -> Service:
        """Makes the service of a model; `work` is the thread pool of the server's first model."""
        rules = PromptRules(config.prompt_rules)
        template = ChatTemplate.load(config.model, tokenizer, rules, config.chat_template)
        declared = read_response_template(template and template.response_template)
        reasoning = detect_reasoning(template, tokenizer, declared.reasoning)
        memo = PromptMemo(tokenizer, keeps_replies=not config.deterministic)
        tools, mark = detect_format(template), fingerprint(config)
        permits = Permits(config.max_waiting)
        service = cls(
            config,
            engine,
            tokenizer,
            template,
            memo,
            reasoning,
            tools,
            mark,
            work or FairThreadPool(),
            permits,
        )
        engine.on_shared = partial(_take_shared, memo, service.recent)
        return service

    def remember(
        self, namespace: str | None, prompt_text: str, prompt: Tokens, reply_text: str, reply: Tokens
    ) -> None:
        """Remembers the token ids of a reply in all HTTP processes."""
        self.memo.remember(namespace, prompt_text, prompt, reply_text, reply)
        if namespace is not None:
            self.engine.share(RememberReply(namespace, prompt_text, prompt, reply_text, reply))

    def forget_prompts(self, scope: str, namespace: str | None) -> None:
        """Forgets the token ids of one namespace, or of all namespaces in `scope`, in all HTTP processes."""
        forget = ForgetPrompts(scope, namespace)
        _take_shared(self.memo, self.recent, forget)
        self.engine.share(forget)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the model, then those of its adapters."""
        return (*self.config.model_names, *self.engine.adapters)

    def find_adapter(self, name: str | None) -> Adapter | None:
        """The adapter of this name; None for the model itself. Raises as `check_model`."""
        self.check_model(name)
        return None if name is None or name in self.config.model_names else self.engine.adapters.get(name)

    def check_model(self, name: str | None) -> None:
        """Raises a 404 `RequestError` for a model or adapter that isn't served. An empty name counts as none,
        and with `--any-model-name` an unknown one as the model's."""
        served = self.model_names
        if name and name not in served and not self.config.any_model_name:
            raise unknown_model(name, served)


def unknown_model(name: str, served: Sequence[str]) -> RequestError:
    """The error for a model that the server does not have."""
    near = close_name(name, served)
    meant = f" Did you mean {near!r}?" if near is not None else ""
    return RequestError(
        f"The model {name!r} does not exist; this server serves {' and '.join(map(repr, served))}.{meant}",
        status=404,
        param="model",
        code="model_not_found",
    )


def _take_shared(memo: PromptMemo, recent: RecentPrompts, message: FromTokenizer) -> None:
    if isinstance(message, RememberReply):
        memo.remember(
            message.namespace, message.prompt_text, message.prompt, message.reply_text, message.reply
        )
        return
    scope, namespace = message.scope, message.namespace

    def concerned(name: str) -> bool:
        return name.startswith(scope) if namespace is None else name == namespace

    memo.drop(concerned)
    recent.drop(concerned)


def fingerprint(config: ServeConfig) -> str:
    """OpenAI's `system_fingerprint`: while it stays the same, a seed gives the same reply."""
    mode = ("deterministic",) if config.deterministic else ()
    stored = (config.dtype, config.kv_dtype, config.quantize or "")
    template = () if config.chat_template is None else (config.chat_template,)
    parts = (VERSION, config.model.name, config.device, *stored, *mode, *template)
    return "fp_" + sha256("/".join(parts).encode()).hexdigest()[:12]
