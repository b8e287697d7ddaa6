"""A server with two HTTP processes: what they share, and what the death of one costs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from arbora.runtime.api_keys import key_hash
from generate_sockets import begin, open_socket, until_end
from processes import children_of, command_line
from served import HELLO, Served, eventually, serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection


def workers(server: Served) -> dict[int, int]:
    """The process ids of the HTTP processes, by their numbers."""
    found = {}
    for pid in children_of(server.process.pid):
        command = [*filter(None, command_line(pid))]
        if any(part.endswith("frontend.app.process") for part in command):
            found[int(command[-2])] = pid
    return found


def connections(server: Served, pid: int) -> int:
    """How many established connections to the server's port the process has."""
    port = f":{int(server.url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == "01"}
    links = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was just closed
            links.add(os.readlink(file))
    return len(established & links)


def client_of(server: Served, number: int) -> httpx.Client:
    """A client whose connection is at that HTTP process."""
    for _ in range(200):
        pid = workers(server)[number]
        before = connections(server, pid)
        client = httpx.Client(base_url=server.url, timeout=60)
        client.get("/version")
        if connections(server, pid) > before:
            return client
        client.close()
    raise AssertionError("no connection came to the process")


def socket_of(server: Served, number: int) -> ClientConnection:
    """A WebSocket whose connection is at that HTTP process."""
    for _ in range(200):
        pid = workers(server)[number]
        before = connections(server, pid)
        socket = open_socket(server)
        if connections(server, pid) > before:
            return socket
        socket.close()
    raise AssertionError("no connection came to the process")


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def shared(served_model: Path) -> Iterator[Served]:
    """A server with two HTTP processes, for tests after which both answer again."""
    with serve(served_model, "--api-workers", "2") as server:
        yield server


def test_the_death_of_one_process_costs_the_other_nothing(shared: Served) -> None:
    clients = [client_of(shared, number) for number in (0, 1)]
    body = {"messages": HELLO, "max_tokens": 500, "min_tokens": 500, "stream": True}
    ended = {0: False, 1: False}
    begun = {number: threading.Event() for number in (0, 1)}
    broken: set[int] = set()

    def stream(number: int) -> None:
        try:
            with clients[number].stream("POST", "/v1/chat/completions", json=body) as answer:
                for line in answer.iter_lines():
                    begun[number].set()
                    ended[number] |= line == "data: [DONE]"
        except httpx.TransportError:
            broken.add(number)

    sockets = [socket_of(shared, number) for number in (0, 1)]
    for socket in sockets:
        begin(socket, prompt="Hello", stream=True, min_tokens=500, max_tokens=500)
        socket.recv(60)
    threads = [threading.Thread(target=stream, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for each in begun.values():
        assert each.wait(60)
    first = workers(shared)
    os.kill(first[0], signal.SIGKILL)
    for thread in threads:
        thread.join(120)
    assert broken == {0}
    assert ended[1]
    with pytest.raises(ConnectionClosed):
        until_end(sockets[0])
    assert until_end(sockets[1])[-1]["end"]["usage"]["completion_tokens"] == 500
    sockets[1].close()
    eventually(lambda: workers(shared).get(0, first[0]) != first[0])
    assert workers(shared)[1] == first[1]
    eventually(lambda: metric(clients[1], "arbora_requests_running") == 0)
    with contextlib.closing(client_of(shared, 0)) as again:
        assert (
            again.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2}).status_code == 200
        )


def test_both_processes_show_the_sum_of_their_metrics_also_after_one_was_replaced(shared: Served) -> None:
    body = {"prompt": "one two", "max_tokens": 3, "min_tokens": 3}
    clients = [client_of(shared, number) for number in (0, 1)]
    name = "arbora_request_completion_tokens_total"
    sum_of_both = metric(clients[0], name) + 6
    for client in clients:
        assert client.post("/v1/completions", json=body).status_code == 200
    assert [metric(client, name) for client in clients] == [sum_of_both, sum_of_both]
    old = workers(shared)[0]
    os.kill(old, signal.SIGKILL)
    eventually(lambda: workers(shared).get(0, old) != old)
    assert metric(clients[1], name) == sum_of_both
    with contextlib.closing(client_of(shared, 0)) as again:
        assert metric(again, name) == sum_of_both


