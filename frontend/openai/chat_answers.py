"""Chat completions as they are sent: a stream of chunks, or one message for each choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from ...runtime.config import ReasoningField
from ...runtime.messages import LeftOut, Tokens
from ..generation import Arrival
from ..text.prompt_memo import PromptMemo
from ..text.tokenizer import Tokenizer
from ..text.tool_calls import ToolCallDelta
from .chunks import ChunkWriter
from .message_parser import MessageParser, MessageParts
from .reply import Piece, Reply
from .responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    CompletionTokensDetails,
    FunctionCall,
    FunctionCallDelta,
    MessageDelta,
    PromptLogprobs,
    ToolCall,
    ToolCallPart,
    Usage,
)
from .token_logprobs import TokenLogprob, chat_logprobs, prompt_logprobs

_encode = msgspec.json.encode
_OPENING = b'"delta":{"role":"assistant","content":""}'


@dataclass(frozen=True)
class ChatContext:
    """What a chat request's answers have in common, whole or streamed."""

    request_id: str
    created: int
    model: str
    fingerprint: str
    tokenizer: Tokenizer
    memo: PromptMemo
    namespace: str | None
    prompt_text: str
    prompt: Tokens
    new_parser: Callable[[Sequence[LeftOut]], MessageParser]
    call_finish_reason: str
    wants_logprobs: bool
    wants_prompt_logprobs: bool
    counts_reasoning: bool
    shows_reasoning: bool
    reasoning_field: ReasoningField

    def usage(self, reply: Reply, choices: Sequence[ChatChoiceState]) -> Usage:
        usage = reply.usage()
        if self.counts_reasoning:
            reasoning_tokens = sum(choice.reasoning_tokens for choice in choices)
            usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens)
        return usage


class ChatChoiceState:
    """One choice: parses its text, and keeps its ids for the conversation's next turn.

    `reasoning_tokens` are counted up to the piece in which the reasoning ends.
    """

    def __init__(self, context: ChatContext, left_out: Sequence[LeftOut]) -> None:
        self._context = context
        self._parser = context.new_parser(left_out)
        self._texts: list[str] = []
        self.has_tool_calls = False
        self.reasoning_tokens = 0

    def push(self, piece: Piece, reply: Reply) -> MessageParts:
        self._texts.append(piece.text)
        had_reasoned = self._parser.has_reasoned
        parts = self._parser.push(piece.text, final=piece.finish is not None, cut=piece.is_cut)
        if self._parser.is_reasoning or self._parser.has_reasoned > had_reasoned:
            self.reasoning_tokens = piece.tokens
        self.has_tool_calls = self.has_tool_calls or bool(parts.tool_calls)
        if piece.finish is not None:
            self._remember(reply.choices[piece.choice].tokens)
        return parts if self._context.shows_reasoning else parts._replace(reasoning="")

    def finish_reason(self, finish: str) -> str:
        return self._context.call_finish_reason if self.has_tool_calls and finish == "stop" else finish

    def _remember(self, tokens: Tokens) -> None:
        context = self._context
        text = "".join(self._texts)
        context.memo.remember(context.namespace, context.prompt_text, context.prompt, text, tokens)


class ChatStream:
    """Chunks as OpenAI sends them. A choice's first one has its role and comes with its first output."""

    def __init__(self, context: ChatContext, reply: Reply, writer: ChunkWriter) -> None:
        self.reply = reply
        self._context = context
        self._writer = writer
        self._choices = [ChatChoiceState(context, reply.left_out) for _ in reply.choices]
        self._begun = [False for _ in reply.choices]

    def push(self, arrivals: Sequence[Arrival]) -> bytes:
        return b"".join(self._chunks(piece) for piece in self.reply.push(arrivals))

    def closing(self) -> bytes:
        return self._writer.end(self._usage(), self.reply.unenforced())

    def _usage(self) -> Usage:
        return self._context.usage(self.reply, self._choices)

    def _usage_so_far(self) -> Usage | None:
        return self._usage() if self._writer.continuous else None

    def _chunks(self, piece: Piece) -> bytes:
        choice = self._choices[piece.choice]
        parts = choice.push(piece, self.reply)
        chunk = self._delta_chunk(piece, parts)
        if piece.finish is None:
            return chunk
        reason = choice.finish_reason(piece.finish)
        return chunk + self._writer.choice(
            piece.choice,
            b'"delta":{}',
            finish=reason,
            stop_reason=self.reply.choices[piece.choice].stop_reason,
            usage=self._usage_so_far(),
        )

    def _delta_chunk(self, piece: Piece, parts: MessageParts) -> bytes:
        logprobs = chat_logprobs(self._context.tokenizer, piece.logprobs) if piece.logprobs else None
        is_empty = not any(parts) and logprobs is None
        if is_empty and (self._begun[piece.choice] or piece.finish is None):
            return b""
        before, opens_with_call = b"", False
        if not self._begun[piece.choice]:
            self._begun[piece.choice] = True
            opens_with_call = bool(parts.tool_calls) and not parts.content and not parts.reasoning
            if not opens_with_call:
                before = self._writer.choice(piece.choice, _OPENING, usage=self._usage_so_far())
        if is_empty:
            return before
        if parts.reasoning or parts.tool_calls:
            delta = _delta(parts, self._context.reasoning_field, opens_with_call=opens_with_call)
            payload = b'"delta":' + _encode(delta)
        else:
            payload = b'"delta":{"content":' + _encode(parts.content) + b"}"
        return before + self._writer.choice(
            piece.choice, payload, logprobs=logprobs, usage=self._usage_so_far()
        )


