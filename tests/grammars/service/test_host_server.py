"""The server whose processes follow grammars: its limits, and what its end or a stop costs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from arbora.grammars import (
    Automaton,
    BusyError,
    CompilerError,
    GrammarCompiler,
    GrammarError,
    HostGrammar,
)
from arbora.grammars.host.native import NativeMatcher
from arbora.grammars.processes import compiler_pool, compiler_process
from arbora.grammars.processes.fork_client import ForkServerProcess
from arbora.grammars.processes.messages import KILL, HostVocabulary, encode
from arbora.grammars.service.compiler import HOST_START
from grammar_world import (
    allowed,
    answer,
    compiled,
    compiler,
    server_pid,
    submit,
)
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from processes import children_of, descendants_of

BOUND_S = 60.0  # two seconds for each engine, and the delays of a loaded machine


@pytest.fixture(autouse=True)
def usual_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 2.0)


def followed(grammars: GrammarCompiler, text: str) -> HostGrammar:
    grammar = compiled(grammars, "grammar", text)
    assert isinstance(grammar, HostGrammar)
    return grammar


def test_one_tenant_cannot_take_the_processes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_pool, "MAX_PROCESSES", 6)
    grammars = compiler()
    try:
        made = [compiled(grammars, "grammar", f'start: "share {i}"', tenant="greedy") for i in range(5)]
        assert [type(result) for result in made] == [HostGrammar] * 3 + [BusyError] * 2
        assert "3 grammars of yours" in str(made[-1])
        assert isinstance(compiled(grammars, "grammar", 'start: "share"', tenant="modest"), HostGrammar)
    finally:
        grammars.close()


@pytest.mark.parametrize("kind", ["grammar", "regex"])
def test_a_server_starts_with_the_first_grammar_that_needs_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbora.runtime.compiled_code.CompiledNote.holds", lambda note: True)
    made = compiler()

    def running() -> list[str]:
        pids = {"grammar": server_pid(made._followers), "regex": server_pid(made._builders)}
        return [name for name, pid in pids.items() if pid is not None]

    try:
        submit(made, "ticket", "grammar", "x" * 2_000_000)  # is refused before any process reads it
        assert isinstance(answer(made, "ticket"), GrammarError)
        assert running() == []
        compiled(made, kind, 'start: "a"')
        assert running() == [kind]
    finally:
        made.close()


def test_code_that_is_not_compiled_yet_is_compiled_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbora.runtime.compiled_code.CompiledNote.holds", lambda note: False)
    made = compiler()
    try:
        deadline = time.monotonic() + BOUND_S
        while server_pid(made._builders) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        made.close()


def test_no_tenant_is_charged_for_the_start_of_a_server() -> None:
    made = compiler()
    try:
        began = time.monotonic()
        assert isinstance(compiled(made, "regex", "a", tenant="first"), Automaton)
        assert made._threads._times.get("first") < (time.monotonic() - began) / 2
    finally:
        made.close()


def test_all_processes_end_with_the_compiler() -> None:
    before = descendants_of(os.getpid())
    made = compiler()
    kept = followed(made, 'start: "a" /[a-z]+/').matcher()
    assert kept.consume(ord("a")) is None
    made.close()
    deadline = time.monotonic() + BOUND_S
    while descendants_of(os.getpid()) - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert kept.consume(ord("b")) is not None


def test_the_server_that_dies_is_started_again() -> None:
    made = compiler()
    lost = followed(made, 'start: "a" /[a-z]+/').matcher()
    server = server_pid(made._followers)
    assert server is not None
    os.kill(server, signal.SIGKILL)
    deadline = time.monotonic() + BOUND_S
    while lost.consume(ord("a")) is None:  # its process ends with the server, a moment later
        assert time.monotonic() < deadline
    assert isinstance(compiled(made, "grammar", 'start: "b" /[a-z]+/'), HostGrammar)
    assert isinstance(compiled(made, "grammar", 'start: "a" /[a-z]+/'), HostGrammar), "no grammar is blamed"
    made.close()


def test_a_process_that_was_killed_while_it_was_idle_is_replaced_and_its_grammar_is_not_blamed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = compiler()
    text = 'start: "idle" /[a-z]+/'
    matcher = followed(made, text).matcher()
    assert matcher.consume(ord("i")) is None
    followed(made, text).matcher()  # this request ends before the process's answer is read
    kill_followers(made)
    again = followed(made, text).matcher()
    assert again.consume(ord("i")) is None
    assert "SIGKILL" in caplog.text
    assert isinstance(matcher.consume(ord("d")), CompilerError)
    kill_followers(made)
    assert isinstance(again.consume(ord("d")), CompilerError), "the client is not to blame for a reply's end"
    assert isinstance(compiled(made, "grammar", text), HostGrammar)
    made.close()


def test_a_process_that_the_server_kills_for_its_memory_is_blamed_on_the_grammar_even_if_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grown = tmp_path / "grown"
    start = (
        "from pathlib import Path; import arbora.grammars.processes.fork_server as forks\n"
        f"forks.measure_memory = lambda pid: Path({str(grown)!r}).exists() << 40\n{HOST_START}"
    )
    monkeypatch.setattr("arbora.grammars.service.compiler.HOST_START", start)
    made = compiler()
    text = 'start: "large" /[a-z]+/'
    grammar = followed(made, text)
    grown.touch()
    deadline = time.monotonic() + BOUND_S
    while grammar.find_fault() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    refused = compiled(made, "grammar", text)
    assert isinstance(refused, GrammarError) and "too much memory" in str(refused)
    made.close()


def kill_followers(grammars: GrammarCompiler) -> None:
    """Kills the processes of all grammars while they are idle, and waits for their end."""
    server = server_pid(grammars._followers)
    assert server is not None
    time.sleep(0.2)  # until they have answered what they were asked
    for process in children_of(server):
        os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + BOUND_S
    while children_of(server):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_is_stopped_is_ended_and_the_next_grammar_has_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 0.1)
    monkeypatch.setattr(compiler_process, "MARGIN_S", 0.1)
    monkeypatch.setattr(compiler_process, "END_DEADLINE_S", 0.2)
    made = compiler()
    compiled(made, "grammar", 'start: "kept"')
    server = server_pid(made._followers)
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    assert isinstance(compiled(made, "grammar", 'start: "lost"'), CompilerError)
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 20.0)
    assert isinstance(compiled(made, "grammar", 'start: "lost"'), HostGrammar), "it is not blamed"
    assert server_pid(made._followers) != server
    made.close()


def test_a_stopped_server_hardly_delays_the_replies_whose_process_died() -> None:
    made = compiler()
    matcher = followed(made, 'start: "stopped" /[a-z]+/').matcher()
    server = server_pid(made._followers)
    assert server is not None and matcher.consume(ord("s")) is None
    (process,) = children_of(server)
    os.kill(server, signal.SIGSTOP)
    os.kill(process, signal.SIGKILL)
    began = time.monotonic()
    assert isinstance(matcher.consume(ord("t")), CompilerError), "no grammar is blamed"
    assert time.monotonic() - began < 5 * compiler_process.REPORT_DEADLINE_S < compiler_process.END_DEADLINE_S
    os.kill(server, signal.SIGCONT)
    made.close()


def test_a_stopped_server_never_delays_its_senders() -> None:
    running = ForkServerProcess(HOST_START, encode(HostVocabulary(bytes(8), b"", [0], (0,), 1)), lambda: None)
    os.kill(running.process.pid, signal.SIGSTOP)
    for number in range(20_000):
        running.tell(KILL, number)
    assert running.process.wait(BOUND_S) == -signal.SIGKILL
    running.close()


def test_a_matcher_that_passes_a_limit_is_an_error_and_not_an_end() -> None:
    tokenizer = LLTokenizer("byte")
    grammar = LLMatcher.grammar_from_regex("(a|b)*a(a|b){9}c")
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(max_lexer_states=30))
    followed = NativeMatcher(matcher, (tokenizer.eos_token,))
    mask = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    letters = np.random.default_rng(0).choice(list(b"ab"), 100).tolist()
    for letter in letters:
        followed.fill_mask(mask)
        if allowed(mask) == {tokenizer.eos_token}:
            break
        assert followed.consume(letter) is None
    error = followed.consume(tokenizer.eos_token)
    assert error is not None and "too many states" in str(error)
