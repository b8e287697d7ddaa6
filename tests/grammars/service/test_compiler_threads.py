"""A compiler's processes and threads: when they start, what waits for them, and that all end."""

from __future__ import annotations

import threading
import time

import pytest
from arbora.grammars import Automaton, HostGrammar
from arbora.grammars.errors import TooLargeError
from arbora.grammars.processes.compiler_process import CompilerProcess, GoOn
from arbora.grammars.processes.fork_client import ForkServerProcess, RestartingForkServer
from arbora.grammars.processes.messages import CompileJob, Outcome
from arbora.grammars.service import compiler as compiler_module
from arbora.grammars.service.compiler import THREADS
from grammar_world import answer, compiled, compiler, submit

PATIENCE_S = 300.0  # longer than a worker takes to compile its own code
BOUND_S = 60.0  # longer than the server of llguidance takes to start


def test_requests_wait_for_automata_while_the_server_of_processes_starts_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, start = threading.Event(), RestartingForkServer.wait_ready

    def held(server: RestartingForkServer) -> ForkServerProcess:
        assert server._does != "builds automata" or go.wait(PATIENCE_S)
        return start(server)

    monkeypatch.setattr(RestartingForkServer, "wait_ready", held)
    grammars = compiler()
    for number in range(THREADS + 1):
        submit(grammars, f"regex {number}", "regex", f"[ab]{number}")
    submit(grammars, "lark", "grammar", "start: /[ab]/")
    ended: list[str] = []
    deadline = time.monotonic() + BOUND_S
    while "lark" not in ended and time.monotonic() < deadline:
        ended += [ticket for ticket, _ in grammars.finished()]
        time.sleep(0.001)
    go.set()
    assert ended == ["lark"]
    assert isinstance(answer(grammars, f"regex {THREADS}"), Automaton)
    grammars.close()


def test_no_grammar_is_blamed_for_the_start_time_of_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(job: CompileJob, tenant: str, go_on: GoOn) -> tuple[Outcome, CompilerProcess]:
        raise TooLargeError("many states")

    start = "import time; time.sleep(3); from arbora.grammars.host.server import main; main()"
    monkeypatch.setattr(compiler_module, "HOST_START", start)
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 1.0)
    grammars = compiler()
    monkeypatch.setattr(grammars._builders, "run", too_large)
    assert isinstance(compiled(grammars, "regex", "[ab]"), HostGrammar)
    grammars.close()


def test_nothing_runs_after_the_compiler_is_closed() -> None:
    before = set(threading.enumerate())
    grammars = compiler()
    for number in range(3 * THREADS):
        submit(grammars, f"{number}", "regex", f"[0-9]{number}")
    futures = list(grammars._tickets.values())
    grammars.close()
    assert all(future.done() for future in futures)
    assert set(threading.enumerate()) <= before


def test_the_owner_is_notified_when_a_grammar_is_ready() -> None:
    told = threading.Event()
    grammars = compiler(on_finished=told.set)
    submit(grammars, "ticket", "regex", "told")
    assert told.wait(PATIENCE_S)
    ((ticket, result),) = grammars.finished()
    assert ticket == "ticket" and isinstance(result, Automaton)
    grammars.close()


def test_a_process_is_forked_for_the_first_grammar() -> None:
    grammars = compiler()
    assert grammars._builders.live == 0
    for text in ("first", "second"):
        assert isinstance(compiled(grammars, "regex", text), Automaton)
        assert grammars._builders.live == 1, "it takes one job after another"
    grammars.close()
