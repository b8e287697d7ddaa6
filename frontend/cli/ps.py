"""`arbora ps`: the running servers of this user on this machine."""

from __future__ import annotations

import argparse
import time

import msgspec

from ..launch.directory import RunningServer, find_servers
from ..launch.program_name import program_name
from .output import JSON_HELP, print_columns, print_json

DESCRIPTION = (
    "List this user's running Arbora servers on this machine: model, address, process id, uptime and state.\n"
    "A server with another TMPDIR is not found."
)
EXAMPLE = "arbora ps"
PATIENCE_S = 2.0


class ListedServer(msgspec.Struct, frozen=True):
    model: str
    url: str
    pid: int
    uptime_s: float
    state: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    now = time.time()
    found = [
        ListedServer(each.model, each.url, each.pid, max(0.0, now - each.started), find_state(each))
        for each in find_servers()
    ]
    if parsed.json:
        print_json({"servers": found})
    elif not found:
        print(f"no server of this user runs; start one with `{program_name()} serve`")
    else:
        rows = [(each.model, each.url, str(each.pid), in_words(each.uptime_s), each.state) for each in found]
        print_columns(("model", "address", "pid", "uptime", "state"), rows)
    return 0


def find_state(server: RunningServer) -> str:
    """ready, starting, restarting (the model's processes died or hang), or stopping (it takes no
    connections)."""
    if not server.is_ready:
        return "starting"
    import httpx

    uds = server.url.removeprefix("unix:") if server.url.startswith("unix:") else None
    base = server.url if uds is None else "http://localhost"
    # The certificate need not name this address, and no secret is sent.
    transport = httpx.HTTPTransport(verify=False, uds=uds)
    try:
        with httpx.Client(transport=transport, timeout=PATIENCE_S, trust_env=False) as client:
            return "ready" if client.get(f"{base}/health").status_code == 200 else "restarting"
    except httpx.ConnectError:
        return "stopping"
    except httpx.HTTPError:
        return "no answer"


def in_words(seconds: float) -> str:
    """A time in its two largest units, such as 2h 5min."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60}min"
    return f"{minutes}min {int(seconds) % 60}s" if minutes else f"{int(seconds)}s"
