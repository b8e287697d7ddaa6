"""A server with OpenAI's API as the backend of programs."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import quote

import msgspec
import numpy as np

from ..engine.completion import ToolCall
from ..engine.scores import common_prefix
from .api_client import Usage, read_piece, read_usage
from .backend import ChatPrompt, Lease, OnText, Prompt, Reply, Scores, TextPrompt
from .errors import BackendError
from .http_client import CONNECTIONS, HttpClient
from .server_kinds import ServerKind, UnsupportedError, fields_for, has_choices_as_json, kind_of, read_choice
from .streamed_reply import StreamedReply

_backends: weakref.WeakSet[HttpBackend] = weakref.WeakSet()


def _begin_in_child() -> None:
    for backend in list(_backends):
        backend.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


class HttpBackend:
    """Sends calls to a server. A fork's child gets its own client, as connections can't be shared."""

    concurrency = CONNECTIONS

    def __init__(self, url: str, model: str | None, api_key: str | None) -> None:
        self._address = url, api_key
        self._wanted = model
        self._known: tuple[str, ServerKind] | None = None
        self._client = HttpClient(url, api_key)
        self._asking = asyncio.Lock()
        _backends.add(self)

    def begin_in_child(self) -> None:
        self._of_parent = self._client  # kept, because its deletion could end the parent's connections
        self._client = HttpClient(*self._address)
        self._asking = asyncio.Lock()

    async def reply(self, prompt: Prompt, sampling: Mapping[str, Any], on_text: OnText | None) -> Reply:
        model, kind = await self._server()
        is_chat = isinstance(prompt, ChatPrompt)
        fields = fields_for(kind, sampling, is_chat=is_chat)
        body = {"model": model, **_write_prompt(kind, prompt), **fields}
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        if has_choices_as_json(kind, sampling):
            reply = _read_reply(await self._client.request("POST", path, body))
            return _take_choice(reply, sampling["choices"], on_text)
        if on_text is None:
            return _read_reply(await self._client.request("POST", path, body))
        streamed_reply = StreamedReply(on_text)
        streamed = {**body, "stream_options": {"include_usage": True}}
        async with aclosing(self._client.pieces(path, streamed)) as pieces:
            async for piece in pieces:
                streamed_reply.take(piece)
        return streamed_reply.whole()

    async def score(self, prompt: Prompt, choices: Sequence[str], lease: Lease) -> Scores:
        model, kind = await self._server()
        if not kind.scores:
            raise UnsupportedError(
                f"{kind.name} is not known to score prompts, which select needs: connect to Arbora or vLLM, "
                "or use gen(…, choices=…) in a chat, which samples a choice."
            )
        texts = ("", *choices)
        tokens = await asyncio.gather(*(self._tokens(model, kind, prompt, text) for text in texts))
        first = first_scored(tokens[0], tokens[1:])
        body = {
            "model": model,
            "prompt": tokens[1:],
            "max_tokens": kind.least_tokens,
            "prompt_logprobs": 0,
            **fields_for(kind, {"cache_lease": lease}, is_chat=False),
            **({"prompt_logprobs_start": first} if kind.scores_from else {}),
        }
        answer = await self._client.request("POST", "/v1/completions", body)
        listed = sorted(answer["choices"], key=lambda choice: cast(int, choice["index"]))
        scored = zip(tokens[1:], listed, strict=True)
        means = tuple(_mean_logprob(ids, choice["prompt_logprobs"], first) for ids, choice in scored)
        return Scores(means, read_usage(answer) or Usage())

    async def prefill(self, prompt: Prompt, lease: Lease) -> Reply:
        model, kind = await self._server()
        tokens = await self._tokens(model, kind, prompt, "") if kind.scores else None
        sampling = {"max_tokens": kind.least_tokens, "cache_lease": lease}
        if tokens is None:
            return await self.reply(prompt, sampling, None)
        body = {"model": model, "prompt": tokens, **fields_for(kind, sampling, is_chat=False)}
        return _read_reply(await self._client.request("POST", "/v1/completions", body))

    async def end_session(self, session: str, cache_salt: str | None) -> None:
        if self._known is not None and self._known[1].sessions:
            salt = f"?cache_salt={quote(cache_salt, safe='')}" if cache_salt else ""
            await self._client.request("DELETE", f"/cache/lease/{session}{salt}")

    async def _tokens(self, model: str, kind: ServerKind, prompt: Prompt, text: str) -> list[int]:
        if isinstance(prompt, TextPrompt):
            body: dict[str, Any] = {"prompt": prompt.text + text}
        else:
            body = _write_prompt(kind, ChatPrompt(prompt.messages, prompt.prefix + text))
        return cast(
            list[int], (await self._client.request("POST", "/tokenize", {"model": model, **body}))["tokens"]
        )

    async def _server(self) -> tuple[str, ServerKind]:
        """The model's name, and the server's abilities."""
        async with self._asking:
            if self._known is None:
                listed = (await self._client.request("GET", "/v1/models"))["data"]
                names = [card["id"] for card in listed]
                if not names or self._wanted not in (None, *names):
                    raise BackendError(
                        f"{self._client.url} serves {', '.join(names) or 'no model'}, but the program asks "
                        f"for {self._wanted or 'any'}."
                    )
                name = self._wanted or names[0]
                owners = {card["id"]: card.get("owned_by", "") for card in listed}
                self._known = name, kind_of(owners[name])
            return self._known


def connect(url: str, *, model: str | None = None, api_key: str | None = None) -> HttpBackend:
    """A server as a backend: Arbora, or another with OpenAI's API.

    The default `model` is the first one that it lists. A statement that needs a missing ability raises an
    error that names it. Raises ValueError for an invalid URL.
    """
    return HttpBackend(url, model, api_key)


def _write_prompt(kind: ServerKind, prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, TextPrompt):
        return {"prompt": prompt.text}
    if not prompt.prefix:
        return {"messages": prompt.whole()}
    if not kind.continues:
        raise UnsupportedError(
            f"{kind.name} is not known to continue a begun reply: put gen or select first in "
            "arbora.assistant(…)."
        )
    return {"messages": prompt.whole(), "continue_final_message": True, "add_generation_prompt": False}


def _read_reply(answer: dict[str, Any]) -> Reply:
    whole = read_piece(answer)
    return Reply(
        text=whole.text,
        reasoning=whole.reasoning,
        tool_calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in whole.tool_calls),
        finish_reason=whole.finish_reason or "",
        usage=whole.usage or Usage(),
    )


def _take_choice(reply: Reply, choices: Sequence[str], on_text: OnText | None) -> Reply:
    """The reply with the choice as its text, instead of the JSON around the choice."""
    if reply.tool_calls:
        return reply
    choice = read_choice(reply.text, choices)
    if on_text is not None:
        on_text(choice)
    return msgspec.structs.replace(reply, text=choice)


def _mean_logprob(tokens: Sequence[int], logprobs: Sequence[Mapping[str, Any] | None], first: int) -> float:
    """The mean log-probability of the tokens, beginning at position `first`."""
    total = 0.0
    for token, entries in zip(tokens[first:], logprobs[first:], strict=True):
        assert entries is not None, "only positions before the first scored one have no log-probability"
        total += entries[str(token)]["logprob"]
    return total / (len(tokens) - first)


def first_scored(prompt: Sequence[int], candidates: Sequence[Sequence[int]]) -> int:
    """The length of the longest prefix that the prompt's tokens share with those of every candidate, which
    are the prompt with a choice.

    A choice may merge with the prompt's last token, which is then scored too. Raises ValueError if nothing is
    shared, as the first token of all has no probability, and for a choice without a token of its own.
    """
    first = common_prefix([np.array(tokens, np.int32) for tokens in (prompt, *candidates)])
    if first == 0:
        raise ValueError("select needs text before it: nothing predicts the first token of all.")
    for number, candidate in enumerate(candidates, 1):
        if len(candidate) == first:
            raise ValueError(
                f"choice {number} adds no token to the prompt: the chat template drops its text, such as "
                "white space at the end. Remove this choice."
            )
    return first
