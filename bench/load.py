"""Overload and odd clients: what a server does under far more than it can serve.

    arbora serve --dtype float32 --max-running 512 --max-waiting 2048
    python bench/load.py streams --url http://127.0.0.1:8000 --streams 2000 --pid PID

`streams`      so many streams at once: each must end whole, and a sample say what it says alone
`overload`     rounds of a full server and of ten times as many arrivals: goodput, refusals, Retry-After
`storm`        so many clients that ignore Retry-After: each sends its next request when it has an answer
`slow_readers` streams beside clients that read a byte a second
`connections`  so many idle connections, beside which streams go on

Prints a line of JSON for each measurement. `--pid` is that of `arbora serve`: with it memory (MB) and
descriptors of the server's processes are reported. It needs the package psutil, which `make test` installs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
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

sys.path.append(str(Path(__file__).parent / "lib"))
from process_figures import Figures, cpu_seconds, keep_peak, processes
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
    """The command line's options."""

    server: Server
    pid: int | None
    streams: int
    tokens: int
    seconds: float
    rounds: int
    in_flight: int
    connections: int
    slow: int
    rate: float | None

    def body(self, number: int, tokens: int | None = None) -> dict[str, Any]:
        return {
            "model": self.server.model,
            "prompt": f"{PROMPTS[number % len(PROMPTS)]} {number}:",
            "max_tokens": tokens or self._length(number),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _length(self, number: int) -> int:
        """A random length from half of `tokens` to three halves, so that replies end at different times."""
        return self.tokens // 2 + (number * 37) % (self.tokens + 1)

    async def stream(self, number: int, tokens: int | None = None) -> Answer:
        return await ask(self.server, "POST", "/v1/completions", self.body(number, tokens))


def report(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 3) if ordered else 0.0


async def streams(load: Load) -> None:
    """All at once; then a sample of them alone, whose texts must be the same."""
    before, started, peak = processes(load.pid), time.perf_counter(), Figures()
    watching = asyncio.create_task(keep_peak(load.pid, peak))
    answers = await asyncio.gather(*(load.stream(number) for number in range(load.streams)))
    seconds = time.perf_counter() - started
    watching.cancel()
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
        expected_tokens=sum(load.body(n)["max_tokens"] for n in range(load.streams)),
        seconds=round(seconds, 1),
        tok_per_s=round(tokens / seconds, 1),
        first_byte_p50=percentile([answer.first_byte for answer in whole], 50),
        first_byte_max=percentile([answer.first_byte for answer in whole], 100),
        before=before,
        peak=peak,
        after=processes(load.pid),
    )


@dataclass
class Tally:
    """The clients' results. `ends` has a time and a number of tokens for each whole reply.

    `running` are how many requests the server says it runs, each second, with the time.
    """

    ends: list[tuple[float, int]] = field(default_factory=list)
    running: list[tuple[float, int]] = field(default_factory=list)
    refusals: int = 0
    told: list[float] = field(default_factory=list)
    tries: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def take(self, answer: Answer, tries: int) -> None:
        if answer.status == 429:
            self.refusals += 1
            self.told.append(answer.retry_after)
        elif answer.fault() is not None:
            self.faults[answer.fault() or ""] += 1
        else:
            self.ends.append((time.perf_counter(), answer.tokens()))
            self.tries[tries] += 1

    def tokens_per_s(self, start: float, end: float) -> float:
        return sum(tokens for at, tokens in self.ends if start <= at <= end) / (end - start)

    def share_of_time_full(self, start: float, end: float, in_flight: int) -> float:
        samples = [running >= in_flight for at, running in self.running if start <= at <= end]
        return round(sum(samples) / max(1, len(samples)), 3)


def _cost(before: dict[str, float], after: dict[str, float], tokens: int) -> dict[str, float]:
    """Processor time for each token of whole replies, in milliseconds, by role and in all."""
    each = {role: 1000 * (after[role] - before[role]) / max(1, tokens) for role in after}
    return {role: round(ms, 3) for role, ms in (each | {"all": sum(each.values())}).items()}


async def full_server(load: Load, seconds: float) -> tuple[float, float, dict[str, float]]:
    """Closed loop: `in_flight` clients, each of which sends its next request when it has the answer.

    Returns tokens and replies per second, of all but the first third of the time, and the cost of a token.
    """
    tally, started, cpu = Tally(), time.perf_counter(), cpu_seconds(load.pid)

    async def client(number: int) -> None:
        while time.perf_counter() < started + seconds:
            tally.take(await load.stream(number), 1)
            number += load.in_flight

    clients = asyncio.gather(*(client(number) for number in range(load.in_flight)))
    await asyncio.sleep(seconds)
    rate = tally.tokens_per_s(started + seconds / 3, started + seconds)
    replies = sum(at >= started + seconds / 3 for at, _ in tally.ends) / (seconds * 2 / 3)
    await clients
    if tally.faults or tally.refusals:
        raise SystemExit(f"a server that is only full failed: {tally.faults}, {tally.refusals} refusals")
    return rate, replies, _cost(cpu, cpu_seconds(load.pid), sum(tokens for _, tokens in tally.ends))


async def _sample_running(load: Load, tally: Tally) -> None:
    while True:
        text = (await ask(load.server, "GET", "/metrics")).body.decode()
        for line in text.splitlines():
            if line.startswith("arbora_requests_running "):
                tally.running.append((time.perf_counter(), int(float(line.split()[1]))))
        await asyncio.sleep(1.0)