def test_each_process_lists_the_requests_of_both(shared: Served) -> None:
    body = {"prompt": "one two", "max_tokens": 3, "min_tokens": 3}
    clients = [client_of(shared, number) for number in (0, 1)]
    sent = {client.post("/v1/completions", json=body).headers["x-request-id"] for client in clients}
    for client in clients:
        eventually(partial(lists_all, client, sent))
    long = {"prompt": "one", "max_tokens": 1000, "min_tokens": 1000}
    with clients[0].stream("POST", "/v1/completions", json={**long, "stream": True}) as answer:
        lines = answer.iter_lines()  # its end would close the stream
        next(lines)
        (running,) = requests_of(clients[1], "open")
        assert running["state"] == "decode" and running["output_tokens"] > 0
        assert running["id"] == f"{answer.headers['x-request-id']}-0"
    eventually(lambda: requests_of(clients[1], "open") == [])
    history = clients[1].get("/server/history").json()
    assert history["interval_s"] == 5


def lists_all(client: httpx.Client, ids: set[str]) -> bool:
    return ids <= {each["id"] for each in requests_of(client, "recent")}


def requests_of(client: httpx.Client, name: str) -> list[Any]:
    listed: list[Any] = client.get("/server/requests").json()[name]
    return listed


def cached_tokens(clients: list[httpx.Client], salt: str) -> list[int]:
    """The cached tokens of each turn of a conversation that goes round the clients."""
    sampling = {"max_tokens": 40, "min_tokens": 40, "temperature": 1.0, "cache_salt": salt}
    messages: list[Any] = [*HELLO]
    cached = []
    for turn in range(4):
        body = {"messages": messages, "seed": turn, **sampling}
        answer = clients[turn % len(clients)].post("/v1/chat/completions", json=body).json()
        time.sleep(0.1)  # until the other process knows the reply
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "More."}]
    return cached


def test_a_conversation_that_changes_processes_keeps_its_sampled_ids(shared: Served) -> None:
    clients = [client_of(shared, number) for number in (0, 1)]
    assert cached_tokens(clients, "changes") == cached_tokens(clients[:1], "stays")


def test_a_limit_holds_over_all_processes_and_new_keys_reach_all(served_model: Path, tmp_path: Path) -> None:
    def write_keys(*names: str) -> None:
        lines = [{"name": name, "sha256": key_hash(name), "requests_per_minute": 2} for name in names]
        (tmp_path / "keys").write_text("\n".join(map(json.dumps, lines)))

    def status(client: httpx.Client, key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        body = {"prompt": "a", "max_tokens": 1}
        return client.post("/v1/completions", json=body, headers=headers).status_code

    write_keys("ada")
    (tmp_path / "keys").chmod(0o600)
    with serve(served_model, "--api-workers", "2", "--api-key", f"@{tmp_path / 'keys'}", key="ada") as server:
        clients = [client_of(server, number) for number in (0, 1)]
        assert [status(clients[number], "ada") for number in (0, 1, 0, 1)] == [200, 200, 429, 429]
        write_keys("bob")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: [status(client, "ada") for client in clients] == [401, 401])
        assert [status(client, "bob") for client in clients] == [200, 200]
        (tmp_path / "keys").write_text("bob\n{")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "line 2 is no JSON object" in "".join(server.log))
        assert status(clients[0], "bob") == 429
        old = workers(server)[0]
        os.kill(old, signal.SIGKILL)
        eventually(lambda: workers(server).get(0, old) != old)
        with contextlib.closing(client_of(server, 0)) as again:
            assert (status(again, "ada"), status(again, "bob")) == (401, 429)


def test_both_processes_drain(served_model: Path) -> None:
    with serve(served_model, "--api-workers", "2") as server:
        clients = [client_of(server, each) for each in (0, 1)]
        finished: list[str] = []

        def ask(client: httpx.Client) -> None:
            body = {"prompt": "one", "max_tokens": 300, "min_tokens": 300}
            finished.append(client.post("/v1/completions", json=body).json()["choices"][0]["finish_reason"])

        threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        eventually(lambda: metric(server.http, "arbora_requests_running") == 2)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert finished == ["length", "length"]
        assert server.process.wait(60) == 0
