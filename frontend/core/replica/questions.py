"""Questions to the scheduler or another tokenizer process. Each waits for the answer that has its number."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from typing import TypeAlias

from ....runtime.messages import AdapterChanged, CacheAnswer, Message, RecordList, RequestList, Stats

NUMBER_BITS = 48  # bits of the random first number
Answer: TypeAlias = Stats | RequestList | CacheAnswer | AdapterChanged | RecordList


class Questions:
    """Numbers the questions of a process, and gives each answer to the question with its number.

    A tokenizer process that replaces a dead one also receives late answers to the dead one's questions. The
    first number is random, so that a late answer hardly ever has the number of a new question.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Answer | None]] = {}
        self._numbers = itertools.count(secrets.randbits(NUMBER_BITS))

    async def ask(
        self, question: Callable[[int], Message], send: Callable[[Message], None], seconds: float
    ) -> Answer | None:
        """Sends the message that `question` makes from a number. Returns None if no answer comes in time."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        send(question(number))
        try:
            return await asyncio.wait_for(self._waiting[number], seconds)
        except TimeoutError:
            return None
        finally:
            del self._waiting[number]

    def answer(self, message: Answer) -> None:
        waiting = self._waiting.get(message.query)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def give_up(self) -> None:
        """Ends all open questions without an answer, because the scheduler has died."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)
