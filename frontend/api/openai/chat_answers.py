"""Chat completions on the wire: a stream of chunks, or one message for each choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from ....runtime.config import ReasoningField
from ....runtime.messages import Tokens
from ...core.logprobs import TokenLogprob
from ...core.reply import ChoiceReply, Piece, Reply
from ...core.text.tokenizer import Tokenizer
from ...core.tools.tool_calls import ToolCallDelta
from .chunks import ChunkWriter, Head
from .responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    FunctionCall,
    FunctionCallDelta,
    MessageDelta,
    PromptLogprobs,
    ToolCall,
    ToolCallPart,
    Usage,
    wire_usage,
)
from .token_logprobs import chat_logprobs, prompt_logprobs

_encode = msgspec.json.encode
_OPENING = b'"delta":{"role":"assistant","content":""}'
_AROUND_CONTENT = (b'"delta":{"content":', b"}")


@dataclass(frozen=True)
class ChatContext:
    """The facts about a chat request that its answer needs, streamed or whole. `prompt` is in tokens."""

    head: Head
    tokenizer: Tokenizer
    prompt: Tokens
    call_finish_reason: str
    wants_logprobs: bool
    wants_prompt_logprobs: bool
    counts_reasoning: bool
    shows_reasoning: bool
    reasoning_field: ReasoningField

    def usage(self, reply: Reply) -> Usage:
        return wire_usage(reply, counts_reasoning=self.counts_reasoning)

    def finish_reason(self, choice: ChoiceReply) -> str | None:
        return self.call_finish_reason if choice.has_tool_calls and choice.finish == "stop" else choice.finish

    def shown(self, piece: Piece) -> Piece:
        return piece if self.shows_reasoning else piece._replace(reasoning="")


class ChatStream:
    """Chunks in OpenAI's form. A choice's first chunk has its role and is sent with its first output."""

    def __init__(self, context: ChatContext, reply: Reply, writer: ChunkWriter) -> None:
        self.reply = reply
        self._context = context
        self._writer = writer
        self._begun = [False for _ in reply.choices]
        self._around = [writer.around(index, *_AROUND_CONTENT) for index in range(len(reply.choices))]

    def take(self, pieces: Sequence[Piece]) -> bytes:
        return b"".join(map(self._chunks, pieces))

    def closing(self) -> bytes:
        return self._writer.end(self._usage(), self.reply.unenforced(), self.reply.explanation)

    def _usage(self) -> Usage:
        return self._context.usage(self.reply)

    def _usage_so_far(self) -> Usage | None:
        return self._usage() if self._writer.continuous else None

    def _chunks(self, piece: Piece) -> bytes:
        if self._only_adds_content(piece):
            before, after = self._around[piece.choice]
            return before + _encode(piece.content) + after
        chunk = self._delta_chunk(self._context.shown(piece))
        if piece.finish is None:
            return chunk
        choice = self.reply.choices[piece.choice]
        return chunk + self._writer.choice(
            piece.choice,
            b'"delta":{}',
            finish=self._context.finish_reason(choice),
            stop_reason=choice.stop_reason,
            usage=self._usage_so_far(),
        )

    def _only_adds_content(self, piece: Piece) -> bool:
        choice, content, logprobs, finish, reasoning, calls = piece
        has_more = logprobs or finish or reasoning or calls or self._writer.continuous
        return bool(content) and not has_more and self._begun[choice]

    def _delta_chunk(self, piece: Piece) -> bytes:
        logprobs = chat_logprobs(self._context.tokenizer, piece.logprobs) if piece.logprobs else None
        is_empty = not (piece.content or piece.reasoning or piece.tool_calls) and logprobs is None
        if is_empty and (self._begun[piece.choice] or piece.finish is None):
            return b""
        before, opens_with_call = b"", False
        if not self._begun[piece.choice]:
            self._begun[piece.choice] = True
            opens_with_call = bool(piece.tool_calls) and not piece.content and not piece.reasoning
            if not opens_with_call:
                before = self._writer.choice(piece.choice, _OPENING, usage=self._usage_so_far())
        if is_empty:
            return before
        if piece.reasoning or piece.tool_calls:
            delta = _delta(piece, self._context.reasoning_field, opens_with_call=opens_with_call)
            payload = b'"delta":' + _encode(delta)
        else:
            payload = _encode(piece.content).join(_AROUND_CONTENT)
        return before + self._writer.choice(
            piece.choice, payload, logprobs=logprobs, usage=self._usage_so_far()
        )


def _delta(piece: Piece, reasoning_field: ReasoningField, *, opens_with_call: bool) -> MessageDelta:
    """`opens_with_call`: the choice begins with a call, so OpenAI sends its role with the call."""
    return MessageDelta(
        role="assistant" if opens_with_call else UNSET,
        content=None if opens_with_call else (piece.content or UNSET),
        tool_calls=[_tool_call_part(delta) for delta in piece.tool_calls] or UNSET,
        reasoning_content=_if_named(reasoning_field, "reasoning_content", piece.reasoning),
        reasoning=_if_named(reasoning_field, "reasoning", piece.reasoning),
    )


def _if_named(field: ReasoningField, name: ReasoningField, text: str) -> str | UnsetType:
    """`text`, the reasoning, if there is any and the server's field for it is `name`."""
    return text if text and field == name else UNSET


def _tool_call_part(delta: ToolCallDelta) -> ToolCallPart:
    function = FunctionCallDelta(delta.name, delta.arguments_fragment)
    if delta.id is None:
        return ToolCallPart(index=delta.index, function=function)
    return ToolCallPart(index=delta.index, id=delta.id, type="function", function=function)


class ChatWhole:
    """Collects all pieces, and makes the body at the end."""

    def __init__(self, context: ChatContext, reply: Reply) -> None:
        self.reply = reply
        self._context = context
        self._messages = [MessageBuilder(context.reasoning_field) for _ in reply.choices]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in reply.choices]

    def take(self, pieces: Sequence[Piece]) -> bytes:
        for piece in pieces:
            self._messages[piece.choice].add(self._context.shown(piece))
            self._logprobs[piece.choice].extend(piece.logprobs)
        return b""

    def closing(self) -> bytes:
        context = self._context
        return _encode(
            ChatCompletion(
                **context.head._asdict(),
                choices=[self._choice(index) for index in range(len(self.reply.choices))],
                usage=context.usage(self.reply),
                unenforced=self.reply.unenforced() or UNSET,
                cache_explanation=self.reply.explanation or UNSET,
                prompt_logprobs=self._prompt_logprobs(),
            )
        )

    def _choice(self, index: int) -> ChatChoice:
        context, choice = self._context, self.reply.choices[index]
        logprobs = chat_logprobs(context.tokenizer, self._logprobs[index]) if context.wants_logprobs else None
        return ChatChoice(
            index=index,
            message=self._messages[index].message(),
            logprobs=logprobs,
            finish_reason=context.finish_reason(choice),
            stop_reason=choice.stop_reason,
        )

    def _prompt_logprobs(self) -> PromptLogprobs | UnsetType:
        context = self._context
        if not context.wants_prompt_logprobs:
            return UNSET
        return prompt_logprobs(context.tokenizer, context.prompt, self.reply.choices[0].prompt_logprobs)


class MessageBuilder:
    """Joins a choice's pieces into its message."""

    def __init__(self, reasoning_field: ReasoningField) -> None:
        self._reasoning_field = reasoning_field
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[ToolCall] = []

    def add(self, piece: Piece) -> None:
        self._content.append(piece.content)
        self._reasoning.append(piece.reasoning)
        for delta in piece.tool_calls:
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
