"""How long a step takes: fitted from measured steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from ...runtime.errors import ConfigError
from ...runtime.scheduler.step_records import MeasuredStep, StepsHeader, StepWork
from .json_lines import read_json_lines

FITS = 4
SOURCE = "`arbora serve --record-steps FILE` writes the file. If an older version wrote it, record again."
OUTLIER = 5.0  # times the expected time
MIN_GAIN = 0.001  # share of the error
ROUNDING = 1e-12

Cost: TypeAlias = Callable[[StepWork], float]
"""The milliseconds of a step."""


class StepCost(msgspec.Struct, frozen=True):
    """A linear cost of steps, in milliseconds. A step takes `base`, and in addition

    - `prefill` for each prompt token that it computes, and `pair` for each token that one of these attends to
    - `row` for each row in decode, and `context` for each token that such a row attends to
    """

    base: float = 0.0
    prefill: float = 0.0
    row: float = 0.0
    context: float = 0.0
    pair: float = 0.0

    def __call__(self, work: StepWork) -> float:
        return (
            self.base
            + self.prefill * work.prefill
            + self.row * work.rows
            + self.context * work.context
            + self.pair * work.pairs
        )


def fit_cost(steps: Sequence[MeasuredStep]) -> StepCost:
    """The cost with non-negative coefficients and the least squares of relative errors.

    Errors are relative to the cost that was found before: relative to the measured times a fit would follow
    the shortest ones, and the sum of many steps would be too small. Steps that take many times as long, such
    as the first of their kind, for which code is compiled, are left out.
    """
    works = [step.work for step in steps]
    matrix = np.array([[1, work.prefill, work.rows, work.context, work.pairs] for work in works], float)
    times = np.array([step.ms for step in steps])
    expected, found = times, np.zeros(matrix.shape[1])
    for _ in range(FITS):
        usual = times <= OUTLIER * expected
        found = _fit(matrix[usual] / expected[usual, None], times[usual] / expected[usual])
        expected = np.maximum(matrix @ found, times.min())
    return StepCost(*found.tolist())


def _fit(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The least-squares solution with non-negative coefficients. Every subset of the columns is solved, the
    smallest first: a column that hardly lowers the error gets the coefficient 0."""
    scale = np.maximum(matrix.max(axis=0), 1e-300)
    best, least = np.zeros(matrix.shape[1]), np.inf
    for count in range(1, matrix.shape[1] + 1):
        for columns in map(list, combinations(range(matrix.shape[1]), count)):
            part = matrix[:, columns] / scale[columns]
            found = np.linalg.lstsq(part, target, rcond=None)[0]
            error = float(((part @ found - target) ** 2).sum())
            if (found >= 0).all() and error < least * (1 - MIN_GAIN) - ROUNDING:
                best, least = np.zeros(matrix.shape[1]), error
                best[columns] = found / scale[columns]
    return best


def measure_fit(cost: Cost, steps: Sequence[MeasuredStep]) -> float:
    """The mean relative error of a cost."""
    return float(np.mean([abs(cost(step.work) / step.ms - 1) for step in steps]))


def read_steps(path: Path) -> tuple[StepsHeader, list[MeasuredStep]]:
    """Reads measured steps and the header of their model. Raises ConfigError for a file without one, with the
    steps of several models, or with a line that is neither a step nor a header."""
    decoder = msgspec.json.Decoder(StepsHeader | MeasuredStep)
    header, steps = None, list[MeasuredStep]()
    for place, line in read_json_lines(path, "--steps", decoder, SOURCE):
        match line:
            case StepsHeader():
                header = header or line
                _check_header(line, header, place)
            case _ if header is None:
                raise ConfigError(
                    f"{place}: a step stands before the line that describes its model. {SOURCE}"
                )
            case _ if line.ms <= 0:
                raise ConfigError(f"{place}: ms is {line.ms:g}, but a step takes some time. Remove the line.")
            case _:
                steps.append(line)
    if header is None:
        raise ConfigError(f"--steps {path}: it is empty. {SOURCE}")
    if not any(step.work.prefill for step in steps) or not any(step.work.rows for step in steps):
        raise ConfigError(
            f"--steps {path}: it needs steps with tokens of prompts and steps with rows in decode. Send "
            "prompts to the server while it records."
        )
    return header, steps


def _check_header(header: StepsHeader, first: StepsHeader, place: str) -> None:
    """Raises ConfigError if the file has the steps of another model too. Replicas may differ in threads."""
    for name in header.model.__struct_fields__:
        value, before = getattr(header.model, name), getattr(first.model, name)
        if name != "threads" and value != before:
            raise ConfigError(
                f"{place}: steps of another model or device follow, of {header.name}: {name} is {value}, but "
                f"{before} for {first.name} in line 1. Record each in a file of its own."
            )