async def too_many(load: Load, per_second: float) -> tuple[Tally, float, float, float]:
    """Open loop: more arrivals than the server can serve. Refused requests return after `Retry-After`.

    Also returns tokens per second while requests arrive, and until nine tenths of them are served, and the
    share of the latter time in which every slot was used; all from when the queue is full.
    """
    tally, started, chance = Tally(), time.perf_counter(), random.Random(0)

    async def client(number: int) -> None:
        tries = 1
        while (answer := await load.stream(number)).status == 429:
            tally.take(answer, tries)
            await asyncio.sleep(answer.retry_after)
            tries += 1
        tally.take(answer, tries)

    clients: list[asyncio.Task[None]] = []
    sampling = asyncio.create_task(_sample_running(load, tally))
    while (now := time.perf_counter()) < started + load.seconds:
        while len(clients) < (now - started) * per_second:
            clients.append(asyncio.create_task(client(len(clients))))
        await asyncio.sleep(chance.expovariate(per_second))
    await asyncio.gather(*clients)
    sampling.cancel()
    full_from, arrived = started + load.seconds / 3, started + load.seconds
    nine_tenths = sorted(at for at, _ in tally.ends)[len(tally.ends) * 9 // 10]
    full = tally.share_of_time_full(full_from, nine_tenths, load.in_flight)
    return tally, tally.tokens_per_s(full_from, arrived), tally.tokens_per_s(full_from, nine_tenths), full


async def overload(load: Load) -> None:
    """Measures a full server before and after each overload, so that other load on the machine affects
    both."""
    ratios = []
    capacity, replies, cost = await full_server(load, load.seconds)
    for number in range(load.rounds):
        cpu = cpu_seconds(load.pid)
        tally, while_arriving, until_served, full = await too_many(load, load.rate or OVERLOAD * replies)
        cost_overloaded = _cost(cpu, cpu_seconds(load.pid), sum(tokens for _, tokens in tally.ends))
        after, replies, cost_after = await full_server(load, load.seconds)
        between = (capacity + after) / 2
        ratios.append(until_served / between)
        report(
            scenario="overload",
            round=number,
            requests=len(tally.ends),
            faults=tally.faults,
            capacity_before_after=[round(capacity, 1), round(after, 1)],
            goodput_while_arriving=round(while_arriving, 1),
            goodput_until_served=round(until_served, 1),
            ratio=round(until_served / between, 3),
            share_of_time_full=full,
            cpu_ms_per_token_full=[cost, cost_after],
            cpu_ms_per_token_overloaded=cost_overloaded,
            refusals=tally.refusals,
            told_p50=percentile(tally.told, 50),
            told_max=percentile(tally.told, 100),
            tries_p50=percentile(list(tally.tries.elements()), 50),
            tries_p99=percentile(list(tally.tries.elements()), 99),
            processes=processes(load.pid),
        )
        capacity, cost = after, cost_after
    report(scenario="overload", median_ratio=round(statistics.median(ratios), 3))


async def storm(load: Load) -> None:
    """Every request must be answered, if only with a refusal."""
    answers, end, before = Counter[str](), time.perf_counter() + load.seconds, cpu_seconds(load.pid)

    async def client(number: int) -> None:
        while time.perf_counter() < end:
            answer = await load.stream(number)
            answers["refused" if answer.status == 429 else answer.fault() or "whole"] += 1
            number += load.streams

    await asyncio.gather(*(client(number) for number in range(load.streams)))
    after = cpu_seconds(load.pid)
    report(
        scenario="storm",
        clients=load.streams,
        answers=answers,
        cpu_seconds={role: round(after[role] - before[role], 1) for role in after},
        processes=processes(load.pid),
    )


async def _until_quiet(load: Load) -> None:
    for _ in range(240):
        text = (await ask(load.server, "GET", "/metrics")).body.decode()
        counts = [line.split()[1] for line in text.splitlines() if line.startswith("arbora_requests_")]
        if "arbora_requests_running 0.0" in text and "arbora_requests_waiting 0.0" in text and counts:
            return
        await asyncio.sleep(0.5)


async def slow_readers(load: Load) -> None:
    """Half of the rounds have slow readers beside the streams."""
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
    """Opens all connections, sends one request on each, leaves them idle, and measures streams meanwhile."""
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
    answer = b""
    while not answer.endswith(b"}"):  # head and body may come apart
        part = await loop.sock_recv(connection, 4096)
        if not part:
            return b""
        answer += part
    return answer


SCENARIOS: dict[str, Callable[[Load], Awaitable[None]]] = {
    "streams": streams,
    "overload": overload,
    "storm": storm,
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
    parser.add_argument("--rounds", type=int, default=3, help="of each comparison (default: 3)")
    parser.add_argument(
        "--in-flight", type=int, default=256, help="clients that fill the server (default: 256)"
    )
    parser.add_argument("--connections", type=int, default=5000, help="idle connections (default: 5000)")
    parser.add_argument("--slow", type=int, default=50, help="slow readers (default: 50)")
    parser.add_argument(
        "--rate", type=float, help="arrivals a second (default: ten times the server's capacity)"
    )
    options = vars(parser.parse_args())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(run(**options))


if __name__ == "__main__":
    main()
