"""Prompts of a server of chats and documents, with which `radix.py` measures the tree."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

TOKEN_BYTES = 4
CHATS = 0.6  # of the requests; the others ask about a document
OPEN_CHATS = 100
TURNS = 6  # on average
SYSTEM_PROMPTS = [(300 + 100 * k) for k in range(8)]  # tokens
DOCUMENTS = 230  # the k-th most popular is asked about with a weight of 1 / k


class Asked(NamedTuple):
    prompt: bytes  # packed int32
    answer: bytes


class Mix:
    """Chats of several turns below shared system prompts, and questions to shared documents."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._systems = [self._text(length, length) for length in SYSTEM_PROMPTS]
        self._documents = [self._text(1_400, 2_000) for _ in range(DOCUMENTS)]
        self._popularity = list(accumulate(1 / (k + 1) for k in range(DOCUMENTS)))
        self._chats = [self._random.choice(self._systems) for _ in range(OPEN_CHATS)]

    def requests(self) -> Iterator[Asked]:
        while True:
            yield self._turn() if self._random.random() < CHATS else self._question()

    def _turn(self) -> Asked:
        chat = self._random.randrange(OPEN_CHATS)
        asked = Asked(self._chats[chat] + self._text(20, 120), self._text(40, 200))
        ends = self._random.random() < 1 / TURNS
        self._chats[chat] = self._random.choice(self._systems) if ends else asked.prompt + asked.answer
        return asked

    def _question(self) -> Asked:
        [document] = self._random.choices(self._documents, cum_weights=self._popularity)
        return Asked(document + self._text(20, 80), self._text(40, 200))

    def _text(self, shortest: int, longest: int) -> bytes:
        return self._random.randbytes(TOKEN_BYTES * self._random.randint(shortest, longest))
