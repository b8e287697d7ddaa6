"""Overload and odd clients: what a server does under far more than it can serve.

    arbora serve --dtype float32 --max-running 512 --max-waiting 2048
    python bench/load.py streams --url http://127.0.0.1:8000 --streams 2000 --pid PID

`streams`      so many streams at once: each must end whole, and a sample say what it says alone
`overload`     rounds of a full server and of ten times as many arrivals: goodput, refusals, Retry-After
`slow_readers` streams beside clients that read a byte a second
`connections`  so many idle connections, beside which streams go on

Prints a line of JSON for each measurement. `--pid` is that of `arbora serve`: with it memory (MB) and
descriptors of the server's processes are reported. It needs no package.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
from sockets_client import Answer, Server, ask, connect

PROMPTS = (
    "Invoice 4711 from",
    "The order of Anna Berg, who lives in",
    "Hello! Please tell me",
    "A report on",
)
OVERLOAD = 10


@dataclass(frozen=True)
class Load:
    """What was asked for on the command line."""

    server: Server
    pid: int | None
    streams: int
    tokens: int
    seconds: float
    rounds: int
    in_flight: int
    connections: int
    slow: int

    def body(self, number: int, tokens: int | None = None) -> dict[str, Any]:
        return {
            "model": self.server.model,
            "prompt": f"{PROMPTS[number % len(PROMPTS)]} {number}:",
            "max_tokens": tokens or self.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def stream(self, number: int, tokens: int | None = None) -> Answer:
        return await ask(self.server, "POST", "/v1/completions", self.body(number, tokens))


def report(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 3) if ordered else 0.0


def processes(pid: int | None) -> dict[str, dict[str, int]]:
    """Memory in MB and descriptors of the server's processes, by role."""
    found = {}
    for each in _family(pid) if pid is not None else ():
        command = Path(f"/proc/{each}/cmdline").read_text().split("\0")
        module = next((word for word in command if word.endswith(".process")), "arbora.serve")
        status = Path(f"/proc/{each}/status").read_text()
        memory = int(status.split("VmRSS:")[1].split()[0]) // 1024 if "VmRSS:" in status else 0
        role = module.removeprefix("arbora.").removesuffix(".process")
        found[role] = {"mb": memory, "descriptors": len(os.listdir(f"/proc/{each}/fd"))}
    return found


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children if ".process" in _command(int(child)))]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def streams(load: Load) -> None:
    """All at once; then a sample of them alone, whose texts must be the same."""
    before, started = processes(load.pid), time.perf_counter()
    peak = asyncio.create_task(_peak(load.pid))
    answers = await asyncio.gather(*(load.stream(number) for number in range(load.streams)))
    seconds = time.perf_counter() - started
    peak.cancel()
    faults = Counter(fault for fault in (answer.fault() for answer in answers) if fault is not None)
    sample = random.Random(0).sample(range(load.streams), min(16, load.streams))
    alone = [(await load.stream(number)).text() for number in sample]
    whole = [answer for answer in answers if answer.fault() is None]
    tokens = sum(answer.tokens() for answer in whole)
    report(
        scenario="streams",
        streams=load.streams,
        whole=len(whole),
        faults=faults,
        same_as_alone=f"{sum(answers[n].text() == text for n, text in zip(sample, alone, strict=True))}"
        f" of {len(sample)}",
        tokens=tokens,
        expected_tokens=load.streams * load.tokens,
        seconds=round(seconds, 1),
        tok_per_s=round(tokens / seconds, 1),
        first_byte_p50=percentile([answer.first_byte for answer in whole], 50),
        first_byte_max=percentile([answer.first_byte for answer in whole], 100),
        before=before,
        peak=_PEAK,
        after=processes(load.pid),
    )


_PEAK: dict[str, dict[str, int]] = {}


async def _peak(pid: int | None) -> None:
    """Keeps the highest figures of the server's processes in `_PEAK`."""
    while True:
        for role, figures in processes(pid).items():
            old = _PEAK.get(role, figures)
            _PEAK[role] = {name: max(value, old[name]) for name, value in figures.items()}
        await asyncio.sleep(0.5)


