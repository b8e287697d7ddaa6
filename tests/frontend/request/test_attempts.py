"""Replies of one step, read by the tasks of several requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from arbora.frontend.replica.generation import Generation
from arbora.frontend.request.attempts import run_attempts
from arbora.frontend.request.chat_reader import ChatReader
from arbora.frontend.request.reply import ChoiceReply, Piece, Reply
from arbora.frontend.text.detokenizer import Detokenizer
from arbora.frontend.text.tokenizer import Tokenizer
from arbora.frontend.work.fair_threads import FairThreads
from arbora.runtime.config import BUILTIN_MODEL
from arbora.runtime.messages import Output, Tokens

pytestmark = pytest.mark.asyncio


class Sent:
    """An attempt that notes each text that it gets, and when its tokens are remembered."""

    def __init__(self, name: str, generation: Generation, tokenizer: Tokenizer, notes: list[str]) -> None:
        def remember(text: str, tokens: Tokens) -> None:
            notes.append(f"{name} remembers {text}")

        choice = ChoiceReply(Detokenizer(tokenizer), False, (), ChatReader(None, None, remember))
        self.reply = Reply([choice], generation, 1)
        self._name, self._notes = name, notes

    def take(self, pieces: Sequence[Piece]) -> None:
        self._notes += [f"{self._name} sends {piece.content}" for piece in pieces]

    def closing(self) -> None:
        pass


async def test_every_stream_gets_the_tokens_of_a_step_before_a_reply_is_remembered() -> None:
    tokenizer = Tokenizer.load(BUILTIN_MODEL)
    token = tokenizer.encode(" the", add_special_tokens=False)
    notes: list[str] = []
    generations = {name: Generation([], lambda message: None) for name in "abc"}

    async def read(name: str) -> None:
        generation = generations[name]
        async for _ in run_attempts(
            generation, lambda: Sent(name, generation, tokenizer, notes), FairThreads(1)
        ):
            pass

    tasks = [asyncio.create_task(read(name)) for name in "abc"]
    await asyncio.sleep(0)
    for name, generation in generations.items():
        generation.arrive(0, Output(name, token, finish=None if name == "c" else "length"), 0.0)
    await asyncio.gather(*tasks[:2])
    tasks[2].cancel()
    assert notes == ["a sends  the", "b sends  the", "c sends  the", "a remembers  the", "b remembers  the"]
