"""A plan takes the steps that a server of the planned model and options has recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from arbora.frontend.cli.plan.estimate import PlannedModel, Question
from arbora.frontend.cli.plan.recorded_steps import read_recorded_steps
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import ModelDescription
from arbora.runtime.model.loading import load_model
from arbora.runtime.scheduler.step_records import MeasuredStep, StepsHeader, StepWork
from checkpoints import random_model, save_model
from step_driver import no_vocabulary, serve_config

STEPS = [MeasuredStep(StepWork(8, 0, 0, 36), 2.0), MeasuredStep(StepWork(0, 1, 9, 0), 1.0)]


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(random_model(request.param), tmp_path_factory.mktemp("model"))


def ask(model: Path, **options: Any) -> Question:
    question = Question(
        model=model,
        name="m",
        device="cpu",
        memory=1 << 30,
        gpu=None,
        context=None,
        context_text="",
        dtype="auto",
        quantize=None,
        kv_dtype="auto",
        price=None,
    )
    return msgspec.structs.replace(question, **options)


def record(path: Path, described: ModelDescription) -> Path:
    lines = [StepsHeader("m", described), *STEPS]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": "bfloat16"}, {"quantize": "int8"}, {"kv_dtype": "int8", "dtype": "float32"}],
    ids=lambda options: " ".join(options) or "defaults",
)
def test_a_plan_with_the_options_of_the_server_takes_its_steps(
    model: Path, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = load_model(serve_config(model, **options), no_vocabulary)
    path = record(tmp_path / "steps.jsonl", loaded.ready.model)
    question = ask(model, **options)
    found = read_recorded_steps(path, question, PlannedModel.read(question), None)
    assert found.steps == STEPS
    assert found.model == loaded.ready.model
    other = ask(model, **(options | {"dtype": "float16"}))
    with pytest.raises(ConfigError, match=r"dtype is .*, but float16 in the plan of m. Give --dtype"):
        read_recorded_steps(path, other, PlannedModel.read(other), None)
