"""The comparison of servers: what is started, which runs count, and what the tables say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
sys.path.append(str(Path(__file__).parents[2] / "bench" / "lib"))
from compare import measure, parse
from compared_servers import ServerCommand, servers
from comparison import Visit, report, spread
from other_load import Moment, now, other_load, quiet_run, tree_seconds
from server_process import start

FAKE_SERVER = str(Path(__file__).parents[1] / "support" / "fake_llama_server.py")
BUSY_SECONDS = 0.4
WORK = (
    "import time\n"
    f"while time.process_time() < {BUSY_SECONDS}: pass\n"
    "print('done', flush=True)\n"
    "time.sleep(60)"
)


def run_of(tokens: float, load: float = 0.0, **more: Any) -> dict[str, Any]:
    latencies = {"ttft_p50": 100.0, "ttft_p90": 100.0, "itl_p50": 10.0, "itl_p99": 20.0, "itl_tail": 2.0}
    counts = {"requests": 1, "errors": 0, "cached": 0.5, "prompt_tok_per_s": 9.0, "req_per_s": 2.0}
    return {**latencies, **counts, "tok_per_s": tokens, "other_load": load, "spoilt": False, **more}


def visit(server: str, number: int, run: dict[str, Any]) -> Visit:
    return Visit(server, number, 3.0, 1500, 0.004, {"single": run})


def work_once() -> subprocess.Popen[bytes]:
    """Starts a process and waits until it has used `BUSY_SECONDS` of processor time. It keeps running."""
    process = subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"done\n"
    return process


def test_the_other_load_excludes_the_server_and_the_client() -> None:
    assert other_load(Moment(10, 100, 50), Moment(20, 115, 63), cores=2) == pytest.approx(2 / 20)


def test_the_other_load_is_never_negative() -> None:
    assert other_load(Moment(0, 0, 0), Moment(1, 1.0, 1.1), cores=2) == 0


def test_a_servers_processor_time_includes_its_children() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"],
        stdout=subprocess.PIPE,
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"done\n"
        assert tree_seconds(parent.pid) >= BUSY_SECONDS
    finally:
        for process in [*psutil.Process(parent.pid).children(), psutil.Process(parent.pid)]:
            process.kill()
        parent.communicate()


def test_another_processs_work_is_other_load() -> None:
    before = now(server=0x7FFFFFFF)  # no such process
    time.sleep(0.05)
    busy = work_once()
    try:
        after = now(server=0x7FFFFFFF)
        others = other_load(before, after, cores=1) * (after.at - before.at)
    finally:
        busy.kill()
        busy.communicate()
    assert others > BUSY_SECONDS / 2


def attempts_with(loads: list[float], most: float, repeats: int) -> dict[str, Any]:
    return quiet_run(lambda attempt: {"other_load": loads[attempt], "seed": attempt}, most, repeats)


def test_a_quiet_run_is_not_repeated() -> None:
    assert attempts_with([0.05], 0.05, 2) == {"other_load": 0.05, "seed": 0, "attempts": 1, "spoilt": False}


def test_a_spoilt_run_is_repeated_until_one_is_quiet() -> None:
    run = attempts_with([0.3, 0.01], 0.05, 2)
    assert run == {"other_load": 0.01, "seed": 1, "attempts": 2, "spoilt": False}


def test_if_every_run_is_spoilt_the_quietest_counts_and_says_so() -> None:
    run = attempts_with([0.3, 0.1, 0.2], 0.05, 2)
    assert run == {"other_load": 0.1, "seed": 1, "attempts": 3, "spoilt": True}


def test_arbora_is_started_once_for_each_set_of_options() -> None:
    commands = servers(parse(["model", "--arbora", "", "--arbora", "m.gguf --kv-dtype int8"]))
    assert [command.name for command in commands] == ["arbora", "arbora m.gguf --kv-dtype int8"]
    first, second = (command.arguments[1:] for command in commands)
    common = ["--dtype", "bfloat16", "--max-model-len", "4096", "--kv-memory", "4GiB"]
    assert first == ["serve", "model", *common]
    assert second == ["serve", "m.gguf", *common, "--kv-dtype", "int8"]


def test_llama_cpp_gets_a_whole_context_for_each_request_in_flight() -> None:
    options = ["model", "--llama-server", "llama-server", "--gguf", "m.Q4_0.gguf", "--in-flight", "3"]
    arguments = servers(parse([*options, "--threads", "2"]))[-1].arguments
    for name, value in {"--parallel": "3", "--ctx-size": "12288", "--threads": "2"}.items():
        assert arguments[arguments.index(name) + 1] == value


@pytest.mark.parametrize("missing", [["--gguf", "m.gguf"], ["--llama-server", "llama-server"]])
def test_llama_cpp_needs_its_server_and_a_model(missing: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit):
        parse(["model", *missing])
    assert "--llama-server and --gguf: give both" in capsys.readouterr().err


def test_each_round_visits_every_server_in_alternating_order(tmp_path: Path) -> None:
    commands = [ServerCommand(name, [sys.executable, FAKE_SERVER]) for name in ("arbora", "peer")]
    output = tmp_path / "visits.jsonl"
    options = ["model", "--runs", "2", "--workloads", "single,prefill", "--most-load", "1"]
    options += ["--idle-seconds", "0.1", "--logs", str(tmp_path), "--output", str(output)]
    visits = measure(parse(options), commands)
    assert [(v.round, v.server) for v in visits] == [(0, "arbora"), (0, "peer"), (1, "peer"), (1, "arbora")]
    assert [Visit(**json.loads(line)) for line in output.read_text().splitlines()] == visits
    for each in visits:
        assert each.runs["single"]["output_tokens"] == 128
        prefill = each.runs["prefill"]
        assert (prefill["requests"], prefill["errors"], prefill["output_tokens"]) == (3, 0, 3)
        assert prefill["prompt_tokens"] == 6000
        assert prefill["cached"] == pytest.approx(1990 / 2000)
    first, second = visits[0].runs["prefill"], visits[3].runs["prefill"]
    assert first["seed"] != second["seed"]


def test_a_server_that_ends_while_it_starts_is_named_with_its_log(tmp_path: Path) -> None:
    broken = ServerCommand("llama.cpp m", [sys.executable, "-c", "import sys; sys.exit(7)"])
    with (
        pytest.raises(SystemExit, match=r"llama.cpp m ended with 7 .* see .*llama.cpp_m.log"),
        start(broken, tmp_path),
    ):
        pass


def test_the_spread_is_the_range_of_the_rounds_by_their_median() -> None:
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.3)
    assert spread([]) == 0


def test_ratios_pair_the_runs_of_one_round() -> None:
    ours = [visit("arbora", n, run_of(tokens)) for n, tokens in enumerate([40.0, 20.0, 60.0])]
    theirs = [visit("vllm", n, run_of(tokens)) for n, tokens in enumerate([20.0, 20.0, 20.0])]
    text = report([*ours, *theirs], is_ours=lambda name: name == "arbora")
    assert "### arbora ÷ vllm" in text
    assert "| single | 2.00 (1.00–3.00) | 1.00 (1.00–1.00) |" in text


def test_rounds_are_paired_whatever_the_order_of_the_visits() -> None:
    runs = {("arbora", 0): 30.0, ("vllm", 0): 10.0, ("vllm", 1): 20.0, ("arbora", 1): 40.0}
    visits = [visit(server, number, run_of(tokens)) for (server, number), tokens in runs.items()]
    assert "| single | 2.50 (2.00–3.00) |" in report(visits, is_ours=lambda name: name == "arbora")


def test_the_table_of_a_server_states_its_noise() -> None:
    quiet, noisy = run_of(90.0, 0.02), run_of(110.0, 0.2, spoilt=True)
    text = report([visit("arbora", 0, quiet), visit("arbora", 1, noisy)], is_ours=lambda _: True)
    assert "Ready after 3 s; 1,500 MB resident after the workloads; 0.004 of a core when idle." in text
    row = next(line for line in text.splitlines() if line.startswith("| single"))
    assert row.endswith("| 2 | 0.5 | 20% | 20% | 1 of 2 |")


def test_a_workload_without_gaps_has_no_such_figures() -> None:
    run = run_of(1.0, itl_p50=None, itl_p99=None, itl_tail=None)
    text = report([visit("arbora", 0, run), visit("vllm", 0, run)], is_ours=lambda name: name == "arbora")
    assert "| single | 1.00 | 1.00 | 1.00 | 1.00 | – | – |" in text
