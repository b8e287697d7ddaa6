"""What users see when processes die or get a signal, and that no process or file is left."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from open_requests import ENDLESS, Asking, Streaming
from processes import descendants_of, is_alive, processor_ticks
from served import PATIENCE, Served, eventually, serve


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


@pytest.fixture(scope="module")
def victim(roomy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(roomy_model, "--kv-memory", "16MiB", home=tmp_path_factory.mktemp("h")) as server:
        yield server


def start_grammar_processes(served: Served) -> None:
    """Sends a request with a regex and one with a grammar: each starts a server process and a fork of it. The
    regex is always a new one, because the automata of earlier ones may be on the disk."""
    for constraint in ({"regex": f"a|{secrets.token_hex()}"}, {"grammar": 'start: "a" /[a-z]+/'}):
        body = {"model": served.model, "prompt": "x", "max_tokens": 2, **constraint}
        served.http.post("/v1/completions", json=body).raise_for_status()


@pytest.mark.parametrize("role", ["scheduler", "model"])
def test_when_a_replica_dies_streams_end_with_an_error_and_the_rest_is_answered(
    victim: Served, role: str
) -> None:
    start_grammar_processes(victim)
    streaming = Streaming(victim)
    asking = Asking(victim, max_tokens=2000)
    eventually(lambda: victim.running == 2)
    before, pids = victim.metrics(), descendants_of(victim.process.pid)
    os.kill(victim.children[role], signal.SIGKILL)
    *_, last = streaming.end()
    assert last.startswith('data: {"error":')
    assert '"model_died"' in last
    answer = asking.end()
    assert answer is not None
    assert answer.json()["usage"]["completion_tokens"] == 2000
    eventually(lambda: victim.is_healthy)
    eventually(lambda: victim.is_quiet)
    after = victim.metrics()
    counters = [name for name in before if name.endswith(("_total", "_count"))]
    assert all(after[name] >= before[name] for name in counters)
    replaced = pids - descendants_of(victim.process.pid)
    assert len(replaced) >= 6
    eventually(lambda: not any(map(is_alive, replaced)))


def test_requests_are_refused_with_retry_after_while_the_replica_restarts(victim: Served) -> None:
    os.kill(victim.children["model"], signal.SIGKILL)
    eventually(lambda: not victim.is_healthy)
    victim.process.send_signal(signal.SIGSTOP)  # so that it doesn't say meanwhile that the next is ready
    try:
        refused = victim.http.post("/v1/chat/completions", json={"model": victim.model, **ENDLESS})
    finally:
        victim.process.send_signal(signal.SIGCONT)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["code"] == "model_not_ready"
    eventually(lambda: victim.is_healthy)


def test_when_the_tokenizer_process_dies_another_takes_over(victim: Served) -> None:
    asking = Asking(victim)
    eventually(lambda: victim.running == 1)
    os.kill(victim.children["tokenizer"], signal.SIGKILL)
    assert asking.end() is None
    eventually(lambda: victim.is_healthy)
    eventually(lambda: victim.is_quiet)


@pytest.mark.parametrize("role", ["scheduler", "model"])
def test_a_signal_ends_a_replica_even_if_its_threads_are_busy(victim: Served, role: str) -> None:
    pid = victim.children[role]
    os.kill(pid, signal.SIGTERM)
    end = f"the {role} process (pid {pid}) was killed by signal 15"
    eventually(lambda: end in "".join(victim.log))
    eventually(lambda: victim.is_healthy)


def test_an_idle_server_uses_no_processor_time(victim: Served) -> None:
    start_grammar_processes(victim)
    eventually(lambda: victim.is_quiet)

    def ticks() -> int:
        return sum(map(processor_ticks, descendants_of(victim.process.pid)))

    def is_idle() -> bool:
        before = ticks()
        time.sleep(2)
        return ticks() - before <= 0.02 * 2 * os.sysconf("SC_CLK_TCK")

    eventually(is_idle, 300)  # the grammars' process may first have to compile its own code


FINISHING = "arbora: finishing 1 open request; Ctrl-C again ends at once\n"


def count_tokens_of_five_seconds(served: Served) -> int:
    """Measures how many tokens a reply gets in five seconds. A signal comes before its end, which comes
    within the 30 seconds for which an ending server waits, also if the machine becomes slower."""
    Asking(served, max_tokens=100).end()
    began = time.monotonic()
    Asking(served, max_tokens=100).end()
    return int(100 * 5 / (time.monotonic() - began))


def test_a_signal_lets_open_streams_end_and_leaves_no_process(roomy_model: Path, home: Path) -> None:
    with serve(roomy_model, "--kv-memory", "16MiB", home=home) as server:
        start_grammar_processes(server)
        pids = descendants_of(server.process.pid)
        asking = Asking(server, max_tokens=count_tokens_of_five_seconds(server))
        eventually(lambda: server.running == 1)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: FINISHING in server.log)
        answer = asking.end()
        assert answer is not None
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(PATIENCE) == 0
        with pytest.raises(ConnectionRefusedError):
            connect(server)
    eventually(lambda: not any(map(is_alive, pids)))
    assert list(home.iterdir()) == []


def test_a_second_interrupt_ends_open_streams_at_once(roomy_model: Path, home: Path) -> None:
    with serve(roomy_model, "--kv-memory", "16MiB", home=home) as server:
        start_grammar_processes(server)
        pids = descendants_of(server.process.pid)
        asking = Asking(server)
        eventually(lambda: server.running == 1)
        server.process.send_signal(signal.SIGINT)
        eventually(lambda: FINISHING in server.log)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 128 + signal.SIGINT
        assert asking.end() is None
    eventually(lambda: not any(map(is_alive, pids)))
    assert list(home.iterdir()) == []


def connect(served: Served) -> None:
    address = urlsplit(served.url)
    socket.create_connection((address.hostname, address.port)).close()
