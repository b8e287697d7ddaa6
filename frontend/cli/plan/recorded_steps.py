"""Reads measured steps for a plan, and checks that they are those of the planned model."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec

from ....runtime.config import QuantizeMethod
from ....runtime.errors import ConfigError
from ....runtime.messages import ModelDescription
from ....runtime.model.description import describe_model
from ....runtime.scheduler.step_records import MeasuredStep
from ...fleet.step_cost import read_steps
from .estimate import PlannedModel, Question


class RecordedSteps(msgspec.Struct, frozen=True):
    """Measured steps of the planned model."""

    model: ModelDescription
    steps: list[MeasuredStep]


def read_recorded_steps(path: Path, question: Question, model: PlannedModel, tp: int | None) -> RecordedSteps:
    """Raises ConfigError for a bad file, or one of another model, device or options.

    tp: the ranks of a planned replica; None: as many as were recorded
    """
    header, steps = read_steps(path)
    recorded = header.model
    planned = describe_model(
        model.config,
        model.dtype,
        question.quantize or model.stored.formats.method,
        model.cells,
        question.device if question.device == "cpu" else recorded.device,
        recorded.threads,
        recorded.tp if tp is None else tp,
    )
    if question.device != "cpu" and recorded.device == "cpu":
        raise ConfigError(
            f"--steps {path}: device is cpu, but a GPU is planned. Leave out --gpu and --memory, or record "
            "steps on that GPU with `arbora serve --record-steps FILE`."
        )
    for name in recorded.__struct_fields__:
        value, wanted = getattr(recorded, name), getattr(planned, name)
        if value != wanted:
            raise ConfigError(
                f"--steps {path}: {name} is {value} in the steps of {header.name}, but {wanted} in the plan "
                f"of {question.name}. {_find_fix(name, value, header.name)} or record steps of what is "
                "planned with `arbora serve --record-steps FILE`."
            )
    return RecordedSteps(recorded, steps)


def _find_fix(name: str, value: object, model: str) -> str:
    """The option that makes the plan fit the steps, as the beginning of a sentence."""
    match name:
        case "dtype":
            return f"Give --dtype {value},"
        case "weights":
            if value in get_args(QuantizeMethod):
                return f"Give --quantize {value},"
            return "Plan the checkpoint that was served, without --quantize,"
        case "kv_dtype":
            kinds = {"int8": "int8", "float8_e4m3fn": "fp8"}
            return f"Give --kv-dtype {kinds.get(str(value), 'auto')},"
        case "device":
            return "Name the GPU with --gpu,"
        case "tp":
            return f"Give --tp {value},"
        case _:
            return f"Name the model that was served ({model}),"
