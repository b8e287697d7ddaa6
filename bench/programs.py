"""Fork-heavy programs: in the embedded language, and as a client without forks writes the same calls.

    python bench/programs.py --url http://127.0.0.1:8000 [--other-url http://127.0.0.1:8001] --rounds 3

The workloads:

- tree: a tree of thought with 4 continuations for each of 3 steps, and a mark for each of the 64 paths
- questions: 20 questions about each of 5 documents
- judge: 4 grades and a verdict for each of 5 documents, by `select`
- consistency: 16 chains of reasoning about each of 5 documents, with a number at the end of each
- extraction: 100 invoices after the same instructions, as typed JSON
- pipeline: each of these invoices as typed JSON, then 1 or 3 tasks and a letter, as this JSON says
- agent: 20 turns about each of 5 documents: a lookup as typed JSON, its result and an answer

The naive ways send each prompt as a whole to /v1/completions. "one by one" waits for each reply before the
next call. "pool" makes calls that don't need each other's replies on `--threads` threads: a level of the
tree, the questions, the chains, the invoices; of the judge and the agent whole documents. `--other-url` is
another server, such as vLLM, for the naive ways; it reports cached tokens only with
`--enable-prompt-tokens-details`. A naive `select` scores each choice with a request of its own (`echo` and
`logprobs`); with `--naive-select constrain` one request is constrained to the choices, which may find another
choice and costs less.

`--ways` chooses among them and "language", for example without "one by one", which takes longest.

Every way has texts of its own, so it finds nothing of another in the cache. Ways alternate within a round. A
ratio is a naive way's figure ÷ that of the language in the same round; the table shows medians, and for the
seconds' ratio the lowest and highest too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parent / "lib"))
import arbora as ab
from program_material import Invoice, Material, material
from programs_in_language import IN_LANGUAGE
from programs_naive import NAIVE, NaiveClient

WAYS = ["language", "one by one", "pool", "other one by one", "other pool"]


class Way(NamedTuple):
    """`threads`: None for the language."""

    name: str
    url: str
    threads: int | None


class Run(NamedTuple):
    workload: str
    way: str
    round: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def computed(self) -> int:
        return self.prompt_tokens - self.cached_tokens


def run(workload: str, way: Way, number: int, texts: Material, *, scores: bool) -> Run:
    if way.threads is None:
        backend = ab.connect(way.url)
        begun = time.perf_counter()
        trace = IN_LANGUAGE[workload](texts, backend)
        seconds = time.perf_counter() - begun
        replies = sum(call.completion_tokens for call in trace.calls)
        return Run(workload, way.name, number, seconds, trace.prompt_tokens, trace.cached_tokens, replies)
    client = NaiveClient(way.url, way.threads, scores)
    begun = time.perf_counter()
    NAIVE[workload](texts, client)
    seconds = time.perf_counter() - begun
    client.close()
    tokens = (client.prompt_tokens, client.cached_tokens, client.completion_tokens)
    return Run(workload, way.name, number, seconds, *tokens)


def ways(options: argparse.Namespace) -> list[Way]:
    found = [Way("language", options.url, None)]
    servers = {"": options.url, "other ": options.other_url}
    for name, url in servers.items():
        if url:
            found += [Way(f"{name}one by one", url, 1), Way(f"{name}pool", url, options.threads)]
    return [way for way in found if way.name in options.ways]


def send_schema(url: str) -> None:
    """Starts the process that builds automata, so that no measured request waits for it."""
    client = NaiveClient(url, threads=1, scores=False)
    client.complete_json("An invoice:", Invoice)
    client.close()


def measured(options: argparse.Namespace) -> list[Run]:
    for url in {way.url for way in ways(options)}:
        send_schema(url)
    runs = []
    for number in range(options.rounds):
        order = ways(options)[:: 1 if number % 2 == 0 else -1]
        for workload in options.workloads:
            for way in order:
                label = f"{options.seed} {number} {workload} {way.name}"
                texts = material(label, options.documents_words, options.fraction)
                runs.append(run(workload, way, number, texts, scores=options.naive_select == "score"))
                print(json.dumps(runs[-1]._asdict()), file=sys.stderr)
    return runs


def table(runs: list[Run]) -> str:
    lines = [
        "| workload | way | seconds | ÷ language | prompt tokens | computed | ÷ language | tokens out |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for workload, way in dict.fromkeys((each.workload, each.way) for each in runs):
        own = [each for each in runs if (each.workload, each.way) == (workload, way)]
        base = {each.round: each for each in runs if (each.workload, each.way) == (workload, "language")}
        times = [each.seconds / base[each.round].seconds for each in own]
        computed = statistics.median(each.computed / max(1, base[each.round].computed) for each in own)
        lines.append(
            f"| {workload} | {way} | {_median(own, 'seconds'):.2f} "
            f"| {statistics.median(times):.2f} ({min(times):.2f}–{max(times):.2f}) "
            f"| {_median(own, 'prompt_tokens'):.0f} | {_median(own, 'computed'):.0f} | {computed:.2f} "
            f"| {_median(own, 'completion_tokens'):.0f} |"
        )
    return "\n".join(lines)


def _median(runs: list[Run], field: str) -> float:
    return float(statistics.median(getattr(each, field) for each in runs))


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="an Arbora server")
    parser.add_argument("--other-url", help="another server, for the naive ways")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(NAIVE), metavar="A,B")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS, metavar="A,B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents-words", type=int, default=400, help="words of each document")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the full sizes of the workloads")
    parser.add_argument("--threads", type=int, default=16, help="of the naive pool")
    parser.add_argument("--naive-select", choices=["score", "constrain"], default="score")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the texts' labels")
    options = parser.parse_args()
    if unknown := set(options.workloads) - NAIVE.keys():
        parser.error(f"--workloads has {', '.join(sorted(unknown))}, but must be among {', '.join(NAIVE)}.")
    if unknown := set(options.ways) - set(WAYS):
        parser.error(f"--ways has {', '.join(sorted(unknown))}, but must be among {', '.join(WAYS)}.")
    if "language" not in options.ways:
        parser.error("--ways must contain language: the other figures are divided by it.")
    return options


if __name__ == "__main__":
    print(table(measured(parsed_options())))
