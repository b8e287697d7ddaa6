"""Recorded steps say what each step computed, and how long it took."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from arbora.runtime.messages import ModelDescription, RestoredPages, Row, StepPlan, StepResult
from arbora.runtime.scheduler.step_records import MeasuredStep, StepRecorder, StepsHeader, StepWork
from fake_scheduler import packed

HEADER = StepsHeader("m", ModelDescription(layers=2))


def plan(step: int, *rows: Row) -> StepPlan:
    return StepPlan(step, list(rows))


def result(step: int, ms: float, *counts: int) -> StepResult:
    return StepResult(step, np.array(counts, np.int32).tobytes(), b"", b"", ms)


def read(path: Path) -> list[MeasuredStep]:
    header, *steps = path.read_bytes().splitlines()
    assert msgspec.json.decode(header, type=StepsHeader) == HEADER
    return [msgspec.json.decode(line, type=MeasuredStep) for line in steps]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def test_a_prompt_in_chunks_and_its_reply_are_measured(path: Path) -> None:
    recorder = StepRecorder(path, HEADER)
    chunks = [Row(0, 0, packed(range(10)), samples=0), Row(0, 10, packed(range(5)))]
    recorder.record([], [plan(1, chunks[0]), plan(2, chunks[1])])
    recorder.record([result(1, 3.0, 0)], [plan(3, Row(0))])
    recorder.record([result(2, 2.0, 1), result(3, 1.0, 1)], [plan(4, Row(0))])
    recorder.record([result(4, 0.5, 1)], [])
    works = [StepWork(10, 0, 0, 55), StepWork(5, 0, 0, 65), StepWork(0, 1, 16, 0), StepWork(0, 1, 17, 0)]
    assert read(path) == [MeasuredStep(*each) for each in zip(works, (3.0, 2.0, 1.0, 0.5), strict=True)]


def test_drafts_count_as_rows_and_only_sampled_tokens_lengthen_the_context(path: Path) -> None:
    recorder = StepRecorder(path, HEADER)
    recorder.record([], [plan(1, Row(0, 0, packed(range(10)))), plan(2, Row(0, samples=4)), plan(3, Row(0))])
    recorder.record([result(1, 1.0, 1), result(2, 1.0, 3), result(3, 1.0, 1)], [])
    assert [step.work for step in read(path)[1:]] == [StepWork(0, 4, 44, 0), StepWork(0, 1, 14, 0)]


def test_a_full_disk_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    recorder = StepRecorder(Path("/dev/full"), HEADER)
    for step in (1, 2):
        recorder.record([], [plan(step, Row(0, 0, packed(range(10))))])
        recorder.record([result(step, 1.0, 1)], [])
    assert caplog.text.count("no more steps are recorded (No space left on device)") == 1


def test_a_step_that_restores_pages_is_left_out_but_its_tokens_are_counted(path: Path) -> None:
    recorder = StepRecorder(path, HEADER)
    restoring = plan(1, Row(0, 32, packed(range(8))))
    restoring.restores = [RestoredPages(0, 0, b"")]
    recorder.record([], [restoring, plan(2, Row(0))])
    recorder.record([result(1, 1.0, 1), result(2, 1.0, 1)], [])
    assert [step.work for step in read(path)] == [StepWork(0, 1, 41, 0)]


def test_each_start_of_a_scheduler_appends_a_header(path: Path) -> None:
    for _ in range(2):
        recorder = StepRecorder(path, HEADER)
        recorder.record([], [plan(1, Row(0, 0, packed(range(10))))])
        recorder.record([result(1, 1.0, 1)], [])
    decoder = msgspec.json.Decoder(StepsHeader | MeasuredStep)
    kinds = [type(decoder.decode(line)) for line in path.read_bytes().splitlines()]
    assert kinds == [StepsHeader, MeasuredStep] * 2
