"""The search for the fewest replicas, and `arbora plan --fleet`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.fleet.figures import Figures, Percentiles
from arbora.frontend.fleet.planner import Objectives, Trial, find_fewest, find_fewest_apart
from arbora.frontend.fleet.step_cost import StepCost
from arbora.runtime.messages import ModelDescription
from arbora.runtime.scheduler.step_records import MeasuredStep, StepsHeader, StepWork
from checkpoints import random_model, save_model
from msgspec.json import encode
from msgspec.structs import replace

BUILT_IN = ModelDescription(
    layers=4,
    hidden_size=256,
    intermediate_size=768,
    heads=4,
    kv_heads=2,
    head_dim=64,
    vocab_size=2048,
    dtype="bfloat16",
    weights="unquantized",
    kv_dtype="bfloat16",
    device="NVIDIA L4",
)
ON_L4 = ("--gpu", "l4", "--dtype", "bfloat16")
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
    header = StepsHeader("arbora-builtin", BUILT_IN)
    path = tmp_path / "steps.jsonl"
    lines = [header, *(MeasuredStep(work, cost(work)) for work in works)]
    path.write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    return path


def plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["plan", "--json", *map(str, (*SMALL, *arguments))]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_has_the_fewest_replicas_that_are_fast_enough(
    capsys: pytest.CaptureFixture[str], steps: Path
) -> None:
    found = plan(capsys, *ON_L4, "--steps", steps, "--ttft-p99", "4", "--price-per-hour", "0.5")
    by_count = {trial["replicas"]: trial for trial in found["trials"]}
    fewest = found["replicas"]
    assert fewest > 1, "the test means a search"
    assert by_count[fewest]["figures"]["ttft_s"]["p99"] <= 4
    assert not by_count[fewest - 1]["is_enough"]
    assert found["cost_per_million"] == pytest.approx(0.5 * fewest / 3600 / found["tokens_per_s"] * 1e6)


def test_a_named_number_of_replicas_is_simulated_alone(
    capsys: pytest.CaptureFixture[str], steps: Path
) -> None:
    found = plan(capsys, *ON_L4, "--steps", steps, "--replicas", "2")
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


def test_roles_are_refused_for_a_model_whose_pages_do_not_travel(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = save_model(random_model("mistral", sliding_window=32), tmp_path)
    for file in saved.glob("*.safetensors"):
        file.unlink()  # only config.json is read
    assert main(["plan", str(tmp_path), *SMALL, "--gpu", "l4", "--roles", "1:1"]) == 2
    assert "layers with windows" in capsys.readouterr().err


def test_a_time_between_tokens_that_no_number_of_replicas_reaches_is_explained(
    capsys: pytest.CaptureFixture[str], steps: Path
) -> None:
    arguments = ["plan", *SMALL, *ON_L4, "--steps", str(steps), "--itl-p99", "2"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "Not even 60 replicas are enough" in printed and "--step-ms" in printed
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["replicas"] is None


@pytest.mark.parametrize(
    ("changed", "arguments", "told"),
    [
        ({"hidden_size": 512}, (), "hidden_size is 512 in the steps of arbora-builtin, but 256 in the plan"),
        ({"dtype": "float32"}, (), "dtype is float32 .*but bfloat16 .*Give --dtype float32"),
        ({"weights": "int8"}, (), "weights is int8 .*but unquantized .*Give --quantize int8"),
        ({}, ("--quantize", "int4"), "weights is unquantized .*but int4 .*without --quantize"),
        ({"kv_dtype": "float8_e4m3fn"}, (), "kv_dtype is float8_e4m3fn .*Give --kv-dtype fp8"),
        ({"tp": 2}, ("--tp", "4"), "tp is 2 .*but 4 .*Give --tp 2"),
        ({"device": "cpu"}, (), "device is cpu, but a GPU is planned. Leave out --gpu"),
    ],
)
def test_steps_of_what_is_not_planned_are_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    steps: Path,
    changed: dict[str, object],
    arguments: tuple[str, ...],
    told: str,
) -> None:
    _, *lines = steps.read_bytes().splitlines(keepends=True)
    header = StepsHeader("arbora-builtin", replace(BUILT_IN, **changed))
    other = tmp_path / "other.jsonl"
    other.write_bytes(encode(header) + b"\n" + b"".join(lines))
    assert main(["plan", *SMALL, *ON_L4, "--steps", str(other), "--replicas", "1", *arguments]) == 2
    assert re.search(told, capsys.readouterr().err)


def test_a_plan_has_as_many_ranks_as_were_recorded(
    capsys: pytest.CaptureFixture[str], steps: Path, tmp_path: Path
) -> None:
    _, *lines = steps.read_bytes().splitlines(keepends=True)
    two = tmp_path / "two.jsonl"
    two.write_bytes(encode(StepsHeader("m", replace(BUILT_IN, tp=2))) + b"\n" + b"".join(lines))
    found = plan(capsys, *ON_L4, "--steps", two, "--replicas", "3")
    assert (found["tp"], found["devices"]) == (2, 6)
    assert main(["plan", *SMALL, *ON_L4, "--steps", str(two), "--replicas", "3"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"measured on {BUILT_IN.device}, with a mean error" in printed
    assert "exchanges" not in printed, "the steps have them"


def search_apart(prefill: int, decode: int, most: int = 64) -> list[Trial]:
    """The trials of a search if so many replicas of each role are needed."""
    objectives = Objectives(ttft_p99_s=1.0)

    def attempt(tried: int, others: int) -> Trial:
        found = figures(1.0 if tried >= prefill and others >= decode else 2.0)
        waits = 2.0 if tried < prefill else 0.1
        found = replace(found, prefill_s=Percentiles(waits, waits, waits))
        return Trial(tried + others, found, objectives.are_met(found), tried)

    return list(find_fewest_apart(attempt, objectives, most))


@pytest.mark.parametrize("prefill", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("decode", [1, 2, 3, 7, 12])
def test_the_search_with_roles_finds_the_fewest_of_each(prefill: int, decode: int) -> None:
    trials = search_apart(prefill, decode)
    fewest = min((trial for trial in trials if trial.is_enough), key=lambda trial: trial.replicas)
    assert (fewest.prefill, fewest.replicas) == (prefill, prefill + decode)
    assert len(trials) <= 15


def test_the_search_with_roles_ends_when_it_can_need_no_fewer_replicas() -> None:
    trials = search_apart(5, 4, most=7)
    assert not any(trial.is_enough for trial in trials)
    assert len(trials) <= 6


def test_a_time_between_tokens_that_is_too_long_needs_decode_replicas() -> None:
    late = replace(figures(5.0, 0.1), prefill_s=Percentiles(5.0, 5.0, 5.0))
    assert not Objectives(ttft_p99_s=1.0, itl_p99_s=0.05).needs_prefill(late)
    assert Objectives(ttft_p99_s=1.0).needs_prefill(late)


@pytest.fixture
def long_prompts(tmp_path: Path) -> Path:
    """A trace of long prompts with replies of some length."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 400 * at,
            "input_length": 3072,
            "output_length": 60,
            "hash_ids": list(range(6 * at, 6 * at + 6)),
        }
        for at in range(30)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_plan_of_any_roles_has_the_layout_with_the_fewest_replicas(
    capsys: pytest.CaptureFixture[str], steps: Path, long_prompts: Path
) -> None:
    given = ["plan", "--fleet", *ON_L4, "--steps", str(steps), "--trace", str(long_prompts)]
    given += ["--itl-p99", "40", "--ttft-p99", "3"]
    main([*given, "--json"])
    both = json.loads(capsys.readouterr().out)
    assert main([*given, "--roles", "any"]) == 0
    printed = capsys.readouterr().out
    assert "only for prefill and" in printed and "If all replicas prefill and decode" in printed
    assert main([*given, "--roles", "any", "--json"]) == 0
    any_roles = json.loads(capsys.readouterr().out)
    assert any_roles["prefill_replicas"] >= 1
    assert both["replicas"] is None or any_roles["replicas"] < both["replicas"]


def test_named_numbers_of_both_roles_are_simulated_alone(
    capsys: pytest.CaptureFixture[str], steps: Path, long_prompts: Path
) -> None:
    arguments = ["--fleet", *ON_L4, "--steps", str(steps), "--trace", str(long_prompts), "--roles", "1:2"]
    assert main(["plan", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["prefill"], each["replicas"]) for each in found["trials"]] == [(1, 3)]
    assert found["trials"][0]["figures"]["prefill_s"]["p50"] > 0
    assert (found["replicas"], found["prefill_replicas"], found["link_gbps"]) == (3, 1, 10)


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
        (("--fleet", "--gpu", "l4", "--replicas", "2", "--roles", "1:1"), "--replicas: with --roles P:D"),
        (("--fleet", "--gpu", "l4", "--replicas", "2", "--link-gbps", "1"), "--link-gbps: pages travel only"),
        (("--fleet", "--gpu", "l4", "--roles", "any"), "the number of replicas with --roles P:D"),
        (("--fleet", "--gpu", "l4", "--roles", "0:1"), "expected both, any, or the numbers"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    code = main(["plan", *arguments])
    assert code != 0
    assert told.replace("'?", "") in capsys.readouterr().err.replace('"', "").replace("'0", "0")
