"""A gateway beside a real server learns what its replicas have cached, and reads vLLM's gauges."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.fleet.step_cost import read_steps
from arbora.runtime.config import BUILTIN_MODEL
from event_subscriber import Cleared, EventSubscriber
from processes import children_of, command_line
from prometheus_client.parser import text_string_to_metric_families
from served import Served, eventually, serve

TEXT = "The river runs past the old mill, and the miller's children swim in it when the days are long. " * 4
REPLICAS = 2


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Served]:
    sockets = f"ipc://{directory}/live,replay=ipc://{directory}/replay"
    options = ["--kv-events", sockets, "--vllm-metrics", "--record-steps", str(directory / "steps.jsonl")]
    with serve(BUILTIN_MODEL, "--replicas", str(REPLICAS), *options) as made:
        yield made


@pytest.fixture(scope="module")
def subscribers(server: Served, directory: Path) -> Iterator[list[EventSubscriber]]:
    """A subscriber of each replica."""
    names = ["", *(f"_dp{number}" for number in range(1, REPLICAS))]
    made = [
        EventSubscriber(f"ipc://{directory}/live{name}", f"ipc://{directory}/replay{name}") for name in names
    ]
    yield made
    for subscriber in made:
        subscriber.close()


def complete(server: Served, prompt: str, **fields: object) -> None:
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, **fields}
    assert server.http.post("/v1/completions", json=body).status_code == 200


def catch_up(subscribers: list[EventSubscriber]) -> None:
    for subscriber in subscribers:
        while (message := subscriber.receive(0.1)) is not None:
            subscriber.take(message)


def list_all(subscribers: list[EventSubscriber]) -> set[int]:
    """All blocks that some replica has."""
    catch_up(subscribers)
    return {block for subscriber in subscribers for block in subscriber.blocks}


def has(subscribers: list[EventSubscriber], tokens: list[int]) -> bool:
    """Whether some replica has the prompt's full pages."""
    catch_up(subscribers)
    full = tuple(tokens[: len(tokens) // 16 * 16])
    return any(prefix.tokens == full for each in subscribers for prefix in each.list_prefixes())


def find_scheduler(server: Served, replica: int) -> int:
    for pid in children_of(server.process.pid):
        command = [*filter(None, command_line(pid))]
        if (
            any(part.endswith("runtime.scheduler.process") for part in command)
            and int(command[-2]) == replica
        ):
            return pid
    raise AssertionError(f"no scheduler of replica {replica}")


def test_an_idle_server_tells_each_new_subscriber_the_whole_tree(
    server: Served, subscribers: list[EventSubscriber]
) -> None:
    for number, subscriber in enumerate(subscribers):
        message = subscriber.receive()
        assert message is not None and isinstance(message.batch.events[0], Cleared)
        assert message.batch.data_parallel_rank == number
        assert message.topic == f"kv@127.0.0.1:0@{server.model}".encode()
        subscriber.take(message)


def test_prompts_and_drops_reach_the_gateway(server: Served, subscribers: list[EventSubscriber]) -> None:
    for number in range(6):
        complete(server, f"{number} {TEXT}")
    for number in range(6):
        tokens = server.token_ids(f"{number} {TEXT}")
        eventually(lambda tokens=tokens: has(subscribers, tokens))  # type: ignore[misc]
    assert all(subscriber.blocks for subscriber in subscribers), "both replicas have some of the prompts"
    assert server.http.request("DELETE", "/cache").status_code == 200
    eventually(lambda: not list_all(subscribers))


def test_a_salted_prompt_is_told_under_the_hash_of_its_salt(
    server: Served, subscribers: list[EventSubscriber]
) -> None:
    complete(server, TEXT, cache_salt="secret")
    tokens = server.token_ids(TEXT)
    eventually(lambda: has(subscribers, tokens))
    extras = {prefix.extra for each in subscribers for prefix in each.list_prefixes()}
    assert extras and all(len(extra) == 1 and "secret" not in extra[0] for extra in extras)


def test_a_scheduler_that_dies_is_forgotten(server: Served, subscribers: list[EventSubscriber]) -> None:
    complete(server, "Once " + TEXT)
    eventually(lambda: has(subscribers, server.token_ids("Once " + TEXT)))
    busy = next(number for number, each in enumerate(subscribers) if each.blocks)
    last = subscribers[busy].last
    assert last is not None
    os.kill(find_scheduler(server, busy), signal.SIGKILL)
    eventually(lambda: not list_all(subscribers[busy : busy + 1]))
    now = subscribers[busy].last
    assert now is not None and now > last
    complete(server, "Twice " + TEXT)
    eventually(lambda: has(subscribers, server.token_ids("Twice " + TEXT)))


def test_gauges_have_vllms_names(server: Served) -> None:
    families = {each.name: each for each in text_string_to_metric_families(server.http.get("/metrics").text)}
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        (sample,) = families[f"vllm:{name}"].samples
        assert sample.labels == {"model_name": server.model} and sample.value == 0
    (info,) = families["vllm:cache_config_info"].samples
    pages = families["arbora_kv_pages"].samples[0].value
    assert info.labels == {"model_name": server.model, "block_size": "16", "num_gpu_blocks": f"{pages:.0f}"}
    assert "vllm:lora_requests_info" not in families


def test_a_fleet_can_be_planned_from_the_recorded_steps(
    server: Served, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory / "steps.jsonl"
    before = len(read_steps(path)[1])
    prompt = "Thrice " + TEXT
    complete(server, prompt, max_tokens=20)
    eventually(lambda: sum(step.work.rows for step in read_steps(path)[1][before:]) >= 19)
    assert sum(step.work.prefill for step in read_steps(path)[1][before:]) == len(server.token_ids(prompt))
    planned = ["plan", "--dtype", "float32", "--fleet", "--steps", str(path)]
    assert main([*planned, "--requests", "20", "--replicas", "2"]) == 0
    assert "Layout: 2 replicas" in capsys.readouterr().out


def test_an_address_in_use_ends_the_start_with_its_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "arbora", "serve", "--port", "0", "--kv-events", address]
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": ""}
        ended = subprocess.run(
            [*command, "--kv-memory", "4MiB"], capture_output=True, text=True, env=environment, timeout=120
        )
    assert ended.returncode == 2
    assert f"--kv-events {address}: can't publish there (Address already in use)" in ended.stderr