@dataclass
class Tally:
    """Of the replies whose end came within the time that is measured."""

    started: float
    until: float
    replies: int = 0
    tokens: int = 0
    refusals: int = 0
    tries: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def take(self, answer: Answer, tries: int) -> None:
        if self.started <= time.perf_counter() <= self.until:
            self.replies += 1
            self.tokens += answer.tokens()
            self.tries[tries] += 1

    def figures(self) -> dict[str, Any]:
        seconds = self.until - self.started
        told = sum(self.tries.values())
        return {
            "tok_per_s": round(self.tokens / seconds, 1),
            "replies_per_s": round(self.replies / seconds, 2),
            "refusals": self.refusals,
            "tries_mean": round(sum(t * n for t, n in self.tries.items()) / told, 2) if told else None,
            "tries_max": max(self.tries, default=None),
            "faults": self.faults,
        }


async def full_server(load: Load, warm_up: float) -> Tally:
    """Closed loop: `in_flight` clients, each of which sends its next request when it has the answer."""
    begin = time.perf_counter() + warm_up
    tally = Tally(begin, begin + load.seconds)

    async def client(number: int) -> None:
        while time.perf_counter() < tally.until:
            answer = await load.stream(number)
            _count(tally, answer, 1)
            number += load.in_flight

    await asyncio.gather(*(client(number) for number in range(load.in_flight)))
    return tally


def _count(tally: Tally, answer: Answer, tries: int) -> None:
    if answer.status == 429:
        tally.refusals += 1
    elif answer.fault() is not None:
        tally.faults[answer.fault() or ""] += 1
    else:
        tally.take(answer, tries)


async def too_many(load: Load, per_second: float, warm_up: float) -> Tally:
    """Open loop: more arrivals than the server can serve. The refused come back when they are told to."""
    begin = time.perf_counter() + warm_up
    tally = Tally(begin, begin + load.seconds)

    async def client(number: int) -> None:
        tries = 0
        while time.perf_counter() < tally.until:
            tries += 1
            answer = await load.stream(number)
            _count(tally, answer, tries)
            if answer.status != 429:
                return
            await asyncio.sleep(answer.retry_after)

    clients, number, chance = [], 0, random.Random(0)
    while time.perf_counter() < tally.until:
        clients.append(asyncio.create_task(client(number)))
        number += 1
        await asyncio.sleep(chance.expovariate(per_second))
    for each in clients:
        each.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return tally


async def overload(load: Load) -> None:
    """Rounds in turn, so that what else the machine does strikes both alike."""
    ratios = []
    for number in range(load.rounds):
        full = await full_server(load, warm_up=load.seconds / 2)
        report(scenario="overload", round=number, load="full", **full.figures())
        rate = OVERLOAD * full.replies / load.seconds
        much = await too_many(load, rate, warm_up=load.seconds / 2)
        report(scenario="overload", round=number, load=f"{rate:.1f} arrivals/s", **much.figures())
        ratios.append(much.tokens / max(1, full.tokens))
        await _until_quiet(load)
    report(scenario="overload", goodput_of_capacity=[round(ratio, 3) for ratio in ratios],
           median=round(statistics.median(ratios), 3), processes=processes(load.pid))  # fmt: skip


async def _until_quiet(load: Load) -> None:
    for _ in range(240):
        text = (await ask(load.server, "GET", "/metrics")).body.decode()
        counts = [line.split()[1] for line in text.splitlines() if line.startswith("arbora_requests_")]
        if "arbora_requests_running 0.0" in text and "arbora_requests_waiting 0.0" in text and counts:
            return
        await asyncio.sleep(0.5)


