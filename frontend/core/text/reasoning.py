"""The ways in which models mark their reasoning."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .chat_template import ChatTemplate
from .tokenizer import Tokenizer


def count_begun(text: str, marker: str) -> int:
    """The length of the longest suffix of `text` that begins `marker` without completing it."""
    sizes = range(min(len(text), len(marker) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)


@lru_cache(64)
def find_special(text: str, tokenizer: Tokenizer) -> frozenset[int]:
    """The special tokens that the text contains."""
    texts = ((token, tokenizer.token_text(token)) for token in tokenizer.special_tokens)
    return frozenset(token for token, name in texts if name and name in text)


class ReasoningFormat(NamedTuple):
    """Reasoning stands between `start` and `end`, at the beginning of a reply; if it `repeats`, anywhere.

    `by_template`: the chat template has the markers, so replies are likely to begin with reasoning. After
    reasoning `then` comes before anything else; a prompt ends with it too. A constrained answer begins with
    `answer`. `silent` texts belong to neither reasoning nor content.
    """

    start: str
    end: str
    by_template: bool = False
    then: str = ""
    answer: str = ""
    silent: tuple[str, ...] = ()
    repeats: bool = False

    def open_at_end_of(self, prompt: str) -> bool:
        """True if the rendered prompt itself begins the reasoning, so that the reply starts inside it."""
        return prompt.rstrip().endswith(self.start.rstrip())

    def is_likely_after(self, prompt: str) -> bool:
        """Whether a reply to the prompt is likely to begin with the marker."""
        ended = prompt.rstrip().endswith((self.start.rstrip(), self.end))
        return self.by_template and not ended and prompt.endswith(self.then)

    def shown_special(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that the detokenizer must not skip."""
        return find_special("\0".join((self.start, self.end, *self.silent)), tokenizer)


_FINAL = "<|channel|>final<|message|>"
HARMONY = ReasoningFormat(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    then="<|start|>assistant",
    answer=_FINAL,
    silent=(
        "<|start|>assistant",
        _FINAL,
        "<|channel|>final <|constrain|>json<|message|>",
        "<|channel|>commentary<|message|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    ),
    repeats=True,
)
KNOWN_REASONING = (
    HARMONY,
    ReasoningFormat("<|channel>thought\n", "<channel|>", repeats=True),
    ReasoningFormat("<think>", "</think>"),
    ReasoningFormat("[THINK]", "[/THINK]"),
    ReasoningFormat("<seed:think>", "</seed:think>"),
    ReasoningFormat("◁think▷", "◁/think▷"),
    ReasoningFormat(
        "<|START_THINKING|>", "<|END_THINKING|>", silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ),
)
_ANSWER_TAG = re.compile(r"</think>(?:\s|\\n)*<(answer|response)>")


def detect_reasoning(
    template: ChatTemplate | None, tokenizer: Tokenizer, declared: ReasoningFormat | None = None
) -> ReasoningFormat | None:
    """The markers that are `declared`, or that the chat template writes or the vocabulary has as tokens; None
    without any."""
    source = template.source() if template is not None else ""
    if declared is not None:
        same = (known for known in KNOWN_REASONING if known.start.rstrip() == declared.start.rstrip())
        return next(same, declared)._replace(by_template=True)
    for known in KNOWN_REASONING:
        is_written = (known.start.rstrip() if known.repeats else known.end) in source
        if not is_written and not _has_tokens(known, tokenizer):
            continue
        found = known._replace(by_template=is_written)
        answer = _ANSWER_TAG.search(source)
        if answer is None:
            return found
        return found._replace(silent=(f"<{answer[1]}>", f"</{answer[1]}>"))
    return None


def _has_tokens(known: ReasoningFormat, tokenizer: Tokenizer) -> bool:
    """Whether the markers are tokens, whole or in parts such as `<|channel|>`."""
    starts = re.match(r"<\|channel\|?>", known.start)
    return all(
        tokenizer.token_id(text) is not None for text in (starts[0] if starts else known.start, known.end)
    )
