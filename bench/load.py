"""Measures what a server does under far more load than it can serve, and with odd clients.

    arbora serve --dtype float32 --max-running 512 --max-waiting 2048
    python bench/load.py streams --url http://127.0.0.1:8000 --streams 2000 --pid PID

`streams`      `--streams` streams at once: each must end whole, and a sample must get the same texts when
               it is requested again alone
`overload`     rounds of a full server and of ten times as many arrivals: goodput, refusals, Retry-After, and
               the processor time that server and clients take for a token and a refusal
`storm`        `--streams` clients that ignore Retry-After: each sends its next request when it has an answer
`slow_readers` streams beside clients that read a byte a second
`connections`  `--connections` idle connections, beside which streams go on

Prints a line of JSON for each measurement. `--pid` is that of `arbora serve`: with it memory (MB),
descriptors and processor time of the server's processes are reported. It needs the package psutil, which
`make test` installs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "lib"))
from load_options import Load
from overload import overload, storm
from process_figures import Figures, keep_peak, processes
from reports import percentile, report
from sockets_client import Server, ask, connect


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
    parser.add_argument("--pid", type=int, help="of `arbora serve`, to report what its processes use")
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