async def slow_readers(load: Load) -> None:
    """Half the rounds with slow readers beside the streams, half without."""
    for number in range(load.rounds):
        for slow in (0, load.slow):
            readers = [asyncio.create_task(_read_slowly(load, n)) for n in range(slow)]
            await asyncio.sleep(2.0)
            started = time.perf_counter()
            answers = await asyncio.gather(*(load.stream(n) for n in range(load.streams)))
            seconds = time.perf_counter() - started
            faults = Counter(fault for fault in (a.fault() for a in answers) if fault is not None)
            report(
                scenario="slow_readers",
                round=number,
                slow=slow,
                streams=load.streams,
                faults=faults,
                seconds=round(seconds, 2),
                tok_per_s=round(sum(answer.tokens() for answer in answers) / seconds, 1),
                processes=processes(load.pid),
            )
            for reader in readers:
                reader.cancel()
            cut = await asyncio.gather(*readers, return_exceptions=True)
            report(scenario="slow_readers", round=number, ended_by_the_server=cut.count(True))
            await _until_quiet(load)


async def _read_slowly(load: Load, number: int) -> bool:
    """A long stream, a byte a second; True when the server ends it."""
    loop = asyncio.get_running_loop()
    connection = await connect(load.server, receive_buffer=1024)
    try:
        body = {**load.body(number, 2000), "logprobs": 5}
        await loop.sock_sendall(connection, load.server.request("POST", "/v1/completions", body))
        while await loop.sock_recv(connection, 1):
            await asyncio.sleep(1.0)
        return True
    except OSError:
        return True
    finally:
        connection.close()


async def connections(load: Load) -> None:
    """Opens all, has each ask once, lets them rest, and streams beside them."""
    before = processes(load.pid)
    alone = await asyncio.gather(*(load.stream(n) for n in range(load.streams)))
    kept = [await _keep(load) for _ in range(load.connections)]
    opened = sum(answer.startswith(b"HTTP/1.1 200") for _, answer in kept)
    started = time.perf_counter()
    answers = await asyncio.gather(*(load.stream(n) for n in range(load.streams)))
    seconds = time.perf_counter() - started
    during = processes(load.pid)
    again = [await _ask_again(load, connection) for connection, _ in kept[:: max(1, load.connections // 50)]]
    for connection, _ in kept:
        connection.close()
    await asyncio.sleep(2.0)
    report(
        scenario="connections",
        connections=load.connections,
        answered=opened,
        asked_again=len(again),
        answered_again=again.count(True),
        streams=load.streams,
        whole=sum(answer.fault() is None for answer in answers),
        same_as_before=sum(a.text() == b.text() for a, b in zip(alone, answers, strict=True)),
        tok_per_s=round(sum(answer.tokens() for answer in answers) / seconds, 1),
        before=before,
        during=during,
        after=processes(load.pid),
    )


async def _keep(load: Load) -> tuple[Any, bytes]:
    connection = await connect(load.server)
    return connection, await _get_health(load, connection)


async def _ask_again(load: Load, connection: Any) -> bool:
    """True if the connection serves a second request; one that was idle for too long may be closed."""
    try:
        return (await _get_health(load, connection)).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


async def _get_health(load: Load, connection: Any) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, load.server.request("GET", "/health", keep=True))
    return await loop.sock_recv(connection, 4096)


SCENARIOS: dict[str, Callable[[Load], Awaitable[None]]] = {
    "streams": streams,
    "overload": overload,
    "slow_readers": slow_readers,
    "connections": connections,
}


async def run(scenario: str, url: str, api_key: str, **options: Any) -> None:
    server = Server.at(url, api_key)
    listed = await ask(server, "GET", "/v1/models")
    if listed.status != 200:
        raise SystemExit(f"no server at {url} lists a model: {listed.error or listed.body.decode()}")
    server = server._replace(model=json.loads(listed.body)["data"][0]["id"])
    await SCENARIOS[scenario](Load(server, **options))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--pid", type=int, help="of `arbora serve`, to report its memory and descriptors")
    parser.add_argument("--streams", type=int, default=200, help="streams at once (default: 200)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each reply (default: 64)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, help="of what is compared (default: 3)")
    parser.add_argument(
        "--in-flight", type=int, default=256, help="clients that fill the server (default: 256)"
    )
    parser.add_argument("--connections", type=int, default=5000, help="idle connections (default: 5000)")
    parser.add_argument("--slow", type=int, default=50, help="slow readers (default: 50)")
    options = vars(parser.parse_args())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(run(**options))


if __name__ == "__main__":
    main()
