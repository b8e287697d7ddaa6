"""Measures what a streamed token costs one HTTP process, and how much it delays the token.

An HTTP process serves the streams of a scheduler that writes tokens at a given rate and has no model. A token
costs the process's CPU time while it streams, divided by the tokens: that is robust on a busy machine. Its
inverse is the most tokens a second of one process. The delay of a token is the time from the scheduler's
message until its text is at the client. The client counts characters, because one event may have the text of
several tokens. Both are medians of the rounds; the APIs take turns. The HTTP process has
a core of its own; the scheduler and the clients share another one.
`sockets` is no API but the floor: a process that writes a prepared event to each socket.
Run: PYTHONSAFEPATH=1 python bench/api_cost.py
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import multiprocessing
import os
import re
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.append(str(Path(__file__).parent / "lib"))
import uvloop
import zmq
from arbora.frontend.app.process import http_server
from arbora.frontend.core.replica.engine_client import EngineClient
from arbora.frontend.core.service import Service
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.http.http_service import HttpService
from arbora.runtime.config import BUILTIN_MODEL, ServeConfig
from arbora.runtime.logs import write_in_background, write_log
from arbora.runtime.messages import (
    Accepted,
    CacheGroup,
    Generate,
    ModelReady,
    Output,
    Outputs,
    PeerUp,
    SchedulerInbox,
)
from arbora.runtime.processes.garbage import leave_out_existing_objects
from arbora.runtime.processes.sockets import (
    ANY_EPOCH,
    Inbox,
    Outbox,
    Replica,
    tokenizer_address,
)
from bare_streams import MARK, BareSource, write_events

CORES = sorted(os.sched_getaffinity(0))
EPOCH = 1
TIMER_S = 0.001  # how late a timer may be
SILENCE_S = 20.0  # after which the HTTP process counts as failed
AHEAD = 8  # steps that the clients may be behind when steps have no rate
FLOOR = "sockets"
PROMPT = "Say something."
MESSAGES = [{"role": "user", "content": PROMPT}]


class Api(NamedTuple):
    """An API: how a stream is requested, and how the text in its events is found."""

    path: str
    body: Callable[[int], dict[str, object]]  # of a request for so many tokens
    mark: bytes  # what stands before the text of an event


APIS = {
    "completions": Api(
        "/v1/completions", lambda tokens: {"prompt": PROMPT, "max_tokens": tokens}, b'"text":"'
    ),
    "chat": Api(
        "/v1/chat/completions",
        lambda tokens: {"messages": MESSAGES, "max_tokens": tokens},
        b'"content":"',
    ),
    "responses": Api(
        "/v1/responses",
        lambda tokens: {"input": PROMPT, "max_output_tokens": tokens, "store": False},
        b'"delta":"',
    ),
    "messages": Api("/v1/messages", lambda tokens: {"messages": MESSAGES, "max_tokens": tokens}, b'"text":"'),
    "ollama": Api(
        "/api/chat",
        lambda tokens: {"messages": MESSAGES, "options": {"num_predict": tokens}},
        b'"content":"',
    ),
    "generate": Api("/generate", lambda tokens: {"prompt": PROMPT, "max_tokens": tokens}, b'"text":"'),
    FLOOR: Api("/", lambda tokens: {"max_tokens": tokens}, MARK),
}


class Served(NamedTuple):
    port: int
    pid: int


@dataclass
class Round:
    cpu_us: float  # of the HTTP process, a token
    delays_ms: list[float]
    tokens_per_s: float


def serve(logs: bool, directory: Path, listener: socket.socket) -> None:
    """The HTTP process. `logs`: whether it writes its log"""
    if logs:
        write_log("info")
        write_in_background()

    async def run() -> None:
        config = ServeConfig(model=BUILTIN_MODEL, served_model_name="model", log_level="warning")
        engine = EngineClient(directory, 0)
        http = HttpService.build(Service.load(config, engine, Tokenizer.load(BUILTIN_MODEL)))
        server = http_server(http)
        receiving = asyncio.create_task(engine.run())
        await engine.informed.wait()
        leave_out_existing_objects()
        await server.serve(listener)
        receiving.cancel()

    uvloop.run(run())


class TokenSource:
    """A scheduler that sends each open request one token in a step. Without a rate, a step begins
    when all clients have read all steps but the last `AHEAD`, so the HTTP process is never idle."""

    def __init__(self, directory: Path, tokenizer: Tokenizer, tokens: int) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox: Inbox[SchedulerInbox] = Inbox(
            context, Replica(directory, EPOCH).scheduler, SchedulerInbox, EPOCH
        )
        self._outbox = Outbox(context, tokenizer_address(directory, 0), EPOCH)
        supervisor = Outbox(context, tokenizer_address(directory, 0), ANY_EPOCH)
        group = CacheGroup(2, None, 4096, 1024)
        supervisor.send(PeerUp(EPOCH, ModelReady([group], 16, 1 << 15, 256, tokenizer.vocab_size, "cpu")))
        text = "The quick brown fox jumps over the lazy dog, and then it rests. "
        ids = tokenizer.encode(text * 40, add_special_tokens=False)
        self._ids = [ids[at : at + 4] for at in range(0, len(ids), 4)]
        self._characters = [len(tokenizer.decode(each)) for each in self._ids]
        self._tokens = tokens
        self.open: list[str] = []
        self.sent_at: list[float] = []

    def wait_for(self, requests: int) -> None:
        self.open.clear()
        while len(self.open) < requests:
            message = self._inbox.receive(timeout_ms=int(1000 * SILENCE_S))
            if message is None:
                raise TimeoutError(f"only {len(self.open)} of {requests} requests reached the scheduler")
            if isinstance(message, Generate):
                self._outbox.send(Accepted(message.request))
                self.open.append(message.request)

    def characters(self, number: int) -> int:
        """The number of characters in the text of step `number`."""
        return self._characters[number % len(self._ids)]

    def step(self, number: int) -> None:
        self.sent_at.append(time.perf_counter())
        last = number == self._tokens - 1
        token = self._ids[number % len(self._ids)]
        items = [
            Output(
                request, token, finish="length" if last else None, cached_tokens=0 if number == 0 else None
            )
            for request in self.open
        ]
        self._outbox.send(Outputs(items))


class Stream:
    """A client that counts the characters of its reply's text and notes when each part came.

    It reads without an event loop, because the time that a client takes is a part of the delay."""

    def __init__(self, port: int, api: Api, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        head = (
            f"POST {api.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(head.encode() + data)
        self._text = re.compile(re.escape(api.mark) + rb'([^"]*)"')  # TokenSource's text needs no escapes
        self._partial = b""
        self.characters = 0
        self._arrivals: list[tuple[int, float]] = []  # the characters so far, and when the last of them came

    def read(self) -> bool:
        """Reads what has come. Returns whether the stream goes on."""
        part = self.socket.recv(1 << 16)
        now = time.perf_counter()
        events, _, self._partial = (self._partial + part).rpartition(b"\n")
        self.characters += sum(map(len, self._text.findall(events)))
        self._arrivals.append((self.characters, now))
        return bool(part)

    def came_at(self, characters: int) -> float:
        """When so many characters had come. LookupError: they never did."""
        at = bisect.bisect_left(self._arrivals, characters, key=itemgetter(0))
        if at == len(self._arrivals):
            raise LookupError(f"{characters} characters were sent, and {self.characters} came")
        return self._arrivals[at][1]


def run_round(
    source: TokenSource | BareSource, port: int, pid: int, api: Api, options: argparse.Namespace
) -> Round:
    body = {**api.body(options.tokens), "model": "model", "stream": True}
    streams = [Stream(port, api, body) for _ in range(options.streams)]
    source.wait_for(options.streams)
    sent = list(accumulate(source.characters(number) for number in range(options.tokens)))
    source.sent_at.clear()
    before, began = cpu_seconds(pid), time.perf_counter()
    number, due = 0, began

    def wait_seconds() -> float | None:
        """Seconds until the next step. None: clients must read first, or all steps are done."""
        if number == options.tokens:
            return None
        if options.rate:
            return max(0.0, due - time.perf_counter())
        slowest = min(stream.characters for stream in streams)
        return 0.0 if number < AHEAD or slowest >= sent[number - AHEAD] else None

    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        while selector.get_map():
            wait = wait_seconds()
            if wait == 0:
                source.step(number)
                number += 1
                if options.rate:  # a late step is not followed by others in less time than usual
                    due = max(due, time.perf_counter() - TIMER_S) + 1 / options.rate
                continue
            ready = selector.select(SILENCE_S if wait is None else wait)
            if not ready and wait is None:
                raise TimeoutError(f"{api.path} sent nothing for {SILENCE_S:.0f} s")
            for key, _ in ready:
                if not key.data.read():
                    selector.unregister(key.fileobj)
    seconds, cpu = time.perf_counter() - began, cpu_seconds(pid) - before
    for stream in streams:
        stream.socket.close()
    delays = [
        1000 * (stream.came_at(characters) - at)
        for stream in streams
        for characters, at in zip(sent, source.sent_at, strict=True)
    ]
    tokens = options.tokens * options.streams
    return Round(1e6 * cpu / tokens, sorted(delays), tokens / seconds)


def cpu_seconds(pid: int) -> float:
    """The processor time of a process's threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def measure(options: argparse.Namespace, directory: Path, served: Served, bare: Served) -> None:
    tokens = TokenSource(directory, Tokenizer.load(BUILTIN_MODEL), options.tokens)
    events = BareSource(directory, options.tokens)
    rounds: dict[str, list[Round]] = {api: [] for api in options.apis}
    for _ in range(options.rounds):
        for api in options.apis:
            source, (port, pid) = (events, bare) if api == FLOOR else (tokens, served)
            rounds[api].append(run_round(source, port, pid, APIS[api], options))
    print(f"{options.streams} streams of {options.tokens} tokens, medians of {options.rounds} rounds")
    print(f"{'API':<14}{'CPU µs/token':>14}{'tokens/CPU s':>14}{'p50 ms':>9}{'p99 ms':>9}{'tokens/s':>10}")
    for api, its in rounds.items():
        cpu = median(each.cpu_us for each in its)
        p50, p99 = (median(quantile(each.delays_ms, q) for each in its) for q in (0.5, 0.99))
        rate = median(each.tokens_per_s for each in its)
        print(f"{api:<14}{cpu:>14.1f}{1e6 / cpu:>14,.0f}{p50:>9.2f}{p99:>9.2f}{rate:>10,.0f}")


def started(function: Callable[[Path, socket.socket], None], directory: Path, processes: ExitStack) -> Served:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def run() -> None:
        os.sched_setaffinity(0, {CORES[-1]})
        function(directory, listener)

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    processes.callback(process.join)
    processes.callback(process.kill)
    return Served(listener.getsockname()[1], process.pid or 0)


def quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300, help="of each stream")
    parser.add_argument("--rate", type=float, default=0.0, help="steps a second; 0: as fast as they are read")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--log",
        action="store_true",
        help="write the log; with --tokens 1 this shows the cost of a request's line",
    )
    parser.add_argument("--apis", nargs="+", choices=APIS, default=list(APIS))
    options = parser.parse_args()
    if len(CORES) < 2:
        parser.error("two cores are needed: one for the HTTP process, one for its clients.")
    with tempfile.TemporaryDirectory(prefix="arb", dir="/tmp") as name, ExitStack() as processes:
        serves = partial(serve, options.log)
        served, bare = (started(each, Path(name), processes) for each in (serves, write_events))
        os.sched_setaffinity(0, {CORES[0]})
        measure(options, Path(name), served, bare)


if __name__ == "__main__":
    main()
