"""Which conversations a training step sees: the three tasks, small talk and plain copying, in proportions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .chat import make_chat
from .conversation import Conversation
from .documents import make_document_chat
from .extraction import make_extraction
from .lexicon import Words
from .small_talk import make_echo, make_small_talk

MAX_DOCUMENT = 60
"""Sentences; with its question just under 1,024 tokens."""

Maker = Callable[[Words], Conversation]


def document_of_any_length(words: Words, most_sentences: int = MAX_DOCUMENT) -> Conversation:
    """Short documents are as frequent as long ones: the limit is drawn evenly on a log scale."""
    limit = round(4 * (most_sentences / 4) ** words.rng.random())
    return make_document_chat(words, limit)


@dataclass(frozen=True)
class Stage:
    """Weights of (chat, document, json, small talk, echo) and the most sentences of a document."""

    until: float
    weights: tuple[int, int, int, int, int]
    most_sentences: int


STAGES = (
    Stage(0.08, (22, 12, 12, 2, 52), 5),
    Stage(0.30, (30, 32, 26, 4, 8), 10),
    Stage(1.00, (14, 48, 34, 2, 2), MAX_DOCUMENT),
)
"""Plain copying first, on which all else builds; then short documents; then documents of any length."""


def stage_at(progress: float) -> Stage:
    """The stage of a run of which the share `progress` is done."""
    return next(stage for stage in STAGES if progress <= stage.until)


def conversations(seed: str, stage: Stage) -> Iterator[Conversation]:
    """An endless stream, the same for the same seed."""
    words = Words(random.Random(seed))
    makers: list[Maker] = [
        make_chat,
        lambda w: document_of_any_length(w, stage.most_sentences),
        make_extraction,
        make_small_talk,
        make_echo,
    ]
    while True:
        yield words.rng.choices(makers, weights=stage.weights)[0](words)
