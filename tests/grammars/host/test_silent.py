"""Processes that give no answer: many at once cost their caller one deadline in all."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np
import pytest
from arbora.grammars import CompilerError, HostGrammar
from arbora.grammars.errors import Fault
from arbora.grammars.processes.channel import LENGTH, Channel, frame
from arbora.grammars.processes.compiler_process import CompilerProcess
from arbora.grammars.processes.messages import MAX_STATE, MatcherState, decode_request, encode
from scheduler_bench import EvenTokens, SchedulerBench

DEADLINE_S = 0.5


class NoServer:
    """Notes the processes that it was told to end."""

    is_alive = True

    def __init__(self) -> None:
        self.told: list[int] = []

    def tell(self, what: bytes, number: int) -> None:
        self.told.append(number)


class SilentGrammars:
    """Grammars whose processes read questions and answer only when the test says so."""

    def __init__(self, count: int) -> None:
        self.server = NoServer()
        pairs = [socket.socketpair() for _ in range(count)]
        self.ends = [theirs for _, theirs in pairs]
        self.error: Fault | None = None
        channels = [Channel(ours, MAX_STATE) for ours, _ in pairs]
        server: Any = self.server
        processes = [
            CompilerProcess(server, number, channel, Channel.close) for number, channel in enumerate(channels)
        ]
        self.grammars = [HostGrammar(process, (256,), 0) for process in processes]

    def answer(self, number: int) -> None:
        """Answers one question."""
        header = self.ends[number].recv(LENGTH.size, socket.MSG_WAITALL)
        question = self.ends[number].recv(LENGTH.unpack(header)[0], socket.MSG_WAITALL)
        mask = np.zeros(8, np.int32).tobytes()
        state = MatcherState(decode_request(question).matcher, self.error, b"text", mask)
        self.ends[number].sendall(frame(encode(state)))

    def asked(self) -> list[int]:
        """The processes that have a question to read."""
        found = []
        for number, end in enumerate(self.ends):
            try:
                end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            found.append(number)
        return found


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbora.grammars.host.grammar.ANSWER_DEADLINE_S", DEADLINE_S)
    monkeypatch.setattr("arbora.grammars.host.grammar.MIN_WAIT_S", 0.01)


def test_silent_processes_that_were_asked_together_share_one_deadline() -> None:
    silent = SilentGrammars(12)
    matchers = [grammar.matcher() for grammar in silent.grammars]
    began = time.monotonic()
    for matcher in matchers:
        assert matcher.forced_text().text == b""
    assert time.monotonic() - began < 4 * DEADLINE_S
    assert silent.server.told == list(range(12))


def test_an_answer_in_time_counts_even_if_it_is_read_late() -> None:
    silent = SilentGrammars(1)
    matcher = silent.grammars[0].matcher()
    silent.answer(0)
    time.sleep(1.2 * DEADLINE_S)
    assert matcher.forced_text().text == b"text"
    assert silent.server.told == []


def test_the_scheduler_asks_all_new_matchers_before_it_awaits_one(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SilentGrammars(4)
    asked_at_first_wait: list[list[int]] = []
    receive = Channel.receive

    def noted(self: Channel, deadline_s: float) -> bytes:
        asked_at_first_wait.append(silent.asked())
        return receive(self, deadline_s)

    monkeypatch.setattr(Channel, "receive", noted)

    class Compiled(EvenTokens):
        def finished(self) -> list[tuple[str, object]]:
            return [(ticket, silent.grammars[int(ticket)]) for ticket, _ in super().finished()]

    bench = SchedulerBench(compiler=Compiled())
    for number in range(4):
        bench.submit(str(number), [1, 2, 3], grammar="even")
    bench.compiler.finish_all()
    bench.update()
    assert asked_at_first_wait[0] == [0, 1, 2, 3]


def test_an_answer_with_an_unknown_error_ends_its_process_and_not_the_caller() -> None:
    silent = SilentGrammars(1)
    matcher = silent.grammars[0].matcher()
    silent.error = Fault("Nope", ("x",))
    silent.answer(0)
    error = matcher.consume(1)
    assert isinstance(error, CompilerError), "no grammar is to blame"
    assert silent.grammars[0].find_fault() is not None


def test_a_process_that_gave_no_answer_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SilentGrammars(1)
    waits: list[float] = []
    receive = Channel.receive

    def noted(self: Channel, deadline_s: float) -> bytes:
        waits.append(deadline_s)
        return receive(self, deadline_s)

    monkeypatch.setattr(Channel, "receive", noted)
    matcher = silent.grammars[0].matcher()
    assert [matcher.is_ready(0.01) for _ in range(3)] == [False] * 3
    assert waits[0] > 0.0 and waits[1:] == [0.0, 0.0]
    silent.answer(0)
    assert matcher.is_ready(0.0) and matcher.forced_text().text == b"text"
    matcher.begin(1)
    assert not matcher.is_ready(0.01) and waits[-1] > 0.0


def test_new_requests_do_not_extend_the_deadline_of_a_silent_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("arbora.grammars.host.grammar.time.monotonic", lambda: now)
    silent = SilentGrammars(1)
    matchers = [silent.grammars[0].matcher()]
    while not matchers[0].is_ready(0.0):
        assert now < 10 * DEADLINE_S
        now += 0.1
        matchers.append(silent.grammars[0].matcher())
    assert DEADLINE_S <= now <= DEADLINE_S + 0.3 and silent.server.told == [0]
    assert all(matcher.is_ready(0.0) for matcher in matchers)
    assert isinstance(matchers[1].consume(1), CompilerError)
