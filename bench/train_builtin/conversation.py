"""A generated conversation, with the facts that its replies must contain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Turn:
    """`fact` is what a grader looks for in the reply; None where nothing is graded."""

    user: str
    reply: str
    fact: str | None = None


@dataclass(frozen=True)
class Conversation:
    task: str
    turns: tuple[Turn, ...]
    system: str | None = None
    schema: dict[str, Any] | None = field(default=None)

    def messages(self, turns: int | None = None) -> list[dict[str, str]]:
        """OpenAI-style messages of the first `turns` turns (all by default), replies included."""
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        for turn in self.turns[:turns]:
            messages.append({"role": "user", "content": turn.user})
            messages.append({"role": "assistant", "content": turn.reply})
        return messages


def render(messages: list[dict[str, str]], add_generation_prompt: bool = False) -> str:
    """The chat template for plain text messages, in Python; a test holds it to the Jinja template."""
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + "<|im_start|>assistant\n" if add_generation_prompt else text


def reply_spans(conversation: Conversation) -> tuple[str, list[tuple[int, int]]]:
    """The rendered text and the character ranges [start, end) of the replies with their `<|im_end|>`."""
    text, spans = "", []
    for message in conversation.messages():
        rendered = render([message])
        if message["role"] == "assistant":
            head = len("<|im_start|>assistant\n")
            spans.append((len(text) + head, len(text) + len(rendered) - 1))
        text += rendered
    return text, spans
