"""Measures how evenly a stream goes on while long prompts arrive, prefill apart from decode and together.

    PYTHONSAFEPATH=1 python bench/prefill.py [MODEL] [--prompt-tokens 3500] [--rounds 3]

*Apart* are a decode server on the first core and a prefill server on the second; *together* is one server
on both. Each has an open stream, first alone and then while prompts of random words arrive, one after the
other with a pause. Printed are the times between two tokens of the stream, the same with prompts divided by
without, and the times to first token of the prompts; medians of the rounds, in which they take turns.

With *nothing in common* the prompts are sent to the prefill server itself: the least that they cost the
decode server, because both use the same memory, and perhaps the same core.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx

sys.path.append(str(Path(__file__).parent / "lib"))
from compared_servers import ServerCommand
from reports import machine, percentile, table
from server_process import ServerProcess, exit_on_sigterm

PATIENCE_S = 600.0
PAUSE_S = 1.0
ALONE_S = 5.0
WORDS = Path(__file__).parent / "texts"


class Figures(NamedTuple):
    p50_ms: float
    """between two tokens of the stream"""
    p99_ms: float
    first_token_s: float
    """of the prompts, on average"""


class Pair(NamedTuple):
    """The addresses of the servers that get the stream and the prompts."""

    stream: str
    prompts: str


class Stream:
    """An endless reply, read on a thread until `end`."""

    def __init__(self, url: str) -> None:
        self.times: list[float] = []
        self._ends = False
        self._thread = threading.Thread(target=self._read, args=(url,))
        self._thread.start()
        while len(self.times) < 3:
            time.sleep(0.01)

    def _read(self, url: str) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 3000, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.times.append(time.perf_counter())
                if self._ends:
                    return

    def end(self) -> list[float]:
        """The milliseconds between the tokens."""
        self._ends = True
        self._thread.join()
        return [1000 * (after - before) for before, after in zip(self.times, self.times[1:], strict=False)]


def write_prompt(seed: random.Random, url: str, tokens: int) -> list[int]:
    """Token ids of random words, which no cache has."""
    words = " ".join(seed.choices(vocabulary(), k=tokens))
    ids: list[int] = httpx.post(f"{url}/tokenize", json={"prompt": words}).json()["tokens"]
    return ids[:tokens]


def vocabulary() -> list[str]:
    text = " ".join(path.read_text(errors="ignore") for path in sorted(WORDS.glob("*.txt")))
    return sorted({word for word in text.split() if word.isalpha()})[:2000]


def run(pair: Pair, seed: random.Random, prompt_tokens: int, prompts: int) -> Figures:
    """The figures of a stream while `prompts` prompts arrive; without prompts, of some seconds."""
    written = [write_prompt(seed, pair.prompts, prompt_tokens) for _ in range(prompts)]
    stream = Stream(pair.stream)
    first_token_s = []
    for prompt in written:
        time.sleep(PAUSE_S)
        begun = time.perf_counter()
        body: Any = {"prompt": prompt, "max_tokens": 1}
        httpx.post(f"{pair.prompts}/v1/completions", json=body, timeout=PATIENCE_S).raise_for_status()
        first_token_s.append(time.perf_counter() - begun)
    time.sleep(PAUSE_S if prompts else ALONE_S)
    between = stream.end()
    return Figures(
        statistics.median(between), percentile(between, 99), statistics.mean(first_token_s or [0.0])
    )


def median(figures: Sequence[Figures]) -> Figures:
    return Figures(*(statistics.median(each) for each in zip(*figures, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", help="default: the built-in model")
    parser.add_argument("--prompt-tokens", type=int, default=3500)
    parser.add_argument("--prompts", type=int, default=5, help="prompts of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="0,1", help="of the decode and the prefill server")
    parser.add_argument("--serve", nargs="*", default=[], metavar="OPTION", help="of all servers")
    given = parser.parse_args()
    exit_on_sigterm()
    arbora = [sys.executable, "-m", "arbora", "serve", *filter(None, [given.model])]
    arbora += ["--quiet", "--speculate", "off", *given.serve]
    decode_core, prefill_core = given.cores.split(",")
    seed = random.Random(0)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        address = f"ipc://{directory}/prefill"

        def start(name: str, cores: str, *options: str) -> ServerProcess:
            command = ServerCommand(name, ["taskset", "-c", cores, *arbora, *options])
            return stack.enter_context(ServerProcess(command, Path(directory) / f"{name}.log"))

        prefill = start("prefill", prefill_core, "--prefill-at", address).url
        decode = start("decode", decode_core, "--prefill-from", address).url
        together = start("together", given.cores).url
        servers = {
            "apart": Pair(decode, decode),
            "together": Pair(together, together),
            "nothing in common": Pair(decode, prefill),
        }
        found: dict[tuple[str, bool], list[Figures]] = defaultdict(list)
        for number in range(given.rounds + 1):
            for name, pair in servers.items():
                for loaded in (False, True):
                    figures = run(pair, seed, given.prompt_tokens, given.prompts if loaded else 0)
                    if number:  # the first round compiles and records programs
                        found[name, loaded].append(figures)
    print(machine())
    rows = []
    for name in servers:
        alone, beside = median(found[name, False]), median(found[name, True])
        rows.append(
            [
                name,
                *(f"{each:.1f}" for each in (alone.p50_ms, alone.p99_ms, beside.p50_ms, beside.p99_ms)),
                f"{beside.p50_ms / alone.p50_ms:.2f}",
                f"{beside.p99_ms / alone.p99_ms:.2f}",
                f"{beside.first_token_s:.2f}",
            ]
        )
    headings = ["", "alone p50 ms", "p99", "beside prompts p50", "p99", "p50 ÷", "p99 ÷", "first token s"]
    print(table(headings, rows))


if __name__ == "__main__":
    main()
