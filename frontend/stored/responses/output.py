"""Turns the pieces of a reply into the items of a response, and tells what changes in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import UNSET

from ...api.openai.responses import ContentLogprob
from ...api.openai.token_logprobs import chat_logprobs
from ...core.logprobs import TokenLogprob
from ...core.parts import Begun, Ended, Part, Parts, Piece
from ...core.parts import More as PartMore
from ...core.text.tokenizer import Tokenizer
from .protocol import new_item_id
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

_BEFORE_INPUT = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_INPUT = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_HIGH_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")


class Added(NamedTuple):
    """A change: an item begins."""

    item: OutputItem


class More(NamedTuple):
    """A change: the open item gets more text."""

    kind: MoreKind
    text: str
    logprobs: Sequence[ContentLogprob] = ()


class Done(NamedTuple):
    """A change: the open item ends."""

    item: OutputItem


Change = Added | More | Done


class Output:
    """The items of one response, one for each part of its reply.

    `called` has each tool by its name in the prompt. `encodes`: reasoning items have `encrypted_content`.
    """

    def __init__(self, called: Mapping[str, Called], tokenizer: Tokenizer, *, encodes: bool) -> None:
        self.items: list[OutputItem] = []
        self._called = called
        self._tokenizer = tokenizer
        self._encodes = encodes
        self._parts = Parts()
        self._input = _InputText()
        self._inputs: list[str] = []  # fragments of a custom tool's input
        self._logprobs: list[TokenLogprob] = []  # entries of tokens whose text has not come yet
        self._shown: list[ContentLogprob] = []

    def push(self, piece: Piece) -> Iterator[Change]:
        if piece.reasoning or piece.deltas:
            self._logprobs.clear()
        else:
            self._logprobs.extend(piece.logprobs)
        for change in self._parts.push(piece):
            match change:
                case Begun(part):
                    if part.kind == "text":
                        self._keep_logprobs_of(piece.content)
                    self.items.append(self._new_item(part))
                    yield Added(self.items[-1])
                case PartMore(part, text):
                    yield from self._more(part, text)
                case Ended(part):
                    yield self._complete(part, "completed")

    def push_text(self, piece: Piece) -> bool:
        """Adds a piece of plain text to the open message. Returns False, and adds nothing, if the piece has
        more than text or no message is open; such a piece goes to `push`."""
        return piece.is_text_alone and not self._logprobs and self._parts.add_text(piece.content)

    def end(self, *, is_cut: bool) -> Iterator[Change]:
        """Ends the open item at the reply's end. `is_cut`: a limit ended the reply."""
        for change in self._parts.end():
            yield self._complete(change.part, "incomplete" if is_cut else "completed")

    def _more(self, part: Part, text: str) -> Iterator[Change]:
        match self.items[-1]:
            case ReasoningItem():
                yield More("reasoning_text", text)
            case OutputMessage():
                yield More("output_text", text, self._take_logprobs())
            case FunctionCall():
                yield More("function_call_arguments", text)
            case CustomToolCall():
                shown = self._input.feed(text)
                self._inputs.append(shown)
                if shown:
                    yield More("custom_tool_call_input", shown)

    def _keep_logprobs_of(self, text: str) -> None:
        """Keeps the text's log-probabilities. Drops those of tokens before it, such as reasoning's end."""
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

    def _new_item(self, part: Part) -> OutputItem:
        match part.kind:
            case "call":
                return self._new_call(part.id, part.name)
            case "text":
                return OutputMessage(id=new_item_id("message"), status="in_progress", content=[])
            case "reasoning":
                return ReasoningItem(
                    id=new_item_id("reasoning"),
                    status="in_progress",
                    content=[],
                    encrypted_content="" if self._encodes else UNSET,
                )

    def _new_call(self, call_id: str, prompt_name: str) -> OutputItem:
        kind, name, namespace = self._called[prompt_name]
        if kind == "local_shell":
            action: dict[str, object] = {"type": "exec", "command": [], "env": {}}
            return LocalShellCall(
                id=new_item_id("local_shell_call"), status="in_progress", call_id=call_id, action=action
            )
        if kind == "custom":
            self._input, self._inputs = _InputText(), []
            return CustomToolCall(
                id=new_item_id("custom_tool_call"),
                status="in_progress",
                call_id=call_id,
                name=name,
                namespace=namespace or UNSET,
            )
        return FunctionCall(
            id=new_item_id("function_call"),
            status="in_progress",
            call_id=call_id,
            name=name,
            namespace=namespace or UNSET,
        )

    def _complete(self, part: Part, status: Literal["completed", "incomplete"]) -> Done:
        item = self.items[-1]
        match item:
            case OutputMessage():
                self._take_logprobs()
                item.content = [OutputText(text=part.text, logprobs=self._shown)]
                self._shown = []
            case ReasoningItem():
                item.content = [ReasoningText(part.text)]
                item.encrypted_content = encoded(part.text) if self._encodes else UNSET
            case FunctionCall():
                item.arguments = part.text
            case CustomToolCall():
                item.input = "".join(self._inputs)
            case LocalShellCall():
                item.action = {**item.action, **_action(part.text)}
        item.status = status
        return Done(item)


def _action(arguments: str) -> dict[str, object]:
    """The command of a shell call; none if a limit cut it."""
    try:
        found: dict[str, object] = json.loads(arguments)
    except ValueError:
        return {"command": []}
    return found


class _InputText:
    """Reads the input of a custom tool out of the JSON of its call while the JSON arrives.

    It is the string `input` of an object that has nothing else. Text after the string is left out.
    """

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False

    def feed(self, fragment: str) -> str:
        """The characters of the input that are complete."""
        self._held += fragment
        if not self._has_begun:
            found = _BEFORE_INPUT.match(self._held)
            if found is None:
                return ""
            self._has_begun = True
            self._held = self._held[found.end() :]
        match = _INPUT.match(self._held)
        assert match is not None, "the pattern matches the empty text"
        written = match[0]
        half = _HIGH_HALF.search(written)
        if half is not None and not self._held.startswith('"', match.end()):
            written = written[: half.start()]
        self._held = self._held[len(written) :]
        text: str = json.loads(f'"{written}"', strict=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
