"""Separates a model's reasoning from its answer."""

from __future__ import annotations

from typing import NamedTuple

from .chat_template import ChatTemplate
from .tokenizer import Tokenizer

_KNOWN_MARKERS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def count_begun(text: str, marker: str) -> int:
    """The length of the longest suffix of `text` that begins `marker` without completing it."""
    sizes = range(min(len(text), len(marker) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)


class ReasoningFormat(NamedTuple):
    """`by_template`: the chat template has the markers, so replies are likely to begin with reasoning."""

    start: str
    end: str
    by_template: bool

    def open_at_end_of(self, prompt: str) -> bool:
        """True if the rendered prompt itself begins the reasoning, so that the reply starts inside it."""
        return prompt.rstrip().endswith(self.start)

    def is_likely_after(self, prompt: str) -> bool:
        """Whether a reply to the prompt is likely to begin with the marker."""
        return self.by_template and not prompt.rstrip().endswith((self.start, self.end))

    def shown_special(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that the detokenizer must not skip."""
        ids = (tokenizer.token_id(marker) for marker in (self.start, self.end))
        return frozenset(token for token in ids if token is not None) & tokenizer.special_tokens


class ReasoningDelta(NamedTuple):
    reasoning: str
    content: str


def detect_reasoning(template: ChatTemplate | None, tokenizer: Tokenizer) -> ReasoningFormat | None:
    """The markers that the chat template writes or the vocabulary has as tokens; None without any."""
    source = template.source() if template is not None else ""
    for start, end in _KNOWN_MARKERS:
        if end in source or (tokenizer.token_id(start) is not None and tokenizer.token_id(end) is not None):
            return ReasoningFormat(start, end, by_template=end in source)
    return None


class ReasoningParser:
    """Splits one choice's text into reasoning and content. Line breaks next to the markers belong to neither.

    Reasoning can only begin a reply: a later marker is content.
    """

    def __init__(self, format: ReasoningFormat, starts_inside: bool) -> None:
        self._format = format
        self._state = "reasoning" if starts_inside else "start"
        self._held = ""
        self._trim = True  # whether to drop line breaks until other text comes
        self.has_ended = False

    @property
    def is_inside(self) -> bool:
        return self._state == "reasoning"

    def push(self, text: str, final: bool) -> ReasoningDelta:
        """Splits the next text. `final`: no more text follows."""
        self._held += text
        reasoning: list[str] = []
        if self._state == "start":
            self._look_for_start(final)
        if self._state == "reasoning":
            reasoning.append(self._take_reasoning(final))
        content = self._take_content() if self._state == "content" else ""
        return ReasoningDelta("".join(reasoning), content)

    def _look_for_start(self, final: bool) -> None:
        seen = self._held.lstrip()
        if seen.startswith(self._format.start):
            self._state, self._held = "reasoning", seen[len(self._format.start) :]
        elif final or not self._format.start.startswith(seen):
            self._state, self._trim = "content", False

    def _take_reasoning(self, final: bool) -> str:
        self._trim_front()
        before, marker, after = self._held.partition(self._format.end)
        if marker:
            self._state, self._held, self._trim = "content", after, True
            self.has_ended = True
            return before.rstrip("\n")
        kept = 0 if final else count_begun(self._held, self._format.end)
        ready = self._held[: len(self._held) - kept]
        ready = ready if final else ready.rstrip("\n")
        self._held = self._held[len(ready) :]
        return ready

    def _take_content(self) -> str:
        self._trim_front()
        content, self._held = self._held, ""
        return content

    def _trim_front(self) -> None:
        if self._trim:
            self._held = self._held.lstrip("\n")
            self._trim = not self._held
