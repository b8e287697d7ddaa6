"""The kernels of a decode step on a GPU, and how long the GPU is idle.

    PYTHONSAFEPATH=1 python bench/gpu_steps.py CHECKPOINT --decode 1,64 --keys 1000 -- --kv-memory 16GiB

Rows in decode have `--keys` tokens already. As in the model process, a step is launched before the result of
the one before is awaited. What follows `--` are options of `arbora serve`. The first table has the times of a
step by the clock; the time in which at least one kernel or copy runs, by PyTorch's profiler; and the part of
the clock's time without any. The floor is that of reading weights and keys once at the speed of a large copy.
The second table lists the kernels: how often a step launches each, and the microseconds that it takes there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.append(str(Path(__file__).parent / "lib"))
from model_steps import Steps
from reports import table
from torch.profiler import ProfilerActivity, profile

COUNT = 100
"""steps by the clock"""
PROFILED = 20
KERNELS = 24
"""in a table"""


class Busy(NamedTuple):
    busy: float
    """milliseconds of a step"""
    kernels: dict[str, tuple[int, float]]
    """launches in all profiled steps, and their microseconds"""


def run(steps: Steps, decode: int, count: int) -> float:
    """The seconds of `count` steps. Each is launched before the step before it is finished."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    running = None
    for _ in range(count):
        step = steps.runner.start(steps.plan(decode))
        if running is not None:
            steps.runner.finish(running)
        running = step
    if running is not None:
        steps.runner.finish(running)
    return time.perf_counter() - begun


def profiled(steps: Steps, decode: int) -> Busy:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run(steps, decode, PROFILED)
    events = [event for event in profiler.events() or () if "CUDA" in str(event.device_type)]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    busy, ended = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, ended))
        ended = max(ended, end)
    kernels: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        kernels[event.name].append(event.time_range.end - event.time_range.start)
    return Busy(
        busy / PROFILED / 1e3,
        {name: (len(times), sum(times) / PROFILED) for name, times in kernels.items()},
    )


def copy_bandwidth() -> float:
    """Bytes read and written in a second."""
    from triton.testing import do_bench

    large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    half = large.nbytes // 2
    milliseconds: float = do_bench(lambda: large[:half].copy_(large[half:]))
    return large.nbytes / milliseconds * 1e3


def read_bytes(model: Path, decode: int, keys: int) -> int:
    """Of weights and keys in bfloat16. A tied embedding is the head, so all of a checkpoint's bytes count."""
    from arbora.runtime.model.decoder_config import load_decoder_config

    spec = load_decoder_config(model).cache_spec
    cells = 2 * spec.layers * spec.kv_heads * spec.head_dim * 2
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    return weights + decode * keys * cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--decode", default="1,64")
    parser.add_argument("--keys", type=int, default=1000)
    given: list[Any] = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:split])
    if not torch.cuda.is_available():
        sys.exit(f"no CUDA device: PyTorch {torch.__version__} finds none")
    bandwidth = copy_bandwidth()
    decodes = [int(rows) for rows in asked.decode.split(",")]
    steps = Steps([str(asked.model), *given[split + 1 :]], max(decodes), asked.keys)
    rows, kernels = [], []
    for decode in decodes:
        run(steps, decode, COUNT // 10)
        clock = run(steps, decode, COUNT) / COUNT * 1e3
        found = profiled(steps, decode)
        floor = read_bytes(asked.model, decode, asked.keys) / bandwidth * 1e3
        idle = max(0.0, 1 - found.busy / clock)
        cells = [f"{clock:.3f}", f"{floor:.3f}", f"{clock / floor:.2f}", f"{found.busy:.3f}", f"{idle:.1%}"]
        rows.append([str(decode), *cells])
        slowest = sorted(found.kernels.items(), key=lambda each: -each[1][1])[:KERNELS]
        kernels += [
            [str(decode), name[:70], f"{launches / PROFILED:.1f}", f"{spent:.1f}"]
            for name, (launches, spent) in slowest
        ]
    print(f"{torch.cuda.get_device_name()}, a copy of {bandwidth / 1e9:.0f} GB/s")
    print(table(["rows", "ms", "floor", "ms / floor", "busy ms", "idle"], rows))
    print()
    print(table(["rows", "kernel", "launches", "us"], kernels))


if __name__ == "__main__":
    main()