def _delta(parts: MessageParts, reasoning_field: ReasoningField, *, opens_with_call: bool) -> MessageDelta:
    """`opens_with_call`: the choice has said nothing before. OpenAI tells its role with the call, then."""
    return MessageDelta(
        role="assistant" if opens_with_call else UNSET,
        content=None if opens_with_call else (parts.content or UNSET),
        tool_calls=[_tool_call_part(delta) for delta in parts.tool_calls] or UNSET,
        reasoning_content=_if_named(reasoning_field, "reasoning_content", parts.reasoning),
        reasoning=_if_named(reasoning_field, "reasoning", parts.reasoning),
    )


def _if_named(field: ReasoningField, name: ReasoningField, text: str) -> str | UnsetType:
    """The reasoning, for the member `name`, if the server uses that one and there is any."""
    return text if text and field == name else UNSET


def _tool_call_part(delta: ToolCallDelta) -> ToolCallPart:
    function = FunctionCallDelta(delta.name, delta.arguments_fragment)
    if delta.id is None:
        return ToolCallPart(index=delta.index, function=function)
    return ToolCallPart(index=delta.index, id=delta.id, type="function", function=function)


class ChatWhole:
    """Collects everything; the body is made at the end."""

    def __init__(self, context: ChatContext, reply: Reply) -> None:
        self.reply = reply
        self._context = context
        self._choices = [ChatChoiceState(context, reply.left_out) for _ in reply.choices]
        self._messages = [MessageBuilder(context.reasoning_field) for _ in reply.choices]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in reply.choices]

    def push(self, arrivals: Sequence[Arrival]) -> bytes:
        for piece in self.reply.push(arrivals):
            self._messages[piece.choice].add(self._choices[piece.choice].push(piece, self.reply))
            self._logprobs[piece.choice].extend(piece.logprobs)
        return b""

    def closing(self) -> bytes:
        context = self._context
        return _encode(
            ChatCompletion(
                id=context.request_id,
                created=context.created,
                model=context.model,
                system_fingerprint=context.fingerprint,
                choices=[self._choice(index) for index in range(len(self.reply.choices))],
                usage=context.usage(self.reply, self._choices),
                unenforced=self.reply.unenforced(),
                prompt_logprobs=self._prompt_logprobs(),
            )
        )

    def _choice(self, index: int) -> ChatChoice:
        context, choice = self._context, self.reply.choices[index]
        assert choice.finish is not None
        logprobs = chat_logprobs(context.tokenizer, self._logprobs[index]) if context.wants_logprobs else None
        return ChatChoice(
            index=index,
            message=self._messages[index].message(),
            logprobs=logprobs,
            finish_reason=self._choices[index].finish_reason(choice.finish),
            stop_reason=choice.stop_reason,
        )

    def _prompt_logprobs(self) -> PromptLogprobs | UnsetType:
        context = self._context
        if not context.wants_prompt_logprobs:
            return UNSET
        return prompt_logprobs(context.tokenizer, context.prompt, self.reply.choices[0].prompt_logprobs)


class MessageBuilder:
    """A choice's message from its parts."""

    def __init__(self, reasoning_field: ReasoningField) -> None:
        self._reasoning_field = reasoning_field
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[ToolCall] = []

    def add(self, parts: MessageParts) -> None:
        self._content.append(parts.content)
        self._reasoning.append(parts.reasoning)
        for delta in parts.tool_calls:
            if delta.id is not None:
                self._tool_calls.append(ToolCall(delta.id, FunctionCall(delta.name or "", "")))
            self._tool_calls[delta.index].function.arguments += delta.arguments_fragment

    def message(self) -> AssistantMessage:
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        return AssistantMessage(
            content=None if self._tool_calls and not content else content,
            tool_calls=self._tool_calls or UNSET,
            reasoning_content=_if_named(self._reasoning_field, "reasoning_content", reasoning),
            reasoning=_if_named(self._reasoning_field, "reasoning", reasoning),
        )
