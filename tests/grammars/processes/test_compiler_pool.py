"""The processes of one compiler: which one takes a job, and when a job is short or ends."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from arbora.grammars import CompilerError
from arbora.grammars.errors import TooLargeError
from arbora.grammars.processes import compiler_process
from arbora.grammars.processes.compiler_pool import CompilerPool
from arbora.grammars.processes.compiler_process import CompilerProcess, TakesLongError
from arbora.grammars.processes.messages import AutomatonReady, CompileJob
from arbora.runtime.grammar_spec import GrammarSpec
from grammar_world import compiler

SLOW = GrammarSpec("regex", "(a|b)*a(a|b){12}")
QUICK = GrammarSpec("regex", "quick")


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilerPool]:
    made = compiler()
    yield made._builders
    made.close()


def run(
    pool: CompilerPool, spec: GrammarSpec, deadline_s: float = 60.0, go_on: bool = True
) -> CompilerProcess:
    """Runs a job. Returns its process."""
    outcome, process = pool.run(CompileJob("compile", spec, deadline_s, "key"), "", lambda: go_on)
    assert isinstance(outcome, AutomatonReady) and outcome.automaton.key == "key"
    return process


def test_the_process_of_the_last_job_takes_the_next_one(pool: CompilerPool) -> None:
    first, last = run(pool, QUICK), run(pool, QUICK)
    pool.release(first)
    pool.release(last)
    again = run(pool, QUICK)
    assert again is last
    pool.release(again)


@pytest.mark.parametrize("may_go_on", [True, False])
def test_a_job_that_takes_long_asks_once_whether_it_may_go_on(
    pool: CompilerPool, may_go_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_process, "SHORT_S", 0.005)  # fast processors need less than the usual limit
    monkeypatch.setattr(compiler_process, "LOOK_S", 0.005)
    asked: list[None] = []

    def go_on() -> bool:
        asked.append(None)
        return may_go_on

    pool.release(run(pool, QUICK))
    live, job = pool.live, CompileJob("compile", SLOW, 60.0)
    if may_go_on:
        _, process = pool.run(job, "", go_on)
        assert pool.live == live, "its process keeps its cache"
        pool.release(process)
    else:
        with pytest.raises(TakesLongError):
            pool.run(job, "", go_on)
        assert pool.live == live - 1
    assert len(asked) == 1


def test_no_job_may_take_more_than_its_processor_time(pool: CompilerPool) -> None:
    with pytest.raises(TooLargeError, match=r"takes more than 0\.05 s"):
        run(pool, SLOW, 0.05)


def test_a_quick_job_never_asks_whether_it_may_go_on(pool: CompilerPool) -> None:
    pool.release(run(pool, QUICK, go_on=False))


def test_a_job_without_a_socket_leaves_no_process(
    pool: CompilerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    taken = run(pool, QUICK)  # no idle process is left
    monkeypatch.setattr("arbora.grammars.processes.compiler_pool.socket.socketpair", fail)
    live = pool.live
    with pytest.raises(OSError, match="Too many open files"):
        run(pool, QUICK)
    assert pool.live == live
    pool.release(taken)


def test_a_process_that_is_given_up_does_not_count_as_live(pool: CompilerPool) -> None:
    process = run(pool, QUICK)
    live = pool.live
    process.give_up(CompilerError("its process gave no answer"))
    assert pool.live == live - 1


def test_a_closed_pool_runs_no_job() -> None:
    made = compiler()
    made.close()
    with pytest.raises(CompilerError, match="closed"):
        run(made._builders, QUICK)
