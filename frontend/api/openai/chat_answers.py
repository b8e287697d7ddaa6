"""Chat completions on the wire: a stream of chunks, or one message for each choice."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from ....runtime.config import ReasoningField
from ....runtime.messages import Tokens
from ...core.parts import Piece
from ...core.reply import ChoiceReply, Reply
from ...core.text.tokenizer import Tokenizer
from ...core.tools.reply_parser import ToolCallDelta
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
    """The facts about a chat request that its answer needs, streamed or whole. `prompt` holds the prompt's
    token ids."""

    head: Head
    tokenizer: Tokenizer
    prompt: Tokens
    call_finish_reason: str
    wants_logprobs: bool
    wants_prompt_logprobs: bool
    counts_reasoning: bool
    counts_prediction: bool
    shows_reasoning: bool
    reasoning_field: ReasoningField

    def usage(self, reply: Reply) -> Usage:
        return wire_usage(
            reply, counts_reasoning=self.counts_reasoning, counts_prediction=self.counts_prediction
        )

    def finish_reason(self, choice: ChoiceReply) -> str | None:
        return self.call_finish_reason if choice.has_tool_calls and choice.finish == "stop" else choice.finish

    def shown(self, piece: Piece) -> Piece:
        return piece if self.shows_reasoning else piece._replace(reasoning="")

    def body(self, reply: Reply) -> bytes:
        """The body of an answer that is not streamed."""
        logprobs: PromptLogprobs | UnsetType = UNSET
        if self.wants_prompt_logprobs:
            logprobs = prompt_logprobs(self.tokenizer, self.prompt, reply.choices[0].prompt_logprobs)
        return _encode(
            ChatCompletion(
                **self.head._asdict(),
                choices=[self._choice(index, choice) for index, choice in enumerate(reply.choices)],
                usage=self.usage(reply),
                unenforced=reply.unenforced() or UNSET,
                cache_explanation=reply.explanation or UNSET,
                prompt_logprobs=logprobs,
            )
        )

    def _choice(self, index: int, choice: ChoiceReply) -> ChatChoice:
        content, reasoning = choice.parts.text("text"), choice.parts.text("reasoning")
        shown = reasoning if self.shows_reasoning else ""
        calls = [ToolCall(each.id, FunctionCall(each.name, each.text)) for each in choice.parts.calls()]
        return ChatChoice(
            index=index,
            message=AssistantMessage(
                content=None if calls and not content else content,
                tool_calls=calls or UNSET,
                reasoning_content=_if_named(self.reasoning_field, "reasoning_content", shown),
                reasoning=_if_named(self.reasoning_field, "reasoning", shown),
            ),
            logprobs=chat_logprobs(self.tokenizer, choice.logprobs) if self.wants_logprobs else None,
            finish_reason=self.finish_reason(choice),
            stop_reason=choice.stop_reason,
        )


class ChatStream:
    """Chunks in OpenAI's form. A choice's first chunk has its role and is sent with its first output."""

    def __init__(self, context: ChatContext, reply: Reply, writer: ChunkWriter) -> None:
        self._context = context
        self._reply = reply
        self._writer = writer
        self._begun = [False for _ in reply.choices]
        self._around = [writer.around(index, *_AROUND_CONTENT) for index in range(len(reply.choices))]

    def around_text(self, choice: int) -> tuple[bytes, bytes] | None:
        return self._around[choice] if self._begun[choice] and not self._writer.continuous else None

    def push(self, piece: Piece) -> bytes:
        chunk = self._delta_chunk(self._context.shown(piece))
        if piece.finish is None:
            return chunk
        choice = self._reply.choices[piece.choice]
        return chunk + self._writer.choice(
            piece.choice,
            b'"delta":{}',
            finish=self._context.finish_reason(choice),
            stop_reason=choice.stop_reason,
            usage=self._usage_so_far(),
        )

    def end(self) -> bytes:
        return self._writer.end(self._context.usage(self._reply), self._reply)

    def _usage_so_far(self) -> Usage | None:
        return self._context.usage(self._reply) if self._writer.continuous else None

    def _delta_chunk(self, piece: Piece) -> bytes:
        logprobs = chat_logprobs(self._context.tokenizer, piece.logprobs) if piece.logprobs else None
        is_empty = not (piece.content or piece.reasoning or piece.deltas) and logprobs is None
        if is_empty and (self._begun[piece.choice] or piece.finish is None):
            return b""
        before, opens_with_call = b"", False
        if not self._begun[piece.choice]:
            self._begun[piece.choice] = True
            opens_with_call = bool(piece.deltas) and not piece.content and not piece.reasoning
            if not opens_with_call:
                before = self._writer.choice(piece.choice, _OPENING, usage=self._usage_so_far())
        if is_empty:
            return before
        if piece.reasoning or piece.deltas:
            delta = _delta(piece, self._context.reasoning_field, opens_with_call=opens_with_call)
            payload = b'"delta":' + _encode(delta)
        else:
            payload = _encode(piece.content).join(_AROUND_CONTENT)
        return before + self._writer.choice(
            piece.choice, payload, logprobs=logprobs, usage=self._usage_so_far()
        )


def _delta(piece: Piece, reasoning_field: ReasoningField, *, opens_with_call: bool) -> MessageDelta:
    """A chunk's delta. `opens_with_call`: the choice begins with a call, so OpenAI adds the role to it."""
    return MessageDelta(
        role="assistant" if opens_with_call else UNSET,
        content=None if opens_with_call else (piece.content or UNSET),
        tool_calls=[_tool_call_part(delta) for delta in piece.tool_calls] or UNSET,
        reasoning_content=_if_named(reasoning_field, "reasoning_content", piece.reasoning),
        reasoning=_if_named(reasoning_field, "reasoning", piece.reasoning),
    )


def _if_named(field: ReasoningField, name: ReasoningField, text: str) -> str | UnsetType:
    """The reasoning `text` if it is not empty and the server's field for it is `name`; else unset."""
    return text if text and field == name else UNSET


def _tool_call_part(delta: ToolCallDelta) -> ToolCallPart:
    function = FunctionCallDelta(delta.name, delta.arguments_fragment)
    if delta.id is None:
        return ToolCallPart(index=delta.index, function=function)
    return ToolCallPart(index=delta.index, id=delta.id, type="function", function=function)
