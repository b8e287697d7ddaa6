"""A tokenizer process's question gets the scheduler's answer with the same number, and no other."""

from __future__ import annotations

import asyncio

import pytest
from arbora.frontend.core.replica.questions import Questions
from arbora.runtime.messages import CacheDropped, Message, QueryStats

pytestmark = pytest.mark.asyncio


async def test_a_question_gets_the_answer_with_its_number() -> None:
    questions = Questions()

    def send(message: Message) -> None:
        assert isinstance(message, QueryStats)
        questions.answer(CacheDropped(message.query + 1, 0, 0))
        questions.answer(CacheDropped(message.query, 10, 40))

    answer = await questions.ask(lambda number: QueryStats(0, number), send, 60.0)
    assert isinstance(answer, CacheDropped) and answer.pages == 10


async def test_a_late_answer_to_a_dead_process_is_not_taken_by_its_replacement() -> None:
    sent: list[Message] = []
    before, after = Questions(), Questions()
    assert await before.ask(lambda number: QueryStats(0, number), sent.append, 0.0) is None
    asked = asyncio.ensure_future(after.ask(lambda number: QueryStats(0, number), sent.append, 0.01))
    await asyncio.sleep(0)
    late, _ = sent
    assert isinstance(late, QueryStats)
    after.answer(CacheDropped(late.query, 10, 40))
    assert await asked is None
