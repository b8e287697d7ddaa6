"""Which conversations a training step sees: the three tasks, small talk and plain copying, in proportions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from .chat import make_chat, make_echo, make_small_talk
from .conversation import Conversation
from .documents import make_document_chat
from .extraction import make_extraction
from .lexicon import Words

LONGEST_DOCUMENT = 60
"""Sentences; with its question just under 1,024 tokens."""

Maker = Callable[[Words], Conversation]


def document_of_any_length(words: Words, most_sentences: int = LONGEST_DOCUMENT) -> Conversation:
    """Short documents are as frequent as long ones: the limit is drawn evenly on a log scale."""
    limit = round(4 * (most_sentences / 4) ** words.rng.random())
    return make_document_chat(words, limit)


def conversations(seed: str, most_sentences: int) -> Iterator[Conversation]:
    """An endless stream, the same for the same seed."""
    words = Words(random.Random(seed))
    makers: list[Maker] = [
        make_chat,
        lambda w: document_of_any_length(w, most_sentences),
        make_extraction,
        make_small_talk,
        make_echo,
    ]
    while True:
        yield words.rng.choices(makers, weights=(30, 34, 26, 4, 6))[0](words)
