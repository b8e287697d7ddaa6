"""Records the work and the time of each step in a file, which `arbora plan --fleet --steps` reads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from ..messages import TOKEN_BYTES, Message, ModelDescription, SchedulerInbox, StepPlan, StepResult

log = logging.getLogger("arbora.scheduler")


Count = Annotated[int, msgspec.Meta(ge=0)]


class StepWork(msgspec.Struct, frozen=True):
    """The numbers of tokens that a step computes and attends to."""

    prefill: Count  # tokens of prompts
    rows: Count  # in decode; a draft counts as one
    context: Count  # tokens that the rows in decode attend to, together
    pairs: Count  # tokens that the tokens of prompts attend to, together


class StepsHeader(msgspec.Struct, frozen=True, tag="model"):
    """The line before the steps of a model."""

    name: str
    """as which it is served"""
    model: ModelDescription


class MeasuredStep(msgspec.Struct, frozen=True, tag="step"):
    """A line for each step."""

    work: StepWork
    ms: float


class StepMeter:
    """Measures the work of steps, which it gets in the order in which they run."""

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}  # by slot: tokens that are computed

    def measure(self, plan: StepPlan, counts: Sequence[int]) -> StepWork:
        """counts: the tokens that each row has sampled"""
        prefill = rows = context = pairs = 0
        lengths = self._lengths
        for row, count in zip(plan.rows, counts, strict=True):
            if row.tokens:
                tokens = len(row.tokens) // TOKEN_BYTES
                prefill += tokens
                pairs += tokens * row.start + tokens * (tokens + 1) // 2
                lengths[row.slot] = row.start + tokens
            else:
                rows += row.samples
                context += row.samples * (lengths[row.slot] + 1)
                lengths[row.slot] += count
        return StepWork(prefill, rows, context, pairs)


class StepRecorder:
    """Appends a line for each step to a file, after a header. Replicas may share the file, and a server that
    is started again may go on with it: each recorder writes a header, and a reader compares them. Steps that
    restore pages are left out: their time is not that of their work. If the file can't be written, the
    recording ends."""

    def __init__(self, path: Path, header: StepsHeader) -> None:
        self._file = path.open("ab", buffering=0)
        self._meter = StepMeter()
        self._planned: deque[StepPlan] = deque()
        self._write(msgspec.json.encode(header) + b"\n")

    def record(self, received: Sequence[SchedulerInbox], sent: Sequence[Message]) -> None:
        """Takes the messages of a turn of the scheduler."""
        results = [message for message in received if isinstance(message, StepResult)]
        lines = b"".join(self._end_step(result) for result in results)
        self._planned += [message for message in sent if isinstance(message, StepPlan)]
        if lines:
            self._write(lines)

    def _write(self, lines: bytes) -> None:
        if self._file.closed:
            return
        try:
            self._file.write(lines)
        except OSError as error:
            log.warning("--record-steps %s: no more steps are recorded (%s)", self._file.name, error.strerror)
            self._file.close()

    def _end_step(self, result: StepResult) -> bytes:
        """The line of the oldest planned step."""
        plan = self._planned.popleft()
        work = self._meter.measure(plan, np.frombuffer(result.counts, np.int32).tolist())
        if plan.restores or plan.restored_states:
            return b""
        return msgspec.json.encode(MeasuredStep(work, result.elapsed_ms)) + b"\n"
