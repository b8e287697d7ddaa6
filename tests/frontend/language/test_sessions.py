"""A program's calls carry one session, which ends with the program."""

from __future__ import annotations

import time

import arbora as ab
import pytest
from arbora.frontend.language.execution import SESSION_S
from arbora.frontend.language.state import State
from scripted_backend import ScriptedBackend


@ab.program
def forks(s: State, salt: str | None = None) -> None:
    s += "Q" + ab.gen("first", cache_salt=salt) if salt else "Q" + ab.gen("first")
    for fork in s.fork(3):
        fork += ab.gen("more")


@ab.program
def fails(s: State) -> None:
    s += "Q" + ab.gen("first")
    raise ValueError(s["first"])


@ab.program
def selects(s: State) -> None:
    s += "Q" + ab.select("first", ["no", "yes"])
    s += ab.gen("second", cache_salt="s")


def ended(backend: ScriptedBackend) -> list[tuple[str, str | None]]:
    """The sessions that have ended; the backend hears of it in the background."""
    deadline = time.monotonic() + 10
    while not backend.ended and time.monotonic() < deadline:
        time.sleep(0.005)
    return backend.ended


def test_all_calls_of_a_run_have_one_session_and_it_ends_with_the_run() -> None:
    backend = ScriptedBackend()
    forks.run(backend=backend)
    assert len(backend.sessions) == 4
    assert len(set(backend.sessions)) == 1
    assert ended(backend) == [(backend.sessions[0], None)]


def test_two_runs_have_two_sessions() -> None:
    backend = ScriptedBackend()
    forks.run(backend=backend)
    forks.run(backend=backend)
    assert len(set(backend.sessions)) == 2


def test_a_session_ends_also_if_the_program_fails() -> None:
    backend = ScriptedBackend()
    with pytest.raises(ValueError, match="yes"):
        fails.run(backend=backend)
    assert ended(backend) == [(backend.sessions[0], None)]


def test_a_salted_session_ends_in_its_namespace() -> None:
    backend = ScriptedBackend()
    forks.run(salt="s", backend=backend)
    time.sleep(0.05)
    assert (backend.sessions[0], "s") in ended(backend)


def test_select_belongs_to_the_session() -> None:
    backend = ScriptedBackend()
    selects.run(backend=backend)
    assert len(backend.sessions) == 2
    assert len(set(backend.sessions)) == 1
    time.sleep(0.05)
    assert {salt for _, salt in ended(backend)} == {None, "s"}


def test_what_prewarm_computes_is_kept_as_long_as_a_session_without_calls() -> None:
    backend = ScriptedBackend()
    ab.prewarm(selects, backend=backend)
    assert backend.prefilled_for == [SESSION_S]
