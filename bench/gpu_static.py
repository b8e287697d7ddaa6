"""What the compiler and the plans say about the kernels on a GPU, without one.

    PYTHONSAFEPATH=1 python bench/gpu_static.py

The first table shows what each attention kernel takes of a multiprocessor, and so how many of its programs
run there at a time. The second one shows the programs of one layer of an 8B shape (32 query heads, 8 KV
heads of 128, bfloat16) on an H200, the turns that they take if programs that run at a time are one turn, and
the floor of its time: the larger of bytes ÷ bandwidth and operations ÷ the matrix rate. The third table has
a warp's instructions in one turn of attention's inner loop on sm_90. It compares the clocks in which the four
schedulers of a multiprocessor issue those of all warps with the clocks in which its share of the bandwidth
reads the turn's keys and values. The last table shows what sampling's kernels take. Needs Triton.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import numpy as np
import torch
from aot_cases import AotCase, all_cases

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
CASES: dict[str, AotCase] = {case.name: case for case in all_cases()}
KERNELS = ("attend-decode-128", "attend-decode-128-group", "attend-chunk-128-short", "attend-chunk-128")
SAMPLING = (
    "sampling-process-half",
    "sampling-bound",
    "sampling-weigh-half",
    "sampling-gather-half",
    "sampling-cut",
    "sampling-race-half",
    "sampling-finish-automata",
    "automaton-copy",
    "automaton-flip",
    "automaton-decide",
    "automaton-keep",
)
CLOCK, SCHEDULERS = 1.83e9, 4
"""the clock at which the data sheet's matrix rate holds; schedulers of a multiprocessor"""
REGISTERS, THREADS_OF_WARP, REGISTER_UNIT = 65536, 32, 8
MOST_WARPS, MOST_PROGRAMS = 64, 32
"""of a multiprocessor (CUDA programming guide, compute capabilities 8.0 to 10.0)"""
RESERVED = 1024
"""bytes of shared memory that the driver takes for each program"""


class Gpu(NamedTuple):
    processors: int
    shared: int
    """bytes for each multiprocessor"""
    bandwidth: float
    """bytes a second, by the data sheet"""
    matrix_rate: float
    """bfloat16 floating-point operations a second, by the data sheet"""


SHARED_BYTES = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
H200 = Gpu(132, SHARED_BYTES[90], 4.8e12, 989e12)
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16


def compiled() -> dict[str, dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_DEFAULT_FP_FUSION": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, str(SUPPORT / "aot_compile.py"), *KERNELS, *SAMPLING]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    results: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return results


def programs_at_a_time(case: str, registers: int, shared: int, architecture: int) -> int:
    """How many programs one multiprocessor runs at the same time."""
    warps = CASES[case].num_warps
    taken = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * warps * THREADS_OF_WARP
    by_shared = SHARED_BYTES[architecture] // (shared + RESERVED)
    return min(REGISTERS // taken, by_shared, MOST_WARPS // warps, MOST_PROGRAMS)


def print_kernels(results: dict[str, dict[str, Any]]) -> None:
    print("| kernel | GPU | registers | shared memory | programs at a time | loops that copy ahead |")
    print("|---|---|---|---|---|---|")
    for case in KERNELS:
        for architecture in SHARED_BYTES:
            result = results[f"{case}-sm{architecture}"]
            registers, shared = result["registers"], result["shared"]
            together = programs_at_a_time(case, registers, shared, architecture)
            row = (
                case,
                f"sm_{architecture}",
                registers,
                f"{shared / 1024:.0f} KiB",
                together,
                result["pipelined"],
            )
            print("|", " | ".join(map(str, row)), "|")


def print_loops(results: dict[str, dict[str, Any]]) -> None:
    kinds = list(results[f"{KERNELS[0]}-sm90"]["loop"])
    print("| kernel |", " | ".join(kinds), "| clocks to issue | clocks to read |")
    print("|---|" + "---|" * (len(kinds) + 2))
    bytes_a_clock = H200.bandwidth / H200.processors / CLOCK
    for case in KERNELS:
        loop = results[f"{case}-sm90"]["loop"]
        issue = sum(loop.values()) * CASES[case].num_warps / SCHEDULERS
        keys = int(CASES[case].constants["BLOCK_KEYS"] or 0)
        read = keys * HEAD_DIM * 2 * 2 / bytes_a_clock
        print(f"| {case} |", " | ".join(str(loop[kind]) for kind in kinds), f"| {issue:.0f} | {read:.0f} |")


def print_sampling(results: dict[str, dict[str, Any]]) -> None:
    print("| kernel | registers | shared memory | bytes spilled | programs at a time |")
    print("|---|---|---|---|---|")
    for case in SAMPLING:
        result = results[f"{case}-sm90"]
        together = programs_at_a_time(case, result["registers"], result["shared"], 90)
        print(
            f"| {case} | {result['registers']} | {result['shared'] / 1024:.0f} KiB | {result['spilled']} |",
            end="",
        )
        print(f" {together} |")


def print_plans(results: dict[str, dict[str, Any]]) -> None:
    from arbora.kernels.attention import cuda
    from arbora.kernels.attention.batch import AttentionBatch

    shape = cuda.Shape(HEADS, KV_HEADS, HEAD_DIM, None)
    device = torch.device("cpu")

    def line(name: str, queries: list[int], lengths: list[int]) -> None:
        tables = [np.arange(-(-length // PAGE_SIZE), dtype=np.int32) for length in lengths]
        batch = AttentionBatch.build(queries, lengths, tables, PAGE_SIZE, device, ())
        most = max(queries) * shape.repeat
        if max(queries) == 1:
            tiles, case = cuda.decode_tiles(shape, (), 2), "attend-decode-128"
            plan = cuda.plan_decode(batch, (), shape, tiles, device)
        else:
            tiles = cuda.Tiles.choose(most, shape.repeat, HEAD_DIM, 2)
            kinds = {16: "attend-decode-128", 64: "attend-chunk-128-short", 128: "attend-chunk-128"}
            case = kinds[tiles.queries]
            plan = cuda.plan_chunks(batch, shape, tiles, device)
        result = results[f"{case}-sm90"]
        together = programs_at_a_time(case, result["registers"], result["shared"], 90) * H200.processors
        programs = len(plan.items) * KV_HEADS
        seen = sum(n * (end - n) + n * (n + 1) // 2 for n, end in zip(queries, lengths, strict=True))
        copied = 2 * 2 * KV_HEADS * HEAD_DIM * sum(lengths)
        written = 2 * 4 * plan.partials * HEADS * (HEAD_DIM + 1)  # and read again by the merge
        floor = max(copied / H200.bandwidth, 4 * HEADS * HEAD_DIM * seen / H200.matrix_rate)
        turns, merging = programs / together, written / H200.bandwidth * 1e6
        print(f"| {name} | {case[7:]} | {programs} | {turns:.2f} | {floor * 1e6:.1f} | {merging:.1f} |")

    print("| step | tiles | programs | turns | floor, µs | partial results, µs |")
    print("|---|---|---|---|---|---|")
    with mock.patch.object(cuda, "processors", lambda device: H200.processors):
        for context in (1024, 8192, 32768):
            for rows in (1, 8, 64, 256):
                line(f"{rows} rows in decode, {context:,} tokens", [1] * rows, [context] * rows)
            for tokens in (4, 100, 512):
                line(f"{tokens} tokens after {context:,}", [tokens], [context + tokens])


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    results = compiled()
    print_kernels(results)
    print()
    print_plans(results)
    print()
    print_loops(results)
    print()
    print_sampling(results)


if __name__ == "__main__":
    main()
