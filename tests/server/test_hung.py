"""What users see when a process hangs, stopped or in a loop: /health reports it, another replaces it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from impatient_server import SHORT
from open_requests import Asking, Streaming
from served import HELLO, PATIENCE, Served, eventually, serve

PROGRAM = str(Path(__file__).parents[1] / "support" / "impatient_server.py")
BOUND = SHORT.stalled_s["model"] + 60.0  # seconds, on a loaded machine and with the time to start again


@pytest.fixture(scope="module")
def hanging(roomy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("h")
    with serve(roomy_model, "--kv-memory", "16MiB", home=home, program=(PROGRAM,)) as server:
        yield server


def health(served: Served) -> str:
    """The status in `/health`, or the code of its error."""
    answer = served.http.get("/health").json()
    return str(answer.get("status") or answer["error"]["code"])


def log_of(served: Served, since: int) -> str:
    return "".join(served.log[since:])


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "looping"])
@pytest.mark.parametrize("role", ["scheduler", "model"])
def test_a_replica_that_hangs_is_reported_ended_and_replaced(
    hanging: Served, role: str, number: signal.Signals
) -> None:
    streaming = Streaming(hanging)
    asking = Asking(hanging, max_tokens=50)
    hung, before = hanging.children[role], len(hanging.log)
    os.kill(hung, number)
    eventually(lambda: health(hanging) == "model_not_responding", BOUND)
    assert hanging.http.get("/health").headers["retry-after"]
    later = Asking(hanging, max_tokens=50)
    assert '"model_died"' in streaming.end()[-1]
    for answer in (asking.end(), later.end()):
        assert answer is not None
        assert answer.json()["usage"]["completion_tokens"] == 50
    eventually(lambda: health(hanging) == "ok", BOUND)
    says = "has given no sign of life for" if number == signal.SIGSTOP else "has made no progress for"
    assert f"error: the {role} process (pid {hung}) {says}" in log_of(hanging, before)
    assert hanging.children[role] != hung


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "looping"])
def test_a_tokenizer_process_that_hangs_is_replaced_and_new_connections_are_answered(
    hanging: Served, number: signal.Signals
) -> None:
    hung, before = hanging.children["tokenizer"], len(hanging.log)
    os.kill(hung, number)
    answer = Asking(hanging, max_tokens=5).end()
    assert answer is not None
    assert answer.status_code == 200
    assert f"error: the tokenizer process (pid {hung}) has " in log_of(hanging, before)


def test_new_connections_are_all_answered_while_the_tokenizer_process_is_replaced(hanging: Served) -> None:
    body = {"model": hanging.model, "messages": HELLO, "max_tokens": 1}
    statuses: list[int] = []

    def ask() -> None:
        answer = httpx.post(f"{hanging.url}/v1/chat/completions", json=body, timeout=PATIENCE)
        statuses.append(answer.status_code)

    hung = hanging.children["tokenizer"]
    os.kill(hung, signal.SIGKILL)
    eventually(lambda: hanging.children.get("tokenizer") != hung)
    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join(PATIENCE)
    assert statuses == [200] * 40


def test_a_supervisor_that_was_stopped_itself_ends_no_child(hanging: Served) -> None:
    children, before = hanging.children, len(hanging.log)
    hanging.process.send_signal(signal.SIGSTOP)
    time.sleep(SHORT.silent_s + 2)
    answer = Asking(hanging, max_tokens=5).end()
    hanging.process.send_signal(signal.SIGCONT)
    assert answer is not None
    assert answer.status_code == 200
    time.sleep(2)
    assert hanging.children == children
    assert "no sign of life" not in log_of(hanging, before)


def test_a_server_with_a_stopped_replica_ends_on_a_signal(roomy_model: Path) -> None:
    with serve(roomy_model, "--kv-memory", "16MiB") as server:
        for role in ("model", "scheduler"):
            os.kill(server.children[role], signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
