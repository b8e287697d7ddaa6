"""A real process of a server, whose main loop makes no more progress after SIGUSR1.

    python loops_on_demand.py loops_on_demand.ROLE DIRECTORY EPOCH NUMBER SUPERVISOR_PID

A scheduler or model process loops over the next message that it takes, a tokenizer process at once.
"""

from __future__ import annotations

import importlib
import signal
import sys

from arbora.runtime.processes.heartbeat import Heartbeat

MODULES = {
    "tokenizer": "arbora.frontend.app.process",
    "scheduler": "arbora.runtime.scheduler.process",
    "model": "arbora.runtime.model.process",
}
signalled = False


def loop_over_a_message(heartbeat: Heartbeat) -> None:
    begin_work(heartbeat)
    while signalled:
        pass


def note_signal(*_: object) -> None:
    global signalled
    signalled = True


def loop_at_once(*_: object) -> None:
    while True:
        pass


begin_work = Heartbeat.working

if __name__ == "__main__":
    role = sys.argv.pop(1).rpartition(".")[2]
    Heartbeat.working = loop_over_a_message  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGUSR1, loop_at_once if role == "tokenizer" else note_signal)
    importlib.import_module(MODULES[role]).main()
