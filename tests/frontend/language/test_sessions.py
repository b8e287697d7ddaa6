"""A program's calls carry one session, which ends with the program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import arbora as ab
import pytest
import scripted_backend
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


def ended(backend: ScriptedBackend, count: int = 1) -> list[tuple[str, str | None]]:
    """The sessions that have ended, once there are so many; the backend hears of it in the background."""
    deadline = time.monotonic() + 10
    while len(backend.ended) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    return backend.ended


def test_all_calls_of_a_run_have_one_session_of_its_own_that_ends_with_it() -> None:
    backend = ScriptedBackend()
    forks.run(backend=backend)
    assert len(backend.sessions) == 4
    assert len(set(backend.sessions)) == 1
    assert ended(backend) == [(backend.sessions[0], None)]
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
    assert (backend.sessions[0], "s") in ended(backend, 2)


def test_select_belongs_to_the_session() -> None:
    backend = ScriptedBackend()
    selects.run(backend=backend)
    assert len(backend.sessions) == 2
    assert len(set(backend.sessions)) == 1
    assert {salt for _, salt in ended(backend, 2)} == {None, "s"}


def test_what_prewarm_computes_is_kept_as_long_as_a_session_without_calls() -> None:
    backend = ScriptedBackend()
    ab.prewarm(selects, backend=backend)
    assert backend.prefilled_for == [SESSION_S]


SCRIPT = """
import asyncio, sys, threading
import arbora as ab
from scripted_backend import ScriptedBackend

class Slow(ScriptedBackend):
    async def end_session(self, session, cache_salt):
        await asyncio.sleep(float(sys.argv[2]))
        print("ended", flush=True)

class Endless(Slow):
    begun = threading.Event()

    async def reply(self, prompt, sampling, on_text):
        self.begun.set()
        await asyncio.sleep(1000)

@ab.program
def program(s):
    s += "Once" + ab.gen("first")
    s += ab.gen("second")

def left_early():
    for _ in program.stream(backend=Slow()):
        return

async def timed_out():
    run = asyncio.create_task(program.arun(backend=Endless()))
    await asyncio.to_thread(Endless.begun.wait)
    try:
        async with asyncio.timeout(0):
            await run
    except TimeoutError:
        pass

ends = {
    "run": lambda: program.run(backend=Slow()),
    "batch": lambda: program.run_batch([{}] * 3, backend=Slow()),
    "stream left early": left_early,
    "timeout": lambda: asyncio.run(timed_out()),
}
ends[sys.argv[1]]()
"""


def run_script(how: str, seconds: float) -> str:
    """What a script prints that exits right after a program. Ending a session takes so many seconds."""
    environment = {**os.environ, "PYTHONPATH": str(Path(scripted_backend.__file__).parent)}
    command = [sys.executable, "-c", SCRIPT, how, str(seconds)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=100, check=True
    ).stdout


@pytest.mark.parametrize(
    ("how", "count"), [("run", 1), ("batch", 3), ("stream left early", 1), ("timeout", 1)], ids=str
)
def test_sessions_end_before_a_script_exits(how: str, count: int) -> None:
    assert run_script(how, 0.2).count("ended") == count


def test_a_script_exits_though_its_session_can_not_end() -> None:
    assert run_script("run", 1000) == ""
