"""The cost of steps: its fit, and the errors of files of measured steps."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from arbora.frontend.fleet.step_cost import (
    StepCost,
    fit_cost,
    measure_fit,
    read_steps,
)
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import ModelDescription
from arbora.runtime.scheduler.step_records import MeasuredStep, StepsHeader, StepWork


def measure(cost: StepCost, noise: float = 0.0) -> list[MeasuredStep]:
    source, steps = random.Random(1), list[MeasuredStep]()
    for prefill in (0, 16, 128, 512):
        for rows in (0, 1, 4, 16):
            context = 300 * rows
            work = StepWork(prefill, rows, context + source.randrange(100) * rows, prefill * 200)
            steps.append(MeasuredStep(work, cost(work) * (1 + noise * source.uniform(-1, 1)) + 1e-9))
    return steps


def test_the_fit_finds_the_cost_of_steps() -> None:
    cost = StepCost(base=5.0, prefill=0.2, row=0.5, context=0.001, pair=0.0)
    found = fit_cost(measure(cost))
    assert measure_fit(found, measure(cost)) < 1e-6
    assert found.row == pytest.approx(0.5, rel=1e-3)


def test_no_part_of_a_fitted_cost_is_negative() -> None:
    falling = [MeasuredStep(StepWork(n, 0, 0, 0), 20.0 - n / 100) for n in (1, 100, 400)]
    falling += [MeasuredStep(StepWork(0, n, n, 0), 10.0) for n in (1, 2)]
    assert min(msgspec.structs.astuple(fit_cost(falling))) >= 0


def test_noise_hardly_moves_the_fit() -> None:
    cost = StepCost(base=5.0, prefill=0.2, row=0.5)
    assert measure_fit(fit_cost(measure(cost, noise=0.05)), measure(cost)) < 0.03


def test_a_step_that_took_much_longer_hardly_moves_the_fit() -> None:
    cost = StepCost(base=5.0, prefill=0.2, row=0.5)
    steps = measure(cost)
    odd = [MeasuredStep(steps[3].work, 100 * steps[3].ms), MeasuredStep(steps[9].work, 30 * steps[9].ms)]
    assert measure_fit(fit_cost([*steps, *odd]), steps) < 0.05


def write(path: Path, *lines: StepsHeader | MeasuredStep) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def test_replicas_and_later_starts_may_share_a_file(tmp_path: Path) -> None:
    steps = measure(StepCost(base=5.0, prefill=0.2, row=0.5))
    first, later = (StepsHeader("m", ModelDescription(layers=2, threads=threads)) for threads in (3, 4))
    path = write(tmp_path / "steps.jsonl", first, later, *steps[:9], first, *steps[9:])
    assert read_steps(path) == (first, steps)


def test_steps_of_two_models_in_a_file_are_refused(tmp_path: Path) -> None:
    headers = [StepsHeader(f"m{layers}", ModelDescription(layers=layers)) for layers in (2, 3)]
    path = write(tmp_path / "steps.jsonl", *headers)
    with pytest.raises(ConfigError, match=r"line 2: .* of m3: layers is 3, but 2 for m2"):
        read_steps(path)


WORK = '"work":{"prefill":1,"rows":0,"context":0,"pairs":1}'


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"type":"step",' + WORK + ',"ms":"x"}', 'line 2: ms is "x", but must be a number'),
        ('{"type":"step",' + WORK + "}", "line 2: the field ms is missing"),
        ("nonsense", "line 2: nonsense is not JSON"),
        ("[]", "line 2: .*a list, but must be an object"),
        ('{"type":"step",' + WORK.replace("1", "-1") + ',"ms":1}', "line 2: work.prefill: "),
        ('{"type":"step",' + WORK + ',"ms":0}', "line 2: ms is 0"),
        ('{"type":"step",' + WORK + ',"ms":1}', "rows in decode"),
    ],
)
def test_a_bad_file_of_steps_is_refused_with_its_line_and_field(tmp_path: Path, line: str, told: str) -> None:
    path = write(tmp_path / "steps.jsonl", StepsHeader("m", ModelDescription()))
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(ConfigError, match=told):
        read_steps(path)


@pytest.mark.parametrize("line", [f'{{{WORK},"ms":1}}', '{"type":"step",' + WORK + ',"ms":1}', ""])
def test_a_file_without_a_header_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match="If an older version wrote it, record again"):
        read_steps(path)
