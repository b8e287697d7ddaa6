"""Checks that drafts change no reply, and measures what they gain.

    PYTHONSAFEPATH=1 python bench/drafts.py [MODEL] --equal
    PYTHONSAFEPATH=1 python bench/drafts.py [MODEL] --drafts auto --streams 1
    PYTHONSAFEPATH=1 python bench/drafts.py FILE.gguf --peer "llama-server -m FILE.gguf --spec-type suffix"

With `--equal` a mixed load of requests at temperature 0 and above, with seeds, is replayed without drafts and
with them. The number of replies that differ is printed, with `--deterministic` and without.

Otherwise requests of several kinds are sent to two servers in turns, one of which makes drafts. Printed for
each kind are the tokens that a row of a step gives, the share of drafts that the model sampled, the share of
prompt tokens that the prefix cache had, and the ratios of tokens per second and of CPU seconds per token, the
median of the rounds. A peer is any server with OpenAI's API; tokens per second are compared with its too.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
from arbora import Engine
from prometheus_client.parser import text_string_to_metric_families

sys.path.append(str(Path(__file__).parent / "lib"))
from compared_servers import ServerCommand
from mixed_load import differing, mixed_load, replay, shuffled
from process_figures import cpu_seconds
from repeating_requests import KINDS, Body
from reports import table
from server_process import ServerProcess, exit_on_sigterm

PATIENCE_S = 600.0


class Figures(NamedTuple):
    tokens: int
    seconds: float
    cpu_seconds: float
    drafted: int
    accepted: int
    hit_rate: float
    """the share of the prompts' tokens that the prefix cache had"""


def count_differing(options: argparse.Namespace, deterministic: bool) -> int:
    """How many replies differ between an engine with drafts and one without."""
    load = mixed_load(options.requests, scale=2)
    order = shuffled(len(load), 1)
    answers = []
    for speculate in ("off", options.drafts):
        with Engine(
            options.model,
            device="cpu",
            dtype=options.dtype,
            deterministic=deterministic,
            speculate=speculate,
            max_running=options.in_flight,
            max_model_len=2048,
        ) as engine:
            answers.append(replay(engine, load, order, options.in_flight))
    return len(differing(*answers))


def run(server: ServerProcess, bodies: list[Body], streams: int) -> Figures:
    before, started, used = read_counts(server), time.perf_counter(), sum(cpu_seconds(server.pid).values())
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client, ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda body: client.post("/v1/chat/completions", json=body), bodies))
    seconds, cpu = time.perf_counter() - started, sum(cpu_seconds(server.pid).values()) - used
    after = read_counts(server)
    tokens = sum(answer.raise_for_status().json()["usage"]["completion_tokens"] for answer in answers)
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    drafted, accepted = (int(grown.get(f"arbora_{name}_tokens", 0)) for name in ("drafted", "accepted"))
    looked_up = grown.get("arbora_prompt_tokens_looked_up", 0)
    hit_rate = grown["arbora_prompt_tokens_cached"] / looked_up if looked_up else 0.0
    return Figures(tokens, seconds, cpu, drafted, accepted, hit_rate)


def read_counts(server: ServerProcess) -> dict[str, float]:
    answer = httpx.get(f"{server.url}/metrics")
    families = text_string_to_metric_families(answer.text if answer.is_success else "")
    return {each.name: sum(s.value for s in each.samples if s.name.endswith("_total")) for each in families}


def compare(options: argparse.Namespace, servers: list[ServerProcess], kind: str) -> list[object]:
    """A line of the table: the kind, and the figures with drafts compared with those without, and with those
    of a peer if there is one."""
    write, speeds, costs, over_peer, hit_rates = KINDS[kind], [], [], [], []
    drafted = accepted = tokens = 0
    for number in range(options.rounds + 1):
        numbers = range(options.requests_per_round)
        bodies = [write(number * options.requests_per_round + at).body for at in numbers]
        order = servers if number % 2 else servers[::-1]
        found = {server.url: run(server, bodies, options.streams) for server in order}
        without, with_drafts, *peer = (found[server.url] for server in servers)
        if number == 0:
            continue  # caches fill, and programs are recorded
        speed = with_drafts.tokens / with_drafts.seconds
        speeds.append(speed / (without.tokens / without.seconds))
        over_peer += [speed / (each.tokens / each.seconds) for each in peer]
        hit_rates.append((without.hit_rate, with_drafts.hit_rate))
        costs.append(with_drafts.cpu_seconds / with_drafts.tokens / (without.cpu_seconds / without.tokens))
        drafted += with_drafts.drafted
        accepted += with_drafts.accepted
        tokens += with_drafts.tokens
    rows = tokens - accepted
    share = f"{accepted / drafted:.2f}" if drafted else "none drafted"
    figures = [tokens / rows, *(statistics.median(each) for each in (speeds, costs, over_peer) if each)]
    print(f"{kind}: tokens/s {speeds}, CPU {costs}, ÷ peer {over_peer}", file=sys.stderr, flush=True)
    hits = " / ".join(f"{statistics.mean(each):.3f}" for each in zip(*hit_rates, strict=True))
    return [kind, share, hits, *(f"{figure:.2f}" for figure in figures)]


def measure(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        servers = []
        for speculate in ("off", options.drafts):
            command = [str(Path(sys.executable).with_name("arbora")), "serve", *filter(None, [options.model])]
            command += ["--dtype", options.dtype, "--max-model-len", "2048", "--quiet", *options.serve]
            command += ["--speculate", speculate, "--max-running", str(max(4, options.streams))]
            log = Path(directory) / f"{speculate}.log"
            servers.append(stack.enter_context(ServerProcess(ServerCommand("arbora", command), log)))
        if options.peer:
            peer = ServerCommand("peer", shlex.split(options.peer))
            servers.append(stack.enter_context(ServerProcess(peer, Path(directory) / "peer.log")))
        lines = [compare(options, servers, kind) for kind in options.kinds]
    headings = [
        "kind",
        "accepted",
        "prefix hits, off / on",
        "tokens a row",
        "tokens/s, on ÷ off",
        "CPU s/token, on ÷ off",
    ]
    print(table([*headings, "tokens/s ÷ peer"] if options.peer else headings, lines))


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a directory or hub id (default: the built-in model)")
    parser.add_argument("--equal", action="store_true", help="compare replies in place of measuring")
    parser.add_argument("--requests", type=int, default=500, help="for --equal")
    parser.add_argument("--in-flight", type=int, default=8, help="for --equal")
    parser.add_argument("--drafts", default="auto", help="the value of --speculate")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests-per-round", type=int, default=6)
    parser.add_argument(
        "--peer", default="", help="the command of another server, to which --port N is added"
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--serve", nargs="*", default=[], help="more options of arbora serve")
    options = parser.parse_args()
    if not options.equal:
        measure(options)
        return
    for deterministic in (True, False):
        name = "deterministic" if deterministic else "default"
        differ = count_differing(options, deterministic)
        print(f"{name}: {differ} of {options.requests} replies differ", flush=True)


if __name__ == "__main__":
    main()
