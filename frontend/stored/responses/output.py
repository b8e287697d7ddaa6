"""Turns the pieces of a reply into the items of a response, and tells what changes in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import UNSET

from ...api.openai.responses import ContentLogprob
from ...api.openai.token_logprobs import chat_logprobs
from ...core.logprobs import TokenLogprob
from ...core.reply import Piece
from ...core.text.tokenizer import Tokenizer
from ...core.tools.tool_calls import ToolCallDelta
from .ids import item_id
from .input_text import InputText
from .reasoning import encoded
from .responses import (
    CustomToolCall,
    FunctionCall,
    LocalShellCall,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from .tools import Called

MoreKind = Literal["reasoning_text", "output_text", "function_call_arguments", "custom_tool_call_input"]


class Added(NamedTuple):
    """An item begins."""

    item: OutputItem


class More(NamedTuple):
    """More text of the open item."""

    kind: MoreKind
    text: str
    logprobs: Sequence[ContentLogprob] = ()


class Done(NamedTuple):
    """The open item ends."""

    item: OutputItem


Change = Added | More | Done


class Output:
    """The items of one response. At most one is open: a piece of another kind, or of another call, ends it.

    `called` has each tool by its name in the prompt. `encodes`: reasoning items have `encrypted_content`.
    """

    def __init__(self, called: Mapping[str, Called], tokenizer: Tokenizer, *, encodes: bool) -> None:
        self.items: list[OutputItem] = []
        self._called = called
        self._tokenizer = tokenizer
        self._encodes = encodes
        self._open: OutputItem | None = None
        self._texts: list[str] = []
        self._input = InputText()
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text has not come yet
        self._shown: list[ContentLogprob] = []

    def push(self, piece: Piece) -> Iterator[Change]:
        if piece.reasoning:
            yield from self._reasoning(piece.reasoning)
        if piece.reasoning or piece.tool_calls:
            self._logprobs.clear()
        else:
            self._logprobs.extend(piece.logprobs)
        if piece.content:
            yield from self._content(piece.content)
        for delta in piece.tool_calls:
            yield from self._call(delta)

    def push_text(self, piece: Piece) -> bool:
        """Adds a piece of plain text to the open message. Returns False, and adds nothing, if the piece has
        more than text or no message is open; such a piece goes to `push`."""
        _, content, logprobs, _, reasoning, calls = piece
        if not content or logprobs or reasoning or calls or self._logprobs:
            return False
        if not isinstance(self._open, OutputMessage):
            return False
        self._texts.append(content)
        return True

    def end(self, *, is_cut: bool) -> Iterator[Change]:
        """The reply has ended. `is_cut`: a limit ended it."""
        yield from self._close("incomplete" if is_cut else "completed")

    def _begin(self, item: OutputItem) -> Iterator[Change]:
        yield from self._close("completed")
        self._open = item
        self.items.append(item)
        yield Added(item)

    def _reasoning(self, text: str) -> Iterator[Change]:
        if not isinstance(self._open, ReasoningItem):
            yield from self._begin(
                ReasoningItem(
                    id=item_id("reasoning"),
                    status="in_progress",
                    content=[],
                    encrypted_content="" if self._encodes else UNSET,
                )
            )
        self._texts.append(text)
        yield More("reasoning_text", text)

    def _content(self, text: str) -> Iterator[Change]:
        if not isinstance(self._open, OutputMessage):
            self._keep_logprobs_of(text)
            yield from self._begin(OutputMessage(id=item_id("message"), status="in_progress", content=[]))
        self._texts.append(text)
        yield More("output_text", text, self._take_logprobs())

    def _keep_logprobs_of(self, text: str) -> None:
        """Leaves out the tokens before the text, such as the end of the reasoning."""
        size = len(text.encode())
        first = len(self._logprobs)
        while first and size > 0:
            first -= 1
            size -= len(self._tokenizer.token_bytes(self._logprobs[first].token))
        del self._logprobs[:first]

    def _take_logprobs(self) -> list[ContentLogprob]:
        if not self._logprobs:
            return []
        found = list(chat_logprobs(self._tokenizer, self._logprobs).content)
        self._logprobs.clear()
        self._shown += found
        return found

    def _call(self, delta: ToolCallDelta) -> Iterator[Change]:
        if delta.id is not None:
            yield from self._begin(self._new_call(delta.id, delta.name or ""))
        fragment = delta.arguments_fragment
        match self._open:
            case FunctionCall() if fragment:
                self._texts.append(fragment)
                yield More("function_call_arguments", fragment)
            case CustomToolCall():
                text = self._input.feed(fragment)
                self._texts.append(text)
                if text:
                    yield More("custom_tool_call_input", text)
            case LocalShellCall():
                self._texts.append(fragment)

    def _new_call(self, call_id: str, prompt_name: str) -> OutputItem:
        kind, name, namespace = self._called[prompt_name]
        if kind == "local_shell":
            action: dict[str, object] = {"type": "exec", "command": [], "env": {}}
            return LocalShellCall(
                id=item_id("local_shell_call"), status="in_progress", call_id=call_id, action=action
            )
        if kind == "custom":
            self._input = InputText()
            return CustomToolCall(
                id=item_id("custom_tool_call"),
                status="in_progress",
                call_id=call_id,
                name=name,
                namespace=namespace or UNSET,
            )
        return FunctionCall(
            id=item_id("function_call"),
            status="in_progress",
            call_id=call_id,
            name=name,
            namespace=namespace or UNSET,
        )

    def _close(self, status: Literal["completed", "incomplete"]) -> Iterator[Change]:
        item, self._open = self._open, None
        if item is None:
            return
        text = "".join(self._texts)
        self._texts.clear()
        match item:
            case OutputMessage():
                self._take_logprobs()
                item.content = [OutputText(text=text, logprobs=self._shown)]
                self._shown = []
            case ReasoningItem():
                item.content = [ReasoningText(text)]
                item.encrypted_content = encoded(text) if self._encodes else UNSET
            case FunctionCall():
                item.arguments = text
            case CustomToolCall():
                item.input = text
            case LocalShellCall():
                item.action = {**item.action, **_action(text)}
        item.status = status
        yield Done(item)


def _action(arguments: str) -> dict[str, object]:
    """The command of a shell call; none if a limit cut it."""
    try:
        found: dict[str, object] = json.loads(arguments)
    except ValueError:
        return {"command": []}
    return found
