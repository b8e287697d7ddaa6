"""`arbora serve` as a child of a benchmark: its address, its log, its processes and what they use."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

START_PATIENCE_S = 300.0
STOP_PATIENCE_S = 60.0
_ADDRESS = re.compile(r" at (http://\S+) on ")
_ROLES = {
    "arbora.frontend.app.process": "tokenizer",
    "arbora.runtime.scheduler.process": "scheduler",
    "arbora.runtime.model.process": "model",
}
MAIN_ROLES = ("supervisor", *_ROLES.values())


def exit_on_sigterm() -> None:
    """For a benchmark's `main`: SIGTERM then ends it by SystemExit, so that its server is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class ServerProcess:
    """A running server. `url` is known once the constructor returns."""

    def __init__(self, log: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.command = ["arbora", "serve", "--port", "0", *arguments]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})},
            )
        self.pid = self._process.pid
        try:
            self.url = self._wait_for_address()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def stop(self) -> int:
        """Ends the server and returns its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + START_PATIENCE_S
        while time.monotonic() < deadline:
            found = _ADDRESS.search(self.log.read_text(errors="replace"))
            if found:
                return found[1]
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"the server did not start:\n{self.log.read_text(errors='replace')[-4000:]}")


def processes_by_role(supervisor: int) -> dict[str, psutil.Process]:
    """The server's live processes. Several of one role are numbered: worker, worker 2."""
    try:
        root = psutil.Process(supervisor)
        children = sorted(root.children(recursive=True), key=lambda process: process.pid)
    except psutil.NoSuchProcess:
        return {}
    found = {"supervisor": root}
    for process in children:
        try:
            role = _role(process.cmdline())
        except psutil.Error:
            continue
        count = sum(name.split()[0] == role for name in found)
        found[role if count == 0 else f"{role} {count + 1}"] = process
    return found


def main_pids(supervisor: int) -> dict[str, int]:
    """The process ids of the serving path, which no request may change."""
    found = processes_by_role(supervisor)
    return {role: process.pid for role, process in found.items() if role.split()[0] in MAIN_ROLES}


def server_of(url: str) -> int:
    """The supervisor of the server that listens at `url` on this machine."""
    port = int(url.rstrip("/").rpartition(":")[2])
    for process in psutil.process_iter():
        try:
            listens = [item.laddr.port for item in process.net_connections("tcp") if item.status == "LISTEN"]
        except psutil.Error:
            continue
        if port in listens:
            return int(min([process, *process.parents()], key=_distance_from_serve).pid)
    raise SystemExit(f"no process of this machine listens at {url}")


def _distance_from_serve(process: psutil.Process) -> int:
    command = process.cmdline()
    return 0 if "serve" in command and any("arbora" in part for part in command) else 1


def _role(command: list[str]) -> str:
    for module, role in _ROLES.items():
        if any(part.endswith(module) for part in command):
            return role
    return "worker"
