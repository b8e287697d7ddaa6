"""A real process of a grammar that is stopped: the other requests' steps go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from arbora.grammars import GrammarCompiler
from arbora.runtime.grammar_spec import GrammarSpec
from arbora.runtime.vocabulary import build_vocabulary
from fake_model import EOS, VOCAB, long_reply_prompt, reply_alone
from grammar_world import server_pid
from processes import children_of
from scheduler_bench import SchedulerBench

BOUND_S = 120.0
LETTERS = b'0123456789abcdefghijklmnopqrstuvwxyz{}[]":,.-+_ /()*?!<>|=;&%$#'
TEXT = "start: /[0-9]{200}/"


@pytest.fixture
def grammars() -> Iterator[GrammarCompiler]:
    tokens = [b"<end>", *(bytes([letter]) for letter in LETTERS)]
    made = GrammarCompiler(build_vocabulary(tokens, [True] + [False] * (VOCAB - 1), (EOS,)), VOCAB)
    made.start()
    yield made
    made.close()


def bench_with(grammars: GrammarCompiler) -> SchedulerBench:
    compiler: Any = grammars
    bench = SchedulerBench(compiler=compiler)
    submit = grammars.submit
    compiler.submit = lambda ticket, spec, **options: submit(ticket, GrammarSpec("grammar", spec.text))
    return bench


def run_until(bench: SchedulerBench, is_reached: Callable[[], bool]) -> None:
    until = time.monotonic() + BOUND_S
    while not is_reached():
        bench.run(steps=1)
        assert time.monotonic() < until


def stop_process(grammars: GrammarCompiler) -> int:
    server = server_pid(grammars._followers)
    assert server is not None
    (process,) = children_of(server)
    os.kill(process, signal.SIGSTOP)
    return process


@pytest.mark.parametrize("answer_deadline_s", [600.0, 0.0])
def test_steps_of_other_requests_go_on_while_a_process_is_stopped(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, answer_deadline_s: float
) -> None:
    monkeypatch.setattr("arbora.grammars.host.grammar.ANSWER_DEADLINE_S", 600.0)
    bench = bench_with(grammars)
    prompt = long_reply_prompt(6, 60)
    bench.submit("stopped", [1, 2, 3], 60, TEXT)
    run_until(bench, lambda: len(bench.tokens("stopped")) > 2)
    process = stop_process(grammars)
    bench.submit("streams", prompt, 60)
    run_until(bench, lambda: bench.finish("streams") is not None)
    assert bench.tokens("streams") == reply_alone(prompt, 60)
    assert bench.finish("stopped") is None and bench.scheduler.awaits_answers
    if answer_deadline_s:
        os.kill(process, signal.SIGCONT)
    monkeypatch.setattr("arbora.grammars.host.grammar.ANSWER_DEADLINE_S", answer_deadline_s)
    run_until(bench, lambda: bench.finish("stopped") is not None)
    assert bench.finish("stopped") == ("length" if answer_deadline_s else "error")
    assert not bench.scheduler.awaits_answers
