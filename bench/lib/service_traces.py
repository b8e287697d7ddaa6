"""Generated traces of services, with published statistics of real ones.

Sessions of several kinds begin at random times; each asks, waits and asks again. Lengths are in tokens, and a
prompt is cut into blocks: its last block, which is not full, is never shared. Like a real trace, each is a
window: some of its sessions began before it, and their next prompts repeat text that it does not contain.

`chats` and `tools` resemble the conversation and tool & agent traces of Mooncake (Qin et al., FAST 2025:
12,031 and 23,608 requests in an hour, prompts of 12,035 and 8,596 tokens on average, of which 40 % and 59 %
came before). `regulars` resembles the former in another way: in 4,000 blocks about as much of it is hit as of
the real one (LRU 8.7 %, LRU in two segments 15.1 %, Belady 32.1 %). `consumers` and `programs` resemble the
traces A and B of Wang et al., "KVCache Cache in the Wild" (ATC 2025: 62 % and 54 %; four in five reuses
within ten minutes and within ten seconds; a tenth of the blocks makes three quarters of all reuses).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, count
from typing import NamedTuple

from traces import Prompt, Request, Trace

GOLDEN = 0.618034
HEAD_START = 1_200.0  # seconds before the window
Session = Iterator[tuple[float, Request]]  # seconds to wait, and the next request


@dataclass
class Service:
    """Random numbers and fresh block ids."""

    seed: int
    block: int  # tokens
    random: random.Random = field(init=False)
    ids: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.ids = count()

    def skewed(self, mean: float, sigma: float = 1.0) -> float:
        return mean * self.random.lognormvariate(-sigma * sigma / 2, sigma)

    def text(self, tokens: float) -> Text:
        text = Text(self)
        text.add(tokens)
        return text

    def zipf(self, number: int, exponent: float) -> Callable[[], int]:
        """Draws 0 … `number` - 1, the k-th with a weight of k ** -exponent."""
        weights = list(accumulate((k + 1) ** -exponent for k in range(number)))
        return lambda: self.random.choices(range(number), cum_weights=weights)[0]


class Text:
    """A sequence of a number of tokens, which can be extended."""

    def __init__(self, service: Service, before: Text | None = None) -> None:
        self._service = service
        self._tokens: float = before._tokens if before else 0.0
        self._full: Prompt = list(before._full) if before else []

    def add(self, tokens: float) -> None:
        self._tokens += max(tokens, 1.0)
        while len(self._full) < self._tokens // self._service.block:
            self._full.append(next(self._service.ids))

    def prompt(self) -> Prompt:
        return [*self._full, next(self._service.ids)]


class Behaviour(NamedTuple):
    """A kind of session; lengths are means in tokens, pauses medians in seconds."""

    first: float
    answer: float
    question: float
    goes_on: tuple[float, float]  # of the beta distribution that a session's chance of one more turn is from
    pause: float
    spread: float  # sigma of the pause's logarithm
    keeps: bool = True  # whether turns keep the context; otherwise each turn replaces it
    limit: float = 120_000.0


def converse(service: Service, how: Behaviour, head: Text) -> Session:
    """Turns that build on each other, under a shared prompt."""
    context = Text(service, head)
    context.add(service.skewed(how.first, 1.2))
    goes_on = service.random.betavariate(*how.goes_on)
    pause = 0.0
    while context._tokens < how.limit:
        answer = service.skewed(how.answer)
        yield pause, Request(context.prompt(), round(answer), partial=True)
        if service.random.random() > goes_on:
            return
        if not how.keeps:
            context = Text(service, head)
            context.add(service.skewed(how.first))
        context.add(answer + service.skewed(how.question))
        pause = answer / 40 + how.pause * service.random.lognormvariate(0.0, how.spread)


def job(service: Service, head: Text, calls: float, tail: float, gap: float) -> Session:
    """A program's calls in quick succession, each with its own text."""
    pause = 0.0
    while True:
        prompt = Text(service, head)
        prompt.add(service.skewed(tail))
        yield pause, Request(prompt.prompt(), round(service.skewed(150)), partial=True)
        if service.random.random() < 1 / calls:
            return
        pause = service.random.expovariate(1 / gap)


