"""An `Engine` as the backend of programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.completion import Completion
from ..engine.engine import Engine
from .api_client import Usage
from .backend import ChatPrompt, Lease, OnText, Prompt, Reply, Scores, TextPrompt
from .streamed_reply import StreamedReply

CONCURRENCY = 256
TEXT_TOKENS = 16  # maximum tokens of a completion without `max_tokens`, as in OpenAI's API


class EngineBackend:
    concurrency = CONCURRENCY

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def reply(self, prompt: Prompt, sampling: Mapping[str, Any], on_text: OnText | None) -> Reply:
        options = _options(prompt, sampling)
        if on_text is not None:
            return await self._streamed(prompt, options, on_text)
        if isinstance(prompt, TextPrompt):
            return _reply(await self._engine.agenerate(prompt.text, **options))
        return _reply(await self._engine.achat(prompt.whole(), **options))

    async def score(self, prompt: Prompt, choices: Sequence[str], lease: Lease) -> Scores:
        text = prompt.text if isinstance(prompt, TextPrompt) else prompt.whole()
        scores = await self._engine.ascore(text, choices, cache_lease=lease)
        prompt_tokens = sum(score.usage.prompt_tokens for score in scores)
        cached_tokens = sum(score.usage.cached_tokens for score in scores)
        return Scores(tuple(score.mean for score in scores), Usage(prompt_tokens, cached_tokens))

    async def prefill(self, prompt: Prompt, lease: Lease) -> Reply:
        if isinstance(prompt, TextPrompt):
            return _reply(await self._engine.agenerate(prompt.text, max_tokens=0, cache_lease=lease))
        tokens = await self._engine.atokenize(prompt.whole(), **_continuing(prompt))
        return _reply(await self._engine.agenerate(tokens, max_tokens=0, cache_lease=lease))

    async def end_session(self, session: str, cache_salt: str | None) -> None:
        await self._engine.aend_lease(session, cache_salt)

    async def _streamed(self, prompt: Prompt, options: dict[str, Any], on_text: OnText) -> Reply:
        if isinstance(prompt, TextPrompt):
            parts = self._engine.astream(prompt.text, **options)
        else:
            parts = self._engine.astream_chat(prompt.whole(), **options)
        reply = StreamedReply(on_text)
        async for part in parts:
            reply.take(part)
        return reply.whole()


def _options(prompt: Prompt, sampling: Mapping[str, Any]) -> dict[str, Any]:
    options = {("choice" if name == "choices" else name): value for name, value in sampling.items()}
    if isinstance(prompt, TextPrompt):
        return {"max_tokens": TEXT_TOKENS, **options}
    return {**_continuing(prompt), **options}


def _continuing(prompt: ChatPrompt) -> dict[str, Any]:
    return {"continue_final_message": True} if prompt.prefix else {}


def _reply(completion: Completion) -> Reply:
    return Reply(
        text=completion.text,
        reasoning=completion.reasoning,
        tool_calls=tuple(completion.tool_calls),
        finish_reason=completion.finish_reason,
        usage=completion.usage,
    )
