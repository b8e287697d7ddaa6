"""Outputs of the scheduler become parts of answers: in tasks, or at once by a writer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from arbora.frontend.core.attempts import run_attempts
from arbora.frontend.core.parts import Piece
from arbora.frontend.core.replica.generation import Generation
from arbora.frontend.core.reply import MANY_TOKENS, ChoiceReply, Reply
from arbora.frontend.core.text.detokenizer import Detokenizer
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.core.work.thread_pool import FairThreadPool
from arbora.runtime.config import BUILTIN_MODEL
from arbora.runtime.messages import Logprobs, Output, Tokens

pytestmark = pytest.mark.asyncio


class Sent:
    """An attempt that notes each text that it gets, and when its tokens are remembered."""

    def __init__(
        self,
        name: str,
        generation: Generation,
        tokenizer: Tokenizer,
        notes: list[str],
        choices: int = 1,
        stop: Sequence[str] = (),
    ) -> None:
        def remember(text: str, tokens: Tokens) -> None:
            notes.append(f"{name} remembers {text}")

        self.reply = Reply(
            [ChoiceReply(Detokenizer(tokenizer, stop), False, (), remember=remember) for _ in range(choices)],
            generation,
            choices,
        )
        self._name, self._notes = name, notes

    def take(self, pieces: Sequence[Piece]) -> str:
        self._notes += [f"{self._name} sends {piece.content}" for piece in pieces]
        return "".join(piece.content for piece in pieces)

    def closing(self) -> None:
        pass


async def test_every_stream_gets_the_tokens_of_a_step_before_a_reply_is_remembered() -> None:
    tokenizer = Tokenizer.load(BUILTIN_MODEL)
    token = tokenizer.encode(" the", add_special_tokens=False)
    notes: list[str] = []
    generations = {name: Generation([]) for name in "abc"}

    async def read(name: str) -> None:
        generation = generations[name]
        async for _ in run_attempts(
            generation, lambda: Sent(name, generation, tokenizer, notes), FairThreadPool(1)
        ):
            pass

    tasks = [asyncio.create_task(read(name)) for name in "abc"]
    await asyncio.sleep(0)
    for name, generation in generations.items():
        generation.arrive(0, Output(name, token, finish=None if name == "c" else "length"), 0.0)
    await asyncio.gather(*tasks[:2])
    tasks[2].cancel()
    assert notes == ["a sends  the", "b sends  the", "c sends  the", "a remembers  the", "b remembers  the"]


class Written:
    """A writer that notes each write."""

    def __init__(self, notes: list[str]) -> None:
        self.is_ready = True
        self._notes = notes

    def write(self, part: str) -> None:
        self._notes.append("written")


class Stream:
    """One request whose answer has a writer, and the notes of what happens to it. `turn` lets its task run
    until it waits again."""

    def __init__(self, choices: int = 1, stop: Sequence[str] = ()) -> None:
        self._tokenizer = Tokenizer.load(BUILTIN_MODEL)
        self.notes: list[str] = []
        self.writer = Written(self.notes)
        self.generation = Generation([])
        self.sends = asyncio.Event()  # clear: the last part is still being sent
        self.sends.set()
        self.marks_tokens_as_sent = True
        self._choices, self._stop = choices, stop
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        def begin() -> Sent:
            return Sent("s", self.generation, self._tokenizer, self.notes, self._choices, self._stop)

        async for _ in run_attempts(self.generation, begin, FairThreadPool(1), writer=self.writer):
            self.generation.token_left = self.marks_tokens_as_sent
            self.notes.append("yielded")
            await self.sends.wait()

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    def arrive(
        self,
        text: str,
        choice: int = 0,
        *,
        is_last: bool = False,
        is_late: bool = False,
        prompt_logprobs: Logprobs | None = None,
    ) -> None:
        token = self._tokenizer.encode(text, add_special_tokens=False)[:4]
        output = Output("s", token, finish="length" if is_last else None, prompt_logprobs=prompt_logprobs)
        self.generation.arrive(choice, output, 0.0, is_late=is_late)

    def taken_notes(self) -> list[str]:
        notes = list(self.notes)
        self.notes.clear()
        return notes


async def begun() -> Stream:
    """A stream whose first output has been sent."""
    stream = Stream()
    await stream.turn()
    stream.arrive(" the")
    await stream.turn()
    assert stream.taken_notes() == ["s sends  the", "yielded"]
    return stream


async def test_outputs_between_the_first_and_the_last_are_written_as_they_arrive() -> None:
    stream = Stream()
    await stream.turn()
    stream.arrive(" the")
    assert stream.taken_notes() == []
    await stream.turn()
    assert stream.taken_notes() == ["s sends  the", "yielded"]
    stream.arrive(" a")
    stream.arrive(" the")
    assert stream.taken_notes() == ["s sends  a", "written", "s sends  the", "written"]
    stream.arrive(" a", is_last=True)
    assert stream.taken_notes() == []
    await stream.task
    assert stream.notes == ["s sends  a", "yielded", "s remembers  the a the a"]


async def test_an_output_behind_one_that_waits_waits_too() -> None:
    stream = await begun()
    stream.writer.is_ready = False
    stream.arrive(" a")
    stream.writer.is_ready = True
    stream.arrive(" the")
    assert stream.taken_notes() == []
    await stream.turn()
    assert stream.taken_notes() == ["s sends  a", "s sends  the", "yielded"]
    stream.arrive(" a")
    assert stream.taken_notes() == ["s sends  a", "written"]
    stream.task.cancel()


async def test_an_output_waits_while_a_part_is_being_sent() -> None:
    stream = Stream()
    await stream.turn()
    stream.sends.clear()
    stream.arrive(" the")
    await stream.turn()
    stream.arrive(" a")
    assert stream.taken_notes() == ["s sends  the", "yielded"]
    stream.sends.set()
    await stream.turn()
    assert stream.taken_notes() == ["s sends  a", "yielded"]
    stream.task.cancel()


async def test_nothing_is_written_at_once_while_the_request_may_be_sent_again() -> None:
    stream = Stream()
    stream.marks_tokens_as_sent = False
    await stream.turn()
    for _ in range(2):
        stream.arrive(" the")
        assert stream.taken_notes() == []
        await stream.turn()
        assert stream.taken_notes() == ["s sends  the", "yielded"]
    stream.task.cancel()


async def test_an_output_that_takes_long_to_read_is_not_written_at_once() -> None:
    stream = await begun()
    count = 4 * MANY_TOKENS + 1
    stream.arrive(" a", prompt_logprobs=Logprobs(bytes(4 * count), b"", b""))
    assert stream.taken_notes() == []
    while len(stream.notes) < 2:
        await asyncio.sleep(0.01)
    assert stream.notes == ["s sends  a", "yielded"]
    stream.task.cancel()


async def test_an_output_without_text_writes_nothing() -> None:
    stream = await begun()
    stream.arrive("😀")
    assert stream.taken_notes() == ["s sends "]
    stream.task.cancel()


async def test_late_outputs_are_sent_together() -> None:
    stream = await begun()
    stream.arrive(" a", is_late=True)
    stream.arrive(" the", is_late=True)
    stream.arrive(" a")
    assert stream.taken_notes() == []
    await stream.turn()
    assert stream.notes == ["s sends  a", "s sends  the", "s sends  a", "yielded"]
    stream.task.cancel()


async def test_nothing_is_written_at_once_before_all_choices_have_begun() -> None:
    stream = Stream(choices=2)
    await stream.turn()
    stream.arrive(" the")
    await stream.turn()
    stream.arrive(" a")
    await stream.turn()
    assert stream.taken_notes() == ["s sends  the", "yielded", "s sends  a", "yielded"]
    stream.arrive(" the", choice=1)
    await stream.turn()
    assert stream.taken_notes() == ["s sends  the", "yielded"]
    stream.arrive(" a", choice=1)
    assert stream.taken_notes() == ["s sends  a", "written"]
    stream.task.cancel()


async def test_nothing_is_written_at_once_where_a_stop_string_may_end_the_choice() -> None:
    stream = Stream(stop=[" a"])
    await stream.turn()
    stream.arrive(" the")
    await stream.turn()
    assert stream.taken_notes() == ["s sends  the", "yielded"]
    stream.arrive(" a")
    assert stream.taken_notes() == []
    await stream.task
    assert stream.notes == ["s sends ", "yielded", "s remembers  the"]


async def test_an_error_while_writing_at_once_is_raised_where_the_answer_is_read() -> None:
    stream = await begun()

    def fail(part: str) -> None:
        raise ValueError("a bug")

    stream.writer.write = fail  # type: ignore[method-assign]
    stream.arrive(" a")
    with pytest.raises(ValueError, match="a bug"):
        await stream.task
