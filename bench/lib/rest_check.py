"""Whether an idle server has released everything: no request open, no page held, no process replaced."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import httpx
from server_process import ServerProcess, main_pids

QUIET_WITHIN_S = 60.0
_HELD = ("arbora_requests_running", "arbora_requests_waiting", "arbora_kv_pages_used")


def wrong_at_rest(url: str, patience_s: float = QUIET_WITHIN_S) -> list[str]:
    """The resources still held after `patience_s` seconds; returns early once there are none."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            wrong = _wrong(metrics(url))
        except httpx.HTTPError as error:
            wrong = [f"/metrics: {error!r}"]
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(0.5)


def wrong_at_end(server: ServerProcess, pids: Mapping[str, int]) -> list[str]:
    """What is wrong after a measurement. `pids` are the `main_pids` before it."""
    wrong, now = wrong_at_rest(server.url), main_pids(server.pid)
    if now != pids:
        wrong.append(f"processes were replaced: {pids} became {now}")
    return wrong + tracebacks(server.log)


def tracebacks(log: Path) -> list[str]:
    count = log.read_text(errors="replace").count("Traceback (most recent call last)")
    return [f"{count} tracebacks in the server's log"] if count else []


def metrics(url: str) -> dict[str, float]:
    """Samples without labels, by name."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines if "{" not in name}


def _wrong(found: dict[str, float]) -> list[str]:
    wrong = [f"{name} is {found.get(name)}, not 0" for name in _HELD if found.get(name) != 0]
    total = found.get("arbora_kv_pages")
    free, cached = found.get("arbora_kv_pages_free"), found.get("arbora_kv_pages_cached")
    if free is None or cached is None or free + cached != total:
        wrong.append(f"pages: {free} free and {cached} cached are not all {total}")
    return wrong
