"""Ray Serve with replicas of two models gives the same texts as one server, also when a replica is killed and
when their number changes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import command_line, descendants_of, is_alive, processor_ticks
from served import Served, eventually

PATIENCE = 400.0  # seconds; a cluster has 20 processes, which start beside other tests
PROGRAM = Path(__file__).parents[1] / "support/ray_fleet.py"
OPTIONS = {"dtype": "float32", "kv_memory": "16MiB", "debug": "invariants"}
SCALING = {
    "min_replicas": 2,
    "max_replicas": 3,
    "ttft_s": 0.005,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 2,
    "look_back_period_s": 2,
}
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as on macOS: Ray then listens on the loopback address only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_TOKEN": os.urandom(24).hex(),
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # Serve kills a proxy that starts in more than 5 s
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_worker_register_timeout_seconds": str(int(PATIENCE)),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONSAFEPATH": "1",
}
TEXT = "The river runs past the old mill, and the miller's children swim in it when the days are long. "
LONG = 600  # tokens of a request that is open while a replica dies


class Fleet:
    """The server at `url`, whose processes all descend from `process`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)

    def complete(self, **fields: Any) -> Any:
        body = {"model": "first", "max_tokens": 24, "temperature": 0, "ignore_eos": True, **fields}
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, **fields: Any) -> Iterator[str]:
        """The texts of a streamed completion's chunks, as they come."""
        body = {"model": "first", "temperature": 0, "ignore_eos": True, "stream": True, **fields}
        with self.http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for data in _read_events(answer.iter_bytes()):
                if data != b"[DONE]":
                    chunk = json.loads(data)
                    assert "error" not in chunk, chunk
                    yield chunk["choices"][0]["text"]

    def list_replicas(self, model: str) -> list[int]:
        """The processes of the model's replicas."""
        found = descendants_of(self.process.pid)
        title = f"ray::ServeReplica:default:{model}"  # then the method that it runs
        return [pid for pid in found if "".join(command_line(pid)).startswith(title)]

    def find_busiest(self, model: str) -> int:
        """The process of the replica that has computed most in the last moments."""

        def count_ticks(pid: int) -> int:
            return sum(map(processor_ticks, descendants_of(pid)))

        before = {pid: count_ticks(pid) for pid in self.list_replicas(model)}
        time.sleep(0.2)
        return max(before, key=lambda pid: count_ticks(pid) - before[pid])

    def count_up(self) -> int:
        """The replicas of the first model to which the ingress is connected."""
        count: int = self.http.get("/server").json()["replicas_up"]
        return count


def _read_events(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The data of server-sent events. Texts of the random model have characters that `iter_lines` takes for
    ends of lines."""
    unread = b""
    for part in parts:
        *events, unread = (unread + part).split(b"\n\n")
        yield from (event.removeprefix(b"data: ") for event in events)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def fleet(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    models = [
        {"model": str(served_model), "name": "first", "autoscaling": SCALING},
        {"model": str(served_model), "name": "second"},
    ]
    arguments = {"models": models, "options": OPTIONS, "ingress": {"num_cpus": 0}}
    port, log = free_port(), tmp_path_factory.mktemp("ray") / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(port), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
    assert process.stdin is not None
    try:
        ends = time.monotonic() + PATIENCE
        while "serves" not in log.read_text().split():
            assert process.poll() is None and time.monotonic() < ends, log.read_text()
            time.sleep(0.2)
        yield Fleet(process, f"http://127.0.0.1:{port}")
    finally:
        started = descendants_of(process.pid)
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            for each in (process.pid, *started):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            raise
        eventually(lambda: not any(map(is_alive, started)), 20)


def complete_long(fleet: Fleet, prompt: str) -> str:
    text: str = fleet.complete(prompt=prompt, max_tokens=LONG)["choices"][0]["text"]
    return text


def test_texts_are_those_of_one_server(fleet: Fleet, server: Served) -> None:
    for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 7}):
        body = {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True, **sampling}
        alone = server.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert fleet.complete(**body)["choices"][0]["text"] == alone
        assert "".join(fleet.stream(**body)) == alone


def test_the_model_field_chooses_the_model(fleet: Fleet) -> None:
    listed = fleet.http.get("/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["first", "second"]
    assert fleet.complete(model="second", prompt="Hello")["model"] == "second"
    assert fleet.http.post("/v1/completions", json={"model": "third", "prompt": "x"}).status_code == 404


def test_a_prompt_goes_where_its_prefix_is(fleet: Fleet) -> None:
    for topic in ("rain", "snow", "wind", "hail"):
        prompt = f"{topic}: {4 * TEXT}"
        first = fleet.complete(prompt=prompt)["usage"]
        for _ in range(3):
            usage = fleet.complete(prompt=prompt)["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= first["prompt_tokens"] - 16


def test_a_stream_arrives_in_parts(fleet: Fleet) -> None:
    times = [time.monotonic() for _ in fleet.stream(prompt="Once", max_tokens=400)]
    assert len(times) > 50
    assert times[-1] - times[0] > 0.1


def test_the_death_of_a_replica_loses_nothing(fleet: Fleet) -> None:
    prompts = [f"{number}: {TEXT}" for number in range(8)]
    expected = {prompt: complete_long(fleet, prompt) for prompt in prompts}
    read = dict.fromkeys(prompts, "")
    killed = threading.Event()

    def stream(prompt: str) -> str:
        read[prompt] = ""
        for text in fleet.stream(prompt=prompt, max_tokens=LONG):
            read[prompt] += text
        return read[prompt]

    def repeat(request: Callable[[str], str], prompt: str) -> set[str]:
        """The texts of requests, of which the last begins before the replica is killed."""
        texts = set[str]()
        while not killed.is_set():
            texts.add(request(prompt))
        return texts

    with ThreadPoolExecutor(16) as pool:
        results = [
            (prompt, pool.submit(repeat, request, prompt))
            for prompt in prompts
            for request in (partial(complete_long, fleet), stream)
        ]
        try:
            eventually(lambda: all(read.values()), PATIENCE)
            os.kill(fleet.find_busiest("first"), signal.SIGKILL)
            assert any(0 < len(text) < len(expected[prompt]) for prompt, text in read.items())
        finally:
            killed.set()
    for prompt, result in results:
        assert result.result() == {expected[prompt]}
    eventually(lambda: fleet.count_up() >= 2, PATIENCE)


def test_the_number_of_replicas_follows_the_load(fleet: Fleet) -> None:
    ends = time.monotonic() + PATIENCE
    with ThreadPoolExecutor(24) as pool:

        def load() -> int:
            done = 0
            while fleet.count_up() < 3 and time.monotonic() < ends:
                fleet.complete(prompt=f"{os.urandom(4).hex()} {8 * TEXT}", max_tokens=200)
                done += 1
            return done

        assert all(each.result() for each in [pool.submit(load) for _ in range(24)])
    assert fleet.count_up() == 3
    with ThreadPoolExecutor(6) as pool:
        prompts = [f"{number}: {TEXT}" for number in range(6)]
        streams = list(
            pool.map(lambda prompt: "".join(fleet.stream(prompt=prompt, max_tokens=1000)), prompts)
        )
    eventually(lambda: fleet.count_up() == 2, PATIENCE)
    for prompt, text in zip(prompts, streams, strict=True):
        assert fleet.complete(prompt=prompt, max_tokens=1000)["choices"][0]["text"] == text
    assert fleet.complete(prompt="Hello")
