"""How long a step of the model takes, by its rows in decode and the prompt tokens beside them.

    python bench/steps.py CHECKPOINT --decode 0,1,4 --chunk 0,16,40,128 -- --quantize int4
    python bench/steps.py CHECKPOINT --busy 2
    python bench/steps.py CHECKPOINT --decode 1,4 --chunk 0 --drafts 0,1,4
    python bench/steps.py CHECKPOINT --decode 8 --chunk 0,128 --adapters 0,1,8 -- --lora
    0=CHECKPOINT/adapters/0 …

Rows in decode have `--keys` tokens already, the prompt's chunks begin at half as many. `--busy` starts
processes that compute without end, to see what a full machine does to a step. What follows `--` are options
of `arbora serve`. Printed are the median and the range in milliseconds, and the part outside of our kernels:
Python's work, copies of small arrays, and what PyTorch computes. With `--kernels`, kernels run one by one,
and the time of each kind is printed too. With `--adapters N` the rows take turns with N adapters. With
`--drafts N` rows in decode have N drafts each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parent / "lib"))
from arbora.frontend.launch.child_process import replica_commands
from arbora.kernels.common.threads import ParallelKernel
from model_steps import Steps
from reports import table

UNMEASURED = 3  # steps of each kind, in which programs are recorded


class Kind(NamedTuple):
    """A kind of step."""

    decode: int
    """rows in decode"""
    chunk: int
    """tokens of a prompt"""
    drafts: int
    """of each row in decode"""


def compute() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def measured_kernels(add: Callable[[str, float], None]) -> Iterator[None]:
    """Calls `add` with the module and the seconds of each kernel or program that runs in the context."""
    run = ParallelKernel.run

    def timed(kernel: ParallelKernel, arguments: Sequence[int], threads: int) -> None:
        begin = time.perf_counter()
        run(kernel, arguments, threads)
        name = sys._getframe(1).f_code.co_filename.partition("/kernels/")[2]
        add(name, time.perf_counter() - begin)

    ParallelKernel.run = timed  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        ParallelKernel.run = run  # type: ignore[method-assign]


def kernel_times(steps: Steps, kind: Kind, count: int) -> list[tuple[str, float]]:
    """Returns how many milliseconds of a step the kernels of each module take, the slowest module first."""
    spent: defaultdict[str, float] = defaultdict(float)

    def add(name: str, seconds: float) -> None:
        spent[name] += seconds * 1e3 / count

    for _ in range(count):
        if kind.chunk:
            steps.begin_prompt()
        with measured_kernels(add):
            steps.run(*kind)
    return sorted(spent.items(), key=lambda each: -each[1])


def times(steps: Steps, kind: Kind, count: int) -> tuple[list[float], list[float]]:
    """Returns the milliseconds of each step, and those outside of kernels, in ascending order."""
    found, outside = [], []
    for _ in range(count + UNMEASURED):
        if kind.chunk:
            steps.begin_prompt()
        spent = 0.0

        def add(_: str, seconds: float) -> None:
            nonlocal spent
            spent += seconds

        with measured_kernels(add):
            found.append(steps.run(*kind))
        outside.append(found[-1] - spent * 1e3)
    return sorted(found[UNMEASURED:]), sorted(outside[UNMEASURED:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--decode", default="0,1,4")
    parser.add_argument("--chunk", default="0,16,40,128")
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--count", type=int, default=12, help="steps of each kind (default: %(default)s)")
    parser.add_argument("--adapters", default="0", help="numbers of adapters (default: %(default)s)")
    parser.add_argument("--drafts", default="0", help="numbers of drafts (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--kernels", action="store_true")
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:split])
    defaults = replica_commands().model.defaults
    if not defaults.keys() <= os.environ.keys():  # OpenMP and malloc read them when a process starts
        os.execve(sys.executable, [sys.executable, "-P", *sys.argv], {**defaults, **os.environ})
    decodes = [int(rows) for rows in asked.decode.split(",")]
    chunks = [int(tokens) for tokens in asked.chunk.split(",")]
    adapters = [int(number) for number in asked.adapters.split(",")]
    drafts = [int(number) for number in asked.drafts.split(",")]
    options = [*given[split + 1 :], *(["--debug", "eager"] if asked.kernels else [])]
    steps = Steps([asked.model, *options], max(decodes), asked.keys)
    others = [multiprocessing.Process(target=compute, daemon=True) for _ in range(asked.busy)]
    for other in others:
        other.start()
    found = []
    for chunk, decode, drafted, number in product(chunks, decodes, drafts, adapters):
        kind = Kind(decode, chunk, drafted)
        if not (chunk or decode):
            continue
        steps.choose_adapters(number)
        taken, outside = times(steps, kind, asked.count)
        middle = statistics.median(taken)
        cells = [f"{middle:.2f}", f"{taken[0]:.2f} to {taken[-1]:.2f}"]
        rest = statistics.median(outside)
        cells += [f"{rest:.2f} ({100 * rest / middle:.1f} %)", f"{outside[0]:.2f}"]
        if asked.kernels:
            spent = kernel_times(steps, kind, asked.count)
            cells.append(", ".join(f"{name} {ms:.1f}" for name, ms in spent[:5]))
        found.append([str(decode), str(drafted), str(chunk), str(number), *cells])
    head = ["rows in decode", "drafts", "prompt tokens", "adapters", "median", "range"]
    head += ["outside of kernels", "at least"]
    head += ["kernels"] if asked.kernels else []
    print(table(head, found))
    for other in others:
        other.terminate()


if __name__ == "__main__":
    main()
