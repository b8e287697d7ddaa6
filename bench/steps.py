"""How long a step of the model takes, by its rows in decode and the prompt tokens beside them.

    python bench/steps.py CHECKPOINT --decode 0,1,4 --chunk 0,16,40,128 -- --quantize int4
    python bench/steps.py CHECKPOINT --busy 2

Rows in decode have `--keys` tokens already, the prompt's chunks begin at half as many. `--busy` starts
processes that compute without end, to see what a full machine does to a step. What follows `--` are options
of `arbora serve`. Printed are the median and the range in milliseconds. With `--kernels`, kernels run one by
one, and the time of each kind is printed too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

sys.path.append(str(Path(__file__).parent / "lib"))
import numpy as np
from arbora.frontend.cli import build_parser, serve_config
from arbora.frontend.launch.commands import replica_commands
from arbora.kernels.common.threads import Callback
from arbora.runtime.messages import Row, SlotSetup, StepPlan
from arbora.runtime.model.devices import use_all_cores
from arbora.runtime.model.loading import load_model
from arbora.runtime.sampling_params import SamplingParams
from comparison import markdown

UNMEASURED = 3  # steps of each kind, in which programs are recorded


class Steps:
    """A model whose slots all decode, except the last: it has a prompt, of which a step computes a chunk."""

    def __init__(self, arguments: Sequence[str], decoding: int, keys: int) -> None:
        config = serve_config(vars(build_parser().parse_args(["serve", *arguments])), {})
        use_all_cores()
        self._runner, ready, _ = load_model(config, _no_vocabulary)
        self._random, self._step, self._setups = random.Random(0), 0, list[SlotSetup]()
        self._page_size = ready.page_size
        self._pages_of_slot = ready.num_pages // (decoding + 1)
        self._prompt, self._keys = decoding, keys
        self._lengths: dict[int, int] = {}
        for slot in range(decoding):
            self._begin(slot)
            self._run([self._row(slot, keys)])

    def begin_prompt(self) -> None:
        self._begin(self._prompt)
        self._run([self._row(self._prompt, self._keys // 2)])

    def run(self, decode: int, chunk: int) -> float:
        """Returns the milliseconds of a step: a token for each of `decode` slots, and a chunk of a prompt."""
        rows = [self._row(slot, 0) for slot in range(decode)]
        return self._run([*rows, self._row(self._prompt, chunk)] if chunk else rows)

    def _begin(self, slot: int) -> None:
        sampling = SamplingParams(max_tokens=1 << 20, temperature=0.0)
        self._setups.append(SlotSetup(slot=slot, sampling=sampling))
        self._lengths[slot] = 0

    def _run(self, rows: list[Row]) -> float:
        self._step += 1
        plan, self._setups = StepPlan(self._step, rows, self._setups), []
        begin = time.perf_counter()
        self._runner.run(plan, lambda: None)
        return (time.perf_counter() - begin) * 1e3

    def _row(self, slot: int, chunk: int) -> Row:
        start = self._lengths[slot]
        self._lengths[slot] += chunk or 1
        first = slot * self._pages_of_slot
        given, needed = (-(-tokens // self._page_size) for tokens in (start, self._lengths[slot]))
        tokens = [self._random.randrange(10, 250) for _ in range(chunk)]
        return Row(
            slot=slot,
            start=start,
            tokens=np.array(tokens, np.int32).tobytes(),
            sample=not chunk,
            new_pages=np.arange(first + given, first + needed, dtype=np.int32).tobytes(),
        )


def _no_vocabulary() -> NoReturn:
    raise AssertionError("no grammar is loaded")


def compute() -> None:
    while True:
        sum(range(10_000))


def kernel_times(steps: Steps, decode: int, chunk: int, count: int) -> list[tuple[str, float]]:
    """Returns the milliseconds that the kernels of each module take in a step; the slowest come first."""
    spent: defaultdict[str, float] = defaultdict(float)
    run = Callback.run

    def timed(callback: Callback, arguments: Sequence[int], threads: int) -> None:
        begin = time.perf_counter()
        run(callback, arguments, threads)
        name = sys._getframe(1).f_code.co_filename.partition("/kernels/")[2]
        spent[name] += (time.perf_counter() - begin) * 1e3 / count

    for _ in range(count):
        steps.begin_prompt()
        Callback.run = timed  # type: ignore[assignment, method-assign]
        steps.run(decode, chunk)
        Callback.run = run  # type: ignore[method-assign]
    return sorted(spent.items(), key=lambda each: -each[1])


def times(steps: Steps, decode: int, chunk: int, count: int) -> list[float]:
    """Returns the milliseconds of each step, in ascending order."""
    found = []
    for _ in range(count + UNMEASURED):
        steps.begin_prompt()
        found.append(steps.run(decode, chunk))
    return sorted(found[UNMEASURED:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--decode", default="0,1,4")
    parser.add_argument("--chunk", default="0,16,40,128")
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--count", type=int, default=12, help="steps of each kind (default: %(default)s)")
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
    options = [*given[split + 1 :], *(["--enforce-eager"] if asked.kernels else [])]
    steps = Steps([asked.model, *options], max(decodes), asked.keys)
    others = [multiprocessing.Process(target=compute, daemon=True) for _ in range(asked.busy)]
    for other in others:
        other.start()
    found = []
    for chunk in chunks:
        for decode in decodes:
            if chunk or decode:
                taken = times(steps, decode, chunk, asked.count)
                cells = [f"{statistics.median(taken):.1f}", f"{taken[0]:.1f} to {taken[-1]:.1f}"]
                if asked.kernels:
                    spent = kernel_times(steps, decode, chunk, asked.count)
                    cells.append(", ".join(f"{name} {ms:.1f}" for name, ms in spent[:5]))
                found.append([str(decode), str(chunk), *cells])
    head = ["rows in decode", "prompt tokens", "median", "range", *(["kernels"] if asked.kernels else [])]
    print(markdown(head, found))
    for other in others:
        other.terminate()


if __name__ == "__main__":
    main()
