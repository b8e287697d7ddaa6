"""How fast several ranks of one core each are, against one process with as many threads.

    PYTHONSAFEPATH=1 python bench/tp.py MODEL [--ranks 2] [--rounds 5] [-- --quantize int8]

Both servers run at the same time, but only one has a request at a time: in each round each computes a new
prompt and then a reply of `--tokens` tokens. Options after `--` are passed to `arbora serve`. The table has
the tokens per second of the fastest round and the median, and the processor time of the model processes for
a token, which other programs change less. On a busy machine ranks lose more speed than one process, because
each rank waits for the slowest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parent / "lib"))
from compared_servers import ServerCommand
from reports import machine, table
from server_process import ServerProcess, exit_on_sigterm, processes_by_role, start

WORDS = ("river", "mill", "stone", "garden", "letter", "winter", "bread", "harbour", "field", "lamp")


class Round(NamedTuple):
    """Wall-clock and processor seconds. The processor time is that of the model processes."""

    prefill: float
    decode: float
    prefill_cpu: float
    decode_cpu: float
    prompt_tokens: int


class Measured(NamedTuple):
    name: str
    server: ServerProcess
    rounds: list[Round]

    def read_cpu_seconds(self) -> float:
        """Returns the processor time, in seconds, that its model processes have taken since their start."""
        found = processes_by_role(self.server.pid)
        times = [each.cpu_times() for role, each in found.items() if role.split()[0] == "model"]
        return float(sum(each.user + each.system for each in times))

    def complete(self, prompt: str, tokens: int) -> int:
        """Generates `tokens` tokens. Returns the number of tokens of the prompt."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.server.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            usage = json.load(answer)["usage"]
        assert usage["completion_tokens"] == tokens, usage
        return int(usage["prompt_tokens"])

    def run(self, words: int, tokens: int) -> None:
        prompt = " ".join(random.choices(WORDS, k=words))
        begun, cpu = time.perf_counter(), self.read_cpu_seconds()
        count = self.complete(prompt, 1)
        middle, middle_cpu = time.perf_counter(), self.read_cpu_seconds()
        self.complete(prompt, tokens + 1)  # the prompt is cached
        ended, ended_cpu = time.perf_counter(), self.read_cpu_seconds()
        self.rounds.append(
            Round(middle - begun, ended - middle, middle_cpu - cpu, ended_cpu - middle_cpu, count)
        )

    def figures(self, tokens: int) -> list[float]:
        prefill = [each.prompt_tokens / each.prefill for each in self.rounds]
        decode = [tokens / each.decode for each in self.rounds]
        prefill_cpu = statistics.median(1e3 * each.prefill_cpu / each.prompt_tokens for each in self.rounds)
        decode_cpu = statistics.median(1e3 * each.decode_cpu / tokens for each in self.rounds)
        return [
            max(prefill),
            statistics.median(prefill),
            max(decode),
            statistics.median(decode),
            prefill_cpu,
            decode_cpu,
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--words", type=int, default=400, help="of a prompt (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of a reply (default: %(default)s)")
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:split])
    exit_on_sigterm()
    options = ["--kv-memory", "1GiB", "--speculate", "off", *given[split + 1 :]]
    command = [sys.executable, "-m", "arbora", "serve", asked.model, *options]
    safe = {"PYTHONSAFEPATH": "1"}
    alone = ServerCommand("one process", command, {**safe, "OMP_NUM_THREADS": str(asked.ranks)})
    ranked = ServerCommand(
        f"{asked.ranks} ranks", [*command, "--tp", str(asked.ranks)], {**safe, "OMP_NUM_THREADS": "1"}
    )
    with tempfile.TemporaryDirectory() as logs:
        servers = list[Measured]()
        try:
            for each in (alone, ranked):
                servers.append(Measured(each.name, start(each, Path(logs)), []))
            for _ in range(asked.rounds + 1):
                for server in servers:
                    server.run(asked.words, asked.tokens)
            for server in servers:
                del server.rounds[0]  # programs are recorded in it
        finally:
            for server in servers:
                server.server.stop()
    figures = [each.figures(asked.tokens) for each in servers]
    ratios = [second / first for first, second in zip(*figures, strict=True)]
    rows = [[each.name, *(f"{n:.2f}" for n in of)] for each, of in zip(servers, figures, strict=True)]
    head = ["", "prefill tokens/s, best", "median", "decode tokens/s, best", "median"]
    head += ["processor ms for a prompt token", "for a reply token"]
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}\n")
    print(table(head, [*rows, ["ratio", *(f"{ratio:.2f}" for ratio in ratios)]]))


if __name__ == "__main__":
    main()
