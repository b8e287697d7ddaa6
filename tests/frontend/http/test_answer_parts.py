"""Answers of one step, sent by the tasks of several requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from arbora.frontend.api.openai.errors import error_event
from arbora.frontend.core.draft import Draft, Limits, Prompt
from arbora.frontend.core.fields import SamplingFields
from arbora.frontend.core.parts import Piece
from arbora.frontend.core.prepare import prepare
from arbora.frontend.core.replica.generation import Generation
from arbora.frontend.core.reply import Reply
from arbora.frontend.core.work.caller import Caller
from arbora.frontend.http.cache_miss_tracker import CacheMissTracker
from arbora.frontend.http.endpoint import HttpJob, answer_parts
from arbora.frontend.http.metrics import RequestTimer
from arbora.runtime.messages import Output
from http_world import HttpWorld, http_world

pytestmark = pytest.mark.asyncio


class Words:
    """An answer that says what it is asked for."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def take(self, pieces: Sequence[Piece]) -> bytes:
        return b"token" * len(pieces)

    def closing(self) -> bytes:
        return b"end"


async def job_of(world: HttpWorld, name: str) -> HttpJob:
    draft = Draft(
        fields=SamplingFields(),
        prompt=Prompt(param="prompt", items=["Hello"]),
        limits=Limits(1, "max_tokens"),
        streams=True,
    )
    return HttpJob(await prepare(world.service, name, draft, Caller()), Words, error_event)


async def test_every_stream_gets_the_tokens_of_a_step_before_a_stream_ends() -> None:
    notes: list[str] = []
    async with http_world() as world:
        jobs = {name: await job_of(world, name) for name in "ab"}
        generations = {name: Generation(job.job.requests) for name, job in jobs.items()}

        async def read(name: str, job: HttpJob) -> None:
            nonlocal notes
            timer = RequestTimer(world.http_service.metrics)
            cache = CacheMissTracker(world.http_service, "", job.job, explains=False)
            async for part in answer_parts(job, generations[name], timer, world.service.work, cache):
                notes += [f"{name} {part.decode()}"]

        tasks = [asyncio.create_task(read(name, job)) for name, job in jobs.items()]
        await asyncio.sleep(0)
        token = world.tokenizer.encode("a", add_special_tokens=False)[:4]
        for name, generation in generations.items():
            generation.arrive(0, Output(name, token, finish="length"), 0.0)
        await asyncio.gather(*tasks)
    assert notes == ["a token", "b token", "a end", "b end"]
