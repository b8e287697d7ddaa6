"""A server as a child of a benchmark: its start and end, and the processes of `arbora serve`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Self

import psutil
from compared_servers import ServerCommand

START_PATIENCE_S = 900
STOP_PATIENCE_S = 60
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
    """A server as a child process that leads a process group. The constructor returns when it is ready.
    Leaving the context stops it."""

    def __init__(self, server: ServerCommand, log: Path) -> None:
        """Appends the server's output to `log`."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        begun = time.monotonic()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*server.arguments, "--port", str(port)],
                env={**os.environ, **server.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._process.pid
        try:
            self._wait_until_healthy(server.name)
        except BaseException:
            self.stop()
            raise
        self.ready_s = round(time.monotonic() - begun, 1)
        """seconds from its start to its first healthy answer"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def _wait_until_healthy(self, name: str) -> None:
        deadline = time.monotonic() + START_PATIENCE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                sys.exit(
                    f"{name} ended with {self._process.returncode} while it started; {self._last_lines()}"
                )
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit(f"{name} was not ready within {START_PATIENCE_S} s; {self._last_lines()}")

    def _last_lines(self) -> str:
        return f"see {self.log}, which ends so:\n{self.log.read_text(errors='replace')[-4000:]}"


def start(server: ServerCommand, logs: Path) -> ServerProcess:
    """Starts a server whose output is appended to a file in `logs` with its name."""
    return ServerProcess(server, logs / f"{server.name.replace('/', '_').replace(' ', '_')}.log")


def serve_arbora(log: Path, *arguments: str) -> ServerProcess:
    """Starts `arbora serve` with these arguments and a new log."""
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "arbora", "serve", *arguments]
    return ServerProcess(ServerCommand("arbora serve", command, {"PYTHONSAFEPATH": "1"}), log)


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
