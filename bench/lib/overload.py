"""A full server, an overloaded one, and clients that ignore `Retry-After`: goodput, and what it costs."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from load_costs import Cost, Reading, cores, read_processors
from load_options import Load
from process_figures import processes
from reports import percentile, report
from sockets_client import Answer, ask

OVERLOAD = 10


@dataclass
class Tally:
    """The clients' results. `ends` has a time and a number of tokens for each whole reply.

    Each second, `running` gets the number of requests that the server says it runs, and `readings` the
    processor time used so far.
    """

    ends: list[tuple[float, int]] = field(default_factory=list)
    running: list[tuple[float, int]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
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

    def cores(self, start: float, end: float) -> dict[str, float]:
        within = [reading for reading in self.readings if start <= reading.at <= end]
        return cores(within[0], within[-1]) if len(within) > 1 else {}

    def cost(self, first: Reading, last: Reading) -> Cost:
        return Cost.of(first, last, sum(tokens for _, tokens in self.ends), self.refusals)


class Full(NamedTuple):
    """A server that has as many clients as it can run requests."""

    tokens_per_s: float
    replies_per_s: float
    cores: dict[str, float]
    cost: Cost


class Overloaded(NamedTuple):
    """A server with more arrivals than it can serve; all rates from when its queue is full."""

    tally: Tally
    while_arriving: float
    """tokens per second"""
    until_served: float
    """tokens per second, until nine tenths of the requests are served"""
    share_of_time_full: float
    """of the same time: the part in which every slot was used"""
    cores: dict[str, float]
    """in the same time"""
    cost: Cost


async def full_server(load: Load, seconds: float) -> Full:
    """Closed loop: `in_flight` clients, each of which sends its next request when it has the answer. Rates
    leave out the first third of the time."""
    tally, started, first = Tally(), time.perf_counter(), read_processors(load.pid)

    async def client(number: int) -> None:
        while time.perf_counter() < started + seconds:
            tally.take(await load.stream(number), 1)
            number += load.in_flight

    clients = asyncio.gather(*(client(number) for number in range(load.in_flight)))
    await asyncio.sleep(seconds / 3)
    begun = read_processors(load.pid)
    await asyncio.sleep(seconds * 2 / 3)
    used = cores(begun, read_processors(load.pid))
    rate = tally.tokens_per_s(started + seconds / 3, started + seconds)
    replies = sum(at >= started + seconds / 3 for at, _ in tally.ends) / (seconds * 2 / 3)
    await clients
    if tally.faults or tally.refusals:
        raise SystemExit(f"a server that is only full failed: {tally.faults}, {tally.refusals} refusals")
    return Full(rate, replies, used, tally.cost(first, read_processors(load.pid)))


async def _sample(load: Load, tally: Tally) -> None:
    while True:
        tally.readings.append(read_processors(load.pid))
        text = (await ask(load.server, "GET", "/metrics")).body.decode()
        for line in text.splitlines():
            if line.startswith("arbora_requests_running "):
                tally.running.append((time.perf_counter(), int(float(line.split()[1]))))
        await asyncio.sleep(1.0)


async def too_many(load: Load, per_second: float) -> Overloaded:
    """Open loop: more arrivals than the server can serve. Refused requests return after `Retry-After`."""
    tally, started, chance = Tally(), time.perf_counter(), random.Random(0)
    first = read_processors(load.pid)

    async def client(number: int) -> None:
        tries = 1
        while (answer := await load.stream(number)).status == 429:
            tally.take(answer, tries)
            await asyncio.sleep(answer.retry_after)
            tries += 1
        tally.take(answer, tries)

    clients: list[asyncio.Task[None]] = []
    sampling = asyncio.create_task(_sample(load, tally))
    while (now := time.perf_counter()) < started + load.seconds:
        while len(clients) < (now - started) * per_second:
            clients.append(asyncio.create_task(client(len(clients))))
        await asyncio.sleep(chance.expovariate(per_second))
    await asyncio.gather(*clients)
    sampling.cancel()
    full_from, arrived = started + load.seconds / 3, started + load.seconds
    nine_tenths = sorted(at for at, _ in tally.ends)[len(tally.ends) * 9 // 10]
    return Overloaded(
        tally,
        tally.tokens_per_s(full_from, arrived),
        tally.tokens_per_s(full_from, nine_tenths),
        tally.share_of_time_full(full_from, nine_tenths, load.in_flight),
        tally.cores(full_from, nine_tenths),
        tally.cost(first, read_processors(load.pid)),
    )


async def overload(load: Load) -> None:
    """Measures a full server before and after each overload, so that other load on the machine affects
    both."""
    ratios = []
    before = await full_server(load, load.seconds)
    for number in range(load.rounds):
        over = await too_many(load, load.rate or OVERLOAD * before.replies_per_s)
        after = await full_server(load, load.seconds)
        full, tally = before.cost + after.cost, over.tally
        ratio = over.until_served / ((before.tokens_per_s + after.tokens_per_s) / 2)
        ratios.append(ratio)
        report(
            scenario="overload",
            round=number,
            requests=len(tally.ends),
            faults=tally.faults,
            capacity_before_after=[round(before.tokens_per_s, 1), round(after.tokens_per_s, 1)],
            goodput_while_arriving=round(over.while_arriving, 1),
            goodput_until_served=round(over.until_served, 1),
            ratio=round(ratio, 3),
            share_of_time_full=over.share_of_time_full,
            tokens_per_server_core_s=[each.cost.tokens_per_server_core_s() for each in (before, over, after)],
            cores_full=[before.cores, after.cores],
            cores_overloaded=over.cores,
            cpu_ms_per_token_full=full.ms_per_token(),
            cpu_ms_per_token_overloaded=over.cost.ms_per_token(),
            refusals=tally.refusals,
            cpu_ms_per_refusal=over.cost.ms_per_refusal(full),
            told_p50=percentile(tally.told, 50),
            told_max=percentile(tally.told, 100),
            tries_p50=percentile(list(tally.tries.elements()), 50),
            tries_p99=percentile(list(tally.tries.elements()), 99),
            processes=processes(load.pid),
        )
        before = after
    report(scenario="overload", median_ratio=round(statistics.median(ratios), 3))


async def storm(load: Load) -> None:
    """Every request must be answered, if only with a refusal. Measures a full server first, to know what
    the refusals cost beside the streams."""
    full = (await full_server(load, load.seconds)).cost
    tally, end, first = Tally(), time.perf_counter() + load.seconds, read_processors(load.pid)

    async def client(number: int) -> None:
        while time.perf_counter() < end:
            tally.take(await load.stream(number), 1)
            number += load.streams

    await asyncio.gather(*(client(number) for number in range(load.streams)))
    last = read_processors(load.pid)
    cost = tally.cost(first, last)
    report(
        scenario="storm",
        clients=load.streams,
        whole=len(tally.ends),
        refused=tally.refusals,
        faults=tally.faults,
        cores=cores(first, last),
        cpu_ms_per_token_full=full.ms_per_token(),
        cpu_ms_per_refusal=cost.ms_per_refusal(full),
        processes=processes(load.pid),
    )
