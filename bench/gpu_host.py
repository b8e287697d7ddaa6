"""What the host does for a step on a GPU, measured without one: launching a graph does nothing.

    PYTHONSAFEPATH=1 python bench/gpu_host.py

The steps are those of an 8B shape (32 query heads, 8 KV heads of 128, a vocabulary of 128,256) on a GPU
with 132 multiprocessors: rows in decode behind 4,096 tokens, alone or beside chunks of 4 and 100 tokens.
`start` plans, fills the buffers and launches; `finish` reads the tokens and makes the result. A GPU that runs
the step before overlaps with both. The times are the best of many runs. The last table has the times of a
step while another thread runs Python, by the interval after which Python changes threads: the page store is
such a thread. Needs Triton.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from arbora.kernels.attention import cuda
from arbora.runtime.messages import Row, SlotSetup, StepPlan
from arbora.runtime.model import cuda_executor
from arbora.runtime.model.capture import GraphMemory, Replay
from arbora.runtime.model.decoder import Decoder
from arbora.runtime.model.decoder_config import DecoderConfig, LayerConfig
from arbora.runtime.model.executor import DeviceState
from arbora.runtime.model.page_tables import PageTables
from arbora.runtime.model.process import SWITCH_S
from arbora.runtime.model.rope_config import RopeConfig
from arbora.runtime.model.runner import Runner
from arbora.runtime.model.slot_states import SlotStates
from arbora.runtime.sampling_params import SamplingParams

PROCESSORS = 132
PAGE_SIZE, CONTEXT, START = 16, 8192, 4096
PAGES = CONTEXT // PAGE_SIZE
VOCAB, HIDDEN = 128_256, 64
"""the hidden size has no part in the host's work"""
CHUNKS = (4, 100)
CPU = torch.device("cpu")
SHAPE = DecoderConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    layers=(
        LayerConfig(
            heads=32,
            kv_heads=8,
            head_dim=128,
            scale=128**-0.5,
            softcap=None,
            window=None,
            rope=RopeConfig(kind="default", theta=10_000.0, dim=128, original_positions=CONTEXT),
            qk_norm=False,
            has_sinks=False,
            qkv_bias=False,
            output_bias=False,
            intermediate_size=HIDDEN,
            activation="silu",
            mlp_bias=False,
            norms="before",
            residual_multiplier=1.0,
            experts=None,
        ),
    )
    * 32,
    rms_norm_eps=1e-5,
    norm_offset=None,
    is_fused=False,
    tied_embeddings=False,
    embedding_multiplier=1.0,
    logit_multiplier=1.0,
    logit_softcap=None,
    max_positions=CONTEXT,
    default_positions=CONTEXT,
    dtype="bfloat16",
)


class NoLaunch:
    """Captures graphs that do nothing."""

    def __call__(self, work: Replay) -> Replay:
        return lambda: None

    def measure(self, work: Replay) -> GraphMemory:
        return GraphMemory(0, 0)


class Steps:
    """A runner whose slots decode from `START` tokens on."""

    def __init__(self, rows: int) -> None:
        states = SlotStates(rows + len(CHUNKS), VOCAB, CPU, lambda: None)  # type: ignore[arg-type, return-value]
        tables = PageTables(rows + len(CHUNKS), CONTEXT, PAGE_SIZE, CPU)
        head = SimpleNamespace(in_features=HIDDEN, out_features=VOCAB)
        norm = torch.zeros(HIDDEN, dtype=torch.bfloat16)
        weights = SimpleNamespace(head=head, norm=norm, layers=[SimpleNamespace(attention_norm=norm)])
        decoder = Decoder(SHAPE, cast(Any, weights), CPU, torch.bfloat16)
        device = DeviceState(decoder, [], tables, states)
        with mock.patch.object(cuda_executor, "CudaCapture", NoLaunch):
            executor = cuda_executor.CudaExecutor(decoder, tables, states)
            executor.capture(device)
        self._runner, self._lengths = Runner(device, executor), tables.lengths[:rows]
        self._rows = rows
        params = SamplingParams(max_tokens=CONTEXT, temperature=0.7, top_p=0.9)
        setups = [SlotSetup(slot, params) for slot in range(rows)]
        pages = np.arange(rows * PAGES, dtype=np.int32).reshape(rows, PAGES)
        first = [Row(slot, new_pages=pages[slot].tobytes()) for slot in range(rows)]
        self._runner.run(StepPlan(0, first, setups), lambda: None)

    def time(self, chunks: bool) -> tuple[float, float]:
        """Microseconds of `start` and of `finish`, of a step without other launches than those of graphs."""
        if self._lengths[0] < START or self._lengths[0] == CONTEXT:
            self._lengths[:] = START
        rows, setups = [Row(slot) for slot in range(self._rows)], list[SlotSetup]()
        for slot, tokens in enumerate(CHUNKS if chunks else (), self._rows):
            own = np.arange(slot * PAGES, slot * PAGES + (START + tokens) // PAGE_SIZE + 1, dtype=np.int32)
            rows.append(Row(slot, START, np.zeros(tokens, np.int32).tobytes(), new_pages=own.tobytes()))
            setups.append(SlotSetup(slot, SamplingParams(max_tokens=9, temperature=0.0)))
        plan = StepPlan(1, rows, setups)
        begin = time.perf_counter()
        step = self._runner.start(plan)
        started = time.perf_counter()
        self._runner.finish(step)
        return (started - begin) * 1e6, (time.perf_counter() - started) * 1e6


def best(steps: Steps, chunks: bool, count: int) -> tuple[float, float]:
    times = np.array([steps.time(chunks) for _ in range(count)])
    start, finish = times[np.argmin(times.sum(axis=1))].tolist()
    return start, finish


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that runs Python without a pause."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            sum(range(1000))

    thread = threading.Thread(target=run)
    thread.start()
    yield
    ended.set()
    thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=400, help="steps of each kind")
    count = parser.parse_args().count
    with (
        mock.patch.object(cuda, "processors", lambda device: PROCESSORS),
        mock.patch.object(torch.Tensor, "is_cuda", True),
    ):
        every = {rows: Steps(rows) for rows in (1, 64, 256)}
        print("| step | start, µs | finish, µs | both, µs |\n|---|---|---|---|")
        for rows, steps in every.items():
            for chunks in (False, True):
                start, finish = best(steps, chunks, count)
                name = f"{rows} rows{', 4 and 100 tokens' if chunks else ''}"
                print(f"| {name} | {start:.0f} | {finish:.0f} | {start + finish:.0f} |")
        print("\n| 64 rows beside a busy thread, interval | median, µs | slowest of ten, µs |\n|---|---|---|")
        for interval in (5e-3, SWITCH_S):
            sys.setswitchinterval(interval)
            with busy_thread():
                times = [sum(every[64].time(False)) for _ in range(count)]
            median, slow = np.percentile(times, [50, 90]).tolist()
            print(f"| {interval * 1e3:.1f} ms | {median:.0f} | {slow:.0f} |")


if __name__ == "__main__":
    main()
