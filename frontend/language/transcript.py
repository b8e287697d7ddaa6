"""The transcript of a state: a text, or the messages of a chat."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ..engine.completion import ToolCall
from .backend import ChatPrompt, Prompt, TextPrompt

Message: TypeAlias = dict[str, Any]
Role: TypeAlias = Literal["system", "user", "assistant"]


class Transcript(msgspec.Struct, frozen=True):
    """An immutable transcript, which forks can share. `text` is the whole text outside of a chat, and in a
    chat the text so far of the open turn."""

    messages: tuple[Message, ...] = ()
    role: Role | None = None  # role of the open turn
    text: str = ""
    calls: tuple[ToolCall, ...] = ()  # calls of the open turn

    def add(self, text: str) -> Transcript:
        """Adds text. Raises ValueError between the turns of a chat."""
        if self.messages and self.role is None:
            raise ValueError("this is a chat, so text must stand in a turn, such as arbora.user(…).")
        return msgspec.structs.replace(self, text=self.text + text)

    def add_calls(self, calls: tuple[ToolCall, ...]) -> Transcript:
        return msgspec.structs.replace(self, calls=self.calls + calls)

    def open(self, role: Role) -> Transcript:
        """Begins a turn. Raises ValueError inside a turn, or after text outside of turns."""
        if self.role is not None:
            raise ValueError(f"a turn of the {self.role} can't contain another turn.")
        if self.text:
            raise ValueError("there is text before this turn that belongs to no turn: put it into one.")
        return msgspec.structs.replace(self, role=role)

    def close(self) -> Transcript:
        message: Message = {"role": self.role, "content": self.text}
        if self.calls:
            message["tool_calls"] = [call.message() for call in self.calls]
        return Transcript((*self.messages, message))

    def answer_tool(self, call_id: str, content: str) -> Transcript:
        """Adds a tool's answer. Raises ValueError unless an assistant's message or another answer
        precedes."""
        if (
            self.role is not None
            or not self.messages
            or self.messages[-1]["role"] not in ("assistant", "tool")
        ):
            raise ValueError("arbora.tool(…) must follow the assistant's turn with the call that it answers.")
        return Transcript((*self.messages, {"role": "tool", "tool_call_id": call_id, "content": content}))

    def prompt(self) -> Prompt:
        """The prompt of a call at this place. Raises ValueError where no call is allowed."""
        if self.role is None and not self.messages:
            return TextPrompt(self.text)
        if self.role != "assistant":
            raise ValueError("in a chat, gen and select must stand in arbora.assistant(…).")
        return ChatPrompt(self.messages, self.text)

    def __str__(self) -> str:
        turns = [f"{message['role']}: {message['content']}" for message in self.messages]
        last = [self.text if self.role is None else f"{self.role}: {self.text}"] if self.text else []
        return "\n".join(turns + last)
