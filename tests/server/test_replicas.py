"""A server with two replicas of the model answers as one with a single replica, and outlives their deaths."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arbora.runtime.api_keys import key_hash
from arbora.runtime.config import BUILTIN_MODEL
from processes import children_of, command_line, is_alive
from served import PATIENCE, Served, eventually, serve

IMPATIENT = Path(__file__).parents[1] / "support/impatient_server.py"
ROOM = ("--kv-memory", "16MiB")
TEXT = "The river runs past the old mill, and the miller's children swim in it when the days are long. "


@pytest.fixture(scope="module")
def pair() -> Iterator[Served]:
    with serve(BUILTIN_MODEL, "--replicas", "2", *ROOM) as server:
        yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[Served]:
    """Its watchdog ends a process that gives no sign of life for a few seconds."""
    with serve(BUILTIN_MODEL, "--replicas", "2", *ROOM, program=(str(IMPATIENT),)) as server:
        yield server


@pytest.fixture(scope="module")
def single() -> Iterator[Served]:
    with serve(BUILTIN_MODEL, *ROOM) as server:
        yield server


def processes(server: Served, role: str) -> dict[int, int]:
    """The process ids of a role by the numbers of the replicas."""
    found = {}
    for pid in children_of(server.process.pid):
        command = [*filter(None, command_line(pid))]
        if any(part.endswith((f"runtime.{role}.process", f"loops_on_demand.{role}")) for part in command):
            found[int(command[-2])] = pid
    return found


def complete(server: Served, **fields: Any) -> Any:
    answer = server.http.post("/v1/completions", json={"max_tokens": 24, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def count_by_replica(server: Served) -> list[float]:
    """Whether each replica answers, as the metrics say."""
    lines = server.http.get("/metrics").text.splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("arbora_replica_up{")]


def are_up(server: Served) -> bool:
    return count_by_replica(server) == [1.0, 1.0]


def test_answers_are_those_of_one_replica(pair: Served, single: Served) -> None:
    requests: list[Any] = [
        {"prompt": f"{topic}: once upon a time", **sampling}
        for topic in ("rain", "snow", "wind")
        for sampling in (
            {},
            {"temperature": 1.0, "seed": 7},
            {"temperature": 1.0, "seed": 8, "n": 3, "frequency_penalty": 0.5},
            {"max_tokens": 200, "temperature": 1.0, "seed": 9},
        )
    ]
    for fields in requests:
        texts = [[each["text"] for each in complete(each, **fields)["choices"]] for each in (pair, single)]
        assert texts[0] == texts[1], fields


def test_new_prompts_go_to_both_replicas_and_conversations_meet_their_cache(pair: Served) -> None:
    conversations: dict[str, list[Any]] = {name: [] for name in ("mill", "sea", "road", "wood")}
    cached: dict[str, list[int]] = {name: [] for name in conversations}
    for turn in range(3):
        for name, messages in conversations.items():
            messages.append({"role": "user", "content": f"Turn {turn} of the {name}. {TEXT * 2}"})
            answer = pair.http.post(
                "/v1/chat/completions", json={"messages": messages, "max_tokens": 8, "cache_salt": name}
            ).json()
            cached[name].append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            messages.append(answer["choices"][0]["message"])
    for counts in cached.values():
        assert counts[0] == 0 and 0 < counts[1] < counts[2], cached
    tree = [pair.http.get("/cache/tree", params={"cache_salt": name}).json() for name in conversations]
    ids = [{node["id"] % 2 for node in each["nodes"] if node["id"] is not None} for each in tree]
    assert {0, 1} == set().union(*ids), "the ids of nodes contain their replica"


def find_replicas(server: Served, salt: str) -> set[int]:
    """The replicas that have prefixes of a salt."""
    nodes = server.http.get("/cache/tree", params={"cache_salt": salt}).json()["nodes"]
    return {node["id"] % 2 for node in nodes if node["id"] is not None and node["text"]}


def test_a_conversation_stays_and_a_hot_prefix_is_replicated_under_load(pair: Served) -> None:
    prompts = {name: f"The {name}. {TEXT}" for name in ("mill", "sea", "road")}
    for _ in range(4):
        for name in prompts:
            reply = complete(pair, prompt=prompts[name], cache_salt=name)
            prompts[name] += reply["choices"][0]["text"] + TEXT
    homes = [find_replicas(pair, name) for name in prompts]
    assert [len(home) for home in homes] == [1, 1, 1] and homes != [homes[0]] * 3, homes
    document = TEXT * 12
    complete(pair, prompt=document, max_tokens=1, cache_salt="hot")
    assert len(find_replicas(pair, "hot")) == 1

    def ask(number: int) -> int:
        url, prompt = f"{pair.url}/v1/completions", f"{document} {number} {number} {TEXT * 20}"
        body = {"prompt": prompt, "max_tokens": 4, "cache_salt": "hot"}
        usage = httpx.post(url, json=body, timeout=PATIENCE).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    with ThreadPoolExecutor(48) as threads:
        cached = list(threads.map(ask, range(48)))
    assert find_replicas(pair, "hot") == {0, 1}
    assert sum(count > 0 for count in cached) >= 47, "each replica has computed the document at most once"
    assert "arbora_replica_backlog_seconds{" in pair.http.get("/metrics").text


def find_http_process(server: Served) -> int:
    children = children_of(server.process.pid)
    return next(pid for pid in children if any("frontend.app" in part for part in command_line(pid)))


def test_a_new_http_process_learns_the_trees(pair: Served) -> None:
    prompts = {name: f"The {name}. {TEXT * 4}" for name in ("hill", "lake", "wood", "path")}
    pair.http.delete("/cache")  # a full cache could evict one of the prompts for the next
    for name, prompt in prompts.items():
        complete(pair, prompt=prompt, max_tokens=1, cache_salt=name)
    homes = {name: find_replicas(pair, name) for name in prompts}
    assert {frozenset(home) for home in homes.values()} == {frozenset({0}), frozenset({1})}, homes
    before = find_http_process(pair)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: not is_alive(before) and pair.is_healthy)
    eventually(lambda: are_up(pair))
    for name, prompt in prompts.items():
        usage = complete(pair, prompt=prompt + TEXT, max_tokens=1, cache_salt=name)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert {name: find_replicas(pair, name) for name in prompts} == homes


def test_drops_and_reports_are_of_both_replicas(pair: Served) -> None:
    pair.http.delete("/cache")
    for number in range(4):
        complete(pair, prompt=f"{number} {TEXT * 3}", max_tokens=1)
    status = pair.http.get("/cache").json()
    server = pair.http.get("/server").json()
    assert (server["replicas"], server["replicas_up"], server["state"]) == (2, 2, "ready")
    (pages,) = server["pages"]
    assert pages["total"] == status["sizes"]["total"]["pages"] == int(pair.metrics()["arbora_kv_pages"])
    assert pages["cached"] == status["sizes"]["cached"]["pages"] > 0
    roots = pair.http.get("/cache/tree").json()
    nodes = roots["nodes"]
    assert [nodes[root["node"]]["parent"] for root in roots["roots"]] == [None, None]
    for node in nodes:
        if node["id"] is not None and node["text"]:
            text = pair.http.get(f"/cache/tree/{node['id']}").json()["text"]
            assert text.startswith(node["text"][:20])
    freed = pair.http.delete("/cache").json()["freed"]
    assert freed["pages"] == pages["cached"]
    assert pair.http.get("/cache").json()["sizes"]["cached"]["pages"] == 0


def test_a_pin_holds_in_both_replicas(pair: Served) -> None:
    pinned = pair.http.post("/cache/pin", json={"prompt": f"pinned {TEXT * 3}", "ttl_s": 600}).json()
    again = pair.http.post("/cache/pin", json={"prompt": f"pinned {TEXT * 3}", "ttl_s": 600}).json()
    assert again["id"] == pinned["id"]
    listed = pair.http.get("/cache").json()
    assert [pin["id"] for pin in listed["pins"]] == [pinned["id"]]
    assert listed["sizes"]["pinned"]["pages"] == pinned["pages"] == 2 * (pinned["tokens"] // 16)
    pair.http.delete("/cache")
    usage = complete(pair, prompt=f"pinned {TEXT * 3} and more", max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= pinned["tokens"]
    assert pair.http.delete(f"/cache/pin/{pinned['id']}").status_code == 200
    assert pair.http.delete(f"/cache/pin/{pinned['id']}").status_code == 404
    assert pair.http.get("/cache").json()["pins"] == []


def test_a_lease_moves_with_its_key(pair: Served) -> None:
    for number in range(4):  # different prompts go to different replicas
        lease = {"ttl_s": 600, "key": "session"}
        complete(pair, prompt=f"{number} leased {TEXT * 3}", max_tokens=1, cache_lease=lease)
        eventually(lambda: len(pair.http.get("/cache").json()["leases"]) == 1)
    assert pair.http.delete("/cache/lease/session").status_code == 202
    eventually(lambda: pair.http.get("/cache").json()["leases"] == [])


def test_the_limit_of_a_key_holds_over_both_replicas(tmp_path: Path) -> None:
    line = {"name": "ada", "sha256": key_hash("ada"), "requests_per_minute": 3}
    keys = tmp_path / "keys"
    keys.write_text(json.dumps(line))
    keys.chmod(0o600)
    with serve(BUILTIN_MODEL, "--replicas", "2", *ROOM, "--api-key", f"@{keys}", key="ada") as server:
        headers = {"Authorization": "Bearer ada"}
        statuses = [
            server.http.post(
                "/v1/completions", json={"prompt": f"{n} {TEXT}", "max_tokens": 1}, headers=headers
            ).status_code
            for n in range(6)
        ]
    assert statuses == [200, 200, 200, 429, 429, 429]


class Stream:
    """A stream that a thread reads: the text so far, and whether it ended as it should."""

    def __init__(self, server: Served, **fields: Any) -> None:
        self.text = ""
        self.events: list[str] = []
        self.is_complete = False
        self._body = {"stream": True, **fields}
        self._thread = threading.Thread(target=self._read, args=(server,))
        self._thread.start()

    def _read(self, server: Served) -> None:
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=self._body, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                if not line:
                    continue
                self.events.append(line)
                if line == "data: [DONE]":
                    self.is_complete = True
                elif "choices" in (event := json.loads(line.removeprefix("data: "))):
                    self.text += "".join(choice["text"] for choice in event["choices"])

    def end(self) -> str:
        self._thread.join(PATIENCE)
        assert self.is_complete, self.events[-1:]
        return self.text


@pytest.mark.parametrize("role", ["model", "scheduler"])
def test_a_killed_replica_costs_no_request_and_streams_go_on(pair: Served, role: str) -> None:
    send_to_first_and_check(pair, role, signal.SIGKILL)


@pytest.mark.parametrize("role", ["model", "scheduler"])
def test_a_hung_replica_costs_no_request_and_streams_go_on(impatient: Served, role: str) -> None:
    send_to_first_and_check(impatient, role, signal.SIGSTOP)


def send_to_first_and_check(pair: Served, role: str, number: signal.Signals) -> None:
    """Sends a signal to a process of the first replica while requests run. All get their texts."""
    eventually(lambda: are_up(pair))
    long: Any = {"max_tokens": 700, "min_tokens": 700, "ignore_eos": True}
    bodies: list[Any] = [
        {"prompt": f"{number} {TEXT}", **long, **sampling}
        for number in range(2)
        for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": number, "presence_penalty": 0.3})
    ]
    expected = [complete(pair, **body)["choices"][0]["text"] for body in bodies]
    asked = {"prompt": f"whole {TEXT}", "max_tokens": 60, "min_tokens": 60, "temperature": 0}
    whole = complete(pair, **asked)["choices"][0]["text"]
    streams = [Stream(pair, **body) for body in bodies]
    eventually(lambda: all(len(stream.events) > 20 for stream in streams))
    statuses: list[int] = []
    texts: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            answer = httpx.post(f"{pair.url}/v1/completions", json=asked, timeout=PATIENCE)
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                texts.append(answer.json()["choices"][0]["text"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    before = processes(pair, role)
    begun = [len(stream.events) for stream in streams]
    os.kill(before[0], number)
    while any(thread.is_alive() for thread in (stream._thread for stream in streams)):
        # With the short timeouts a replica whose report is half a second late does not respond either.
        assert pair.is_healthy or number == signal.SIGSTOP
        time.sleep(0.05)
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert [stream.end() for stream in streams] == expected, begun
    assert set(statuses) == {200} and set(texts) == {whole}
    eventually(lambda: are_up(pair))
    after = processes(pair, role)
    assert after[0] != before[0] and after[1] == before[1]
    eventually(lambda: pair.is_quiet)


def test_a_constrained_stream_goes_on_at_another_replica(pair: Served) -> None:
    eventually(lambda: are_up(pair))
    for constraint in (
        {"structured_outputs": {"regex": "[a-z ]{600}"}},
        {"structured_outputs": {"grammar": "start: /[a-z ]{600}/"}},
    ):
        body = {"prompt": TEXT, "max_tokens": 650, "temperature": 1.0, "seed": 3, **constraint}
        expected = complete(pair, **body)["choices"][0]["text"]
        stream = Stream(pair, **body)
        eventually(lambda stream=stream: len(stream.events) > 20)  # type: ignore[misc]
        busy = find_busy(pair)
        os.kill(processes(pair, "model")[busy], signal.SIGKILL)
        assert stream.end() == expected
        eventually(lambda: are_up(pair))


def find_busy(server: Served) -> int:
    """The replica with a running request: the one whose tree has a node in use."""
    nodes = server.http.get("/cache/tree").json()["nodes"]
    return next(int(node["id"]) % 2 for node in nodes if node["id"] is not None and node["requests"])


def test_draining_ends_open_requests_of_both_replicas() -> None:
    with serve(BUILTIN_MODEL, "--replicas", "2", *ROOM) as server:
        streams = [
            Stream(server, prompt=f"{number} {TEXT}", max_tokens=300, min_tokens=300, temperature=0)
            for number in range(4)
        ]
        eventually(lambda: all(len(stream.events) > 3 for stream in streams))
        children = children_of(server.process.pid)
        assert len(children) == 5
        server.process.send_signal(signal.SIGTERM)
        assert [bool(stream.end()) for stream in streams] == [True] * 4
        assert server.process.wait(PATIENCE) == 0
    assert not any(map(is_alive, children))
