"""What a state has said so far: a text, or the messages of a chat."""

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
    role: Role | None = None  # of the turn that is open
    text: str = ""
    calls: tuple[ToolCall, ...] = ()  # of the open turn

    def add(self, text: str) -> Transcript:
        """Raises ValueError for text between the turns of a chat."""
        if self.messages and self.role is None:
            raise ValueError("this is a chat, so text must stand in a turn, such as arbora.user(…).")
        return msgspec.structs.replace(self, text=self.text + text)

    def add_calls(self, calls: tuple[ToolCall, ...]) -> Transcript:
        return msgspec.structs.replace(self, calls=self.calls + calls)

    def open(self, role: Role) -> Transcript:
        """Raises ValueError in a turn, or after text that belongs to none."""
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
        """Raises ValueError unless the message before is the assistant's, or another answer to it."""
        if (
            self.role is not None
            or not self.messages
            or self.messages[-1]["role"] not in ("assistant", "tool")
        ):
            raise ValueError("arbora.tool(…) must follow the assistant's turn with the call that it answers.")
        return Transcript((*self.messages, {"role": "tool", "tool_call_id": call_id, "content": content}))

    def prompt(self) -> Prompt:
        """The prompt of a call at this place. Raises ValueError where no call can stand."""
        if self.role is None and not self.messages:
            return TextPrompt(self.text)
        if self.role != "assistant":
            raise ValueError("in a chat, gen and select must stand in arbora.assistant(…).")
        return ChatPrompt(self.messages, self.text)

    def __str__(self) -> str:
        turns = [f"{message['role']}: {message['content']}" for message in self.messages]
        last = [self.text if self.role is None else f"{self.role}: {self.text}"] if self.text else []
        return "\n".join(turns + last)