def play(service: Service, rate: float, seconds: float, begin: Callable[[], Session]) -> Trace:
    """Starts `rate` sessions a second and returns the requests of a window that begins at `HEAD_START`."""
    end = HEAD_START + seconds
    trace: Trace = []
    ties = count()
    waiting: list[tuple[float, int, Request, Session]] = []
    arrival = 0.0
    while True:
        while not waiting or arrival <= waiting[0][0]:
            arrival += service.random.expovariate(rate)
            _go_on(waiting, next(ties), arrival, begin())
        now, _, request, session = heappop(waiting)
        if now > end:
            return trace
        if now >= HEAD_START:
            trace.append(request)
        _go_on(waiting, next(ties), now, session)


def _go_on(
    waiting: list[tuple[float, int, Request, Session]], tie: int, now: float, session: Session
) -> None:
    step = next(session, None)
    if step is not None:
        heappush(waiting, (now + step[0], tie, step[1], session))


def chats(seed: int = 0, seconds: float = 3_600) -> Trace:
    """Long conversations of people, with pauses of minutes, under one short system prompt."""
    service = Service(seed, 512)
    head = service.text(700)
    talk = Behaviour(7_500, 340, 900, (1.0, 2.5), 90, 1.5)
    reading = Behaviour(16_000, 340, 200, (1.0, 2.5), 90, 1.5)

    def begin() -> Session:
        return converse(service, service.random.choice((talk, reading)), head)

    return play(service, 2.0, seconds, begin)


def regulars(seed: int = 0, seconds: float = 3_600) -> Trace:
    """Long conversations: most people ask once, some again and again, each at a pace of their own."""
    service = Service(seed, 512)
    head = service.text(700)
    talk = Behaviour(10_800, 340, 900, (0.27, 1.3), 185, 0.65)

    def begin() -> Session:
        own = talk.pause * service.random.lognormvariate(0.0, 0.7)
        return converse(service, talk._replace(pause=own), head)

    return play(service, 2.25, seconds, begin)


def tools(seed: int = 0, seconds: float = 3_600) -> Trace:
    """Applications with long prompts of their own: single calls, agents that take quick steps, and chats."""
    service = Service(seed, 512)
    heads = [service.text(service.skewed(3_000, 0.6)) for _ in range(300)]
    app = service.zipf(len(heads), 1.1)
    agent = Behaviour(2_500, 80, 700, (3, 2.5), 8, 0.8)
    chat = Behaviour(6_000, 300, 500, (1, 2), 120, 1.5)

    def begin() -> Session:
        number = app()
        kind = number * GOLDEN % 1  # each application is of one kind, at random but evenly
        if kind < 0.55:
            return job(service, heads[number], 1.0, 3_500, 1.0)
        return converse(service, agent if kind < 0.65 else chat, heads[number])

    return play(service, 4.7, seconds, begin)


def consumers(seed: int = 0, seconds: float = 1_800) -> Trace:
    """Chats about text alone, about files, and with results of a search, which each turn replaces."""
    service = Service(seed, 16)
    heads = [service.text(tokens) for tokens in (400, 900, 600)]
    kinds = (
        Behaviour(300, 450, 60, (2, 2), 45, 1.2),
        Behaviour(5_000, 350, 60, (1, 2), 60, 1.2),
        Behaviour(2_000, 350, 60, (1, 2.2), 45, 1.2, keeps=False),
    )

    def begin() -> Session:
        [kind] = service.random.choices(range(3), weights=(6, 1, 2))
        return converse(service, kinds[kind], heads[kind])

    return play(service, 1.0, seconds, begin)


def programs(seed: int = 0, seconds: float = 1_800) -> Trace:
    """Calls by programs: each has a template, runs in bursts, and hardly ever builds on an answer."""
    service = Service(seed, 16)
    heads = [service.text(service.skewed(1_000)) for _ in range(400)]
    program = service.zipf(len(heads), 1.0)

    def begin() -> Session:
        return job(service, heads[program()], 12.0, 700, 1.5)

    return play(service, 0.25, seconds, begin)


SERVICES: dict[str, Callable[..., Trace]] = {
    service.__name__: service for service in (chats, regulars, tools, consumers, programs)
}
