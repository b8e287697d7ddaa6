"""The search for the fewest replicas, and `arbora plan --fleet`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.fleet.figures import Figures, Percentiles
from arbora.frontend.fleet.planner import Objectives, Trial, find_fewest
from arbora.frontend.fleet.step_cost import StepCost
from arbora.runtime.scheduler.step_records import MeasuredStep, StepWork
from msgspec.json import encode

SMALL = ("--fleet", "--requests", "60", "--rate", "20")


def figures(ttft_s: float, itl_s: float = 0.0) -> Figures:
    flat = Percentiles(ttft_s, ttft_s, ttft_s)
    return Figures(
        requests=1,
        refused=0,
        seconds=1.0,
        prompt_tokens=1,
        cached_tokens=0,
        output_tokens=1,
        ttft_s=flat,
        itl_s=Percentiles(itl_s, itl_s, itl_s),
        kv_in_use=0.0,
        busy=0.0,
        busiest=1.0,
    )


def search(needed: int, most: int = 64) -> list[Trial]:
    def attempt(replicas: int) -> Trial:
        return Trial(replicas, figures(1.0), replicas >= needed)

    return list(find_fewest(attempt, most))


@pytest.mark.parametrize("needed", range(1, 65))
def test_the_search_finds_the_fewest_replicas_in_few_trials(needed: int) -> None:
    trials = search(needed)
    assert min(trial.replicas for trial in trials if trial.is_enough) == needed
    assert needed == 1 or any(trial.replicas == needed - 1 for trial in trials)
    assert len(trials) <= 13


def test_the_search_ends_with_the_most_replicas_if_none_are_enough() -> None:
    trials = search(needed=65)
    assert trials[-1].replicas == 64
    assert not any(trial.is_enough for trial in trials)


def test_objectives_are_of_both_times() -> None:
    both = Objectives(ttft_p99_s=1.0, itl_p99_s=0.05)
    assert both.are_met(figures(1.0, 0.05))
    assert not both.are_met(figures(1.1, 0.05))
    assert not both.are_met(figures(1.0, 0.06))
    assert Objectives().are_met(figures(100.0, 100.0)) is None


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """A file of measured steps."""
    cost = StepCost(base=20.0, prefill=0.5, row=1.0)
    works = [
        StepWork(n, rows, 100 * rows, n * n // 2) for n in (0, 16, 256) for rows in (0, 1, 8) if n + rows
    ]
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"".join(encode(MeasuredStep(work, cost(work))) + b"\n" for work in works))
    return path


def plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["plan", "--json", *map(str, (*SMALL, *arguments))]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_has_the_fewest_replicas_that_are_fast_enough(
    capsys: pytest.CaptureFixture[str], steps: Path
) -> None:
    found = plan(capsys, "--gpu", "l4", "--steps", steps, "--ttft-p99", "4", "--price-per-hour", "0.5")
    by_count = {trial["replicas"]: trial for trial in found["trials"]}
    fewest = found["replicas"]
    assert fewest > 1, "the test means a search"
    assert by_count[fewest]["figures"]["ttft_s"]["p99"] <= 4
    assert not by_count[fewest - 1]["is_enough"]
    assert found["cost_per_million"] == pytest.approx(0.5 * fewest / 3600 / found["tokens_per_s"] * 1e6)


def test_a_named_number_of_replicas_is_simulated_alone(
    capsys: pytest.CaptureFixture[str], steps: Path
) -> None:
    found = plan(capsys, "--steps", steps, "--replicas", "2")
    assert [(trial["replicas"], trial["is_enough"]) for trial in found["trials"]] == [(2, None)]
    assert found["trials"][0]["figures"]["requests"] == 60


def test_a_plan_is_printed_with_a_plot_and_its_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SMALL, "--gpu", "l4", "--itl-p99", "500", "--price-per-hour", "0.5"]) == 0
    printed = capsys.readouterr().out
    for told in ("60 requests", "█", "Layout: 1 replica, each on l4", "1M tokens cost", "least time"):
        assert told in printed


def test_a_model_too_large_for_a_gpu_is_divided(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = plan(capsys, tmp_path, "--gpu", "l40s", "--replicas", "1")
    assert (found["tp"], found["devices"]) == (2, 2)


def test_a_time_between_tokens_that_no_number_of_replicas_reaches_is_explained(
    capsys: pytest.CaptureFixture[str], steps: Path
) -> None:
    assert main(["plan", *SMALL, "--steps", str(steps), "--itl-p99", "2"]) == 1
    printed = capsys.readouterr().out
    assert "Not even 60 replicas are enough" in printed and "--step-ms" in printed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--trace", "x"), "--trace: it needs --fleet"),
        (("--fleet", "--gpu", "l4"), "--ttft-p99"),
        (("--fleet", "--replicas", "1"), "--steps"),
        (("--fleet", "--gpu", "l4", "--trace", "x", "--rate", "1"), "--rate: a trace has its own times"),
        (("--fleet", "--gpu", "l4", "--speed", "2", "--replicas", "1"), "--speed: it needs --trace"),
        (("--fleet", "--gpu", "l4", "--trace", "/none", "--replicas", "1"), "can't be read"),
        (("--fleet", "--steps", "/none", "--tp", "2", "--replicas", "1"), "--tp: it divides"),
        (("--fleet", "--gpu", "l4", "--replicas", "0"), "--replicas '?0"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    code = main(["plan", *arguments])
    assert code != 0
    assert told.replace("'?", "") in capsys.readouterr().err.replace('"', "").replace("'0", "0")
