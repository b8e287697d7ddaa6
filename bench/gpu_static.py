"""What the compiler and the plans say about the kernels on a GPU, without one.

    PYTHONSAFEPATH=1 python bench/gpu_static.py [--all]

With --all every variant of attention in half precision and every case of the other kernels is compiled. The
table shows the registers, programs at a time and instructions of each kind of attention tiles. Below it are
the variants and cases that do not meet the expectations in `tests/support/aot_*.py`. This compiles more than
a thousand kernels, each of which takes seconds.

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
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import numpy as np
import torch
from aot_attention import Variant, attention_case, variants
from aot_cases import TARGETS, AotCase, all_cases, all_jobs, faults, programs_at_a_time
from aot_compile import compile_and_measure
from arbora.kernels.attention import FULL_REACH

CASES: dict[str, AotCase] = {case.name: case for case in all_cases()}
SHAPES = ((None, "decode"), (None, "group"), (None, "chunk"), ("int8", "decode"), ("fp8", "decode"))
"""cells and kinds of items that are shown, for bfloat16, heads of 128 and 32 query heads of 8 KV heads"""
SAMPLING = [name for name in CASES if name.startswith(("sampling-", "automaton-"))]
CLOCK, SCHEDULERS = 1.83e9, 4
"""the clock at which the data sheet's matrix rate holds; schedulers of a multiprocessor"""


class Gpu(NamedTuple):
    processors: int
    bandwidth: float
    """bytes a second, by the data sheet"""
    matrix_rate: float
    """bfloat16 floating-point operations a second, by the data sheet"""


H200 = Gpu(132, 4.8e12, 989e12)
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16


class Compiled(NamedTuple):
    case: AotCase
    architecture: int
    result: dict[str, Any]

    @property
    def programs(self) -> int:
        """How many programs one multiprocessor runs at the same time."""
        result = self.result
        return programs_at_a_time(
            self.case.num_warps, result["registers"], result["shared"], self.architecture
        )

    @property
    def faults(self) -> list[str]:
        return faults(self.case, self.architecture, self.result)


def compiled(jobs: Sequence[tuple[AotCase, int]]) -> Iterator[Compiled]:
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    with ProcessPoolExecutor() as processes:
        results = processes.map(compile_and_measure, *zip(*jobs, strict=True))
        for job, result in zip(jobs, results, strict=True):
            yield Compiled(*job, result)


def shown(stored: str | None, kind: str, architecture: int) -> Variant:
    return Variant(kind, architecture, "bf16", HEAD_DIM, HEADS // KV_HEADS, PAGE_SIZE, stored)


def print_kernels(kernels: Mapping[Variant, Compiled]) -> None:
    print("| kernel | GPU | registers | shared memory | programs at a time | loops that copy ahead |")
    print("|---|---|---|---|---|---|")
    for variant, each in kernels.items():
        gpu, result = f"sm_{variant.architecture}", each.result
        shared = f"{result['shared'] / 1024:.0f} KiB"
        row = (_name(variant), gpu, result["registers"], shared, each.programs, result["pipelined"])
        print("|", " | ".join(map(str, row)), "|")


def print_loops(kernels: Mapping[Variant, Compiled]) -> None:
    of_90 = {variant: each for variant, each in kernels.items() if variant.architecture == 90}
    kinds = list(next(iter(of_90.values())).result["loop"])
    print("| kernel | keys |", " | ".join(kinds), "| clocks to issue | clocks to read |")
    print("|---|---|" + "---|" * (len(kinds) + 2))
    bytes_a_clock = H200.bandwidth / H200.processors / CLOCK
    for variant, each in of_90.items():
        loop, keys = each.result["loop"], variant.tiles.keys
        issue = sum(loop.values()) * each.case.num_warps / SCHEDULERS
        read = 2 * keys * (HEAD_DIM + 4 if variant.stored else 2 * HEAD_DIM) / bytes_a_clock
        counts = " | ".join(str(loop[kind]) for kind in kinds)
        print(f"| {_name(variant)} | {keys} | {counts} | {issue:.0f} | {read:.0f} |")


def _name(variant: Variant) -> str:
    return f"{variant.kind}{f' {variant.stored}' if variant.stored else ''}"


def print_all() -> None:
    """Ranges over the variants with the same tiles, and the faults."""
    chosen = variants()
    rows: dict[tuple[str, str, str, str], list[Compiled]] = {}
    found: list[str] = []
    jobs = [(attention_case(variant), variant.architecture) for variant in chosen]
    for variant, each in zip(chosen, compiled(jobs), strict=True):
        more = variant.stored or variant.reach or ("capped" if variant.capped else "")
        key = (variant.kind, more, f"sm_{variant.architecture}", str(variant.head_dim))
        found += [f"{variant.name} sm_{variant.architecture}: {fault}" for fault in each.faults]
        if "error" not in each.result:
            rows.setdefault(key, []).append(each)
    print("| kernel | | GPU | head | variants | registers | programs at a time | matrix | other in a turn |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key, each_of in rows.items():
        results = [each.result for each in each_of]
        ranges = (
            _range([result["registers"] for result in results]),
            _range([each.programs for each in each_of]),
            _range([result["products"] for result in results]),
            _range([sum(result["loop"].values()) - result["loop"]["matrix"] for result in results]),
        )
        print("|", " | ".join([*key, str(len(each_of)), *ranges]), "|")
    of_attention = {case.name for case, _ in jobs}
    others = [job for job in all_jobs() if job[0].name not in of_attention]
    for each in compiled(others):
        found += [f"{each.case.name} sm_{each.architecture}: {fault}" for fault in each.faults]
    count = f"of {len(jobs)} variants of attention and {len(others)} other cases"
    print(f"\n{len(found)} faults {count}.", *found, sep="\n- ")


def _range(numbers: Sequence[int]) -> str:
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


def print_sampling() -> None:
    print("| kernel | registers | shared memory | bytes spilled | programs at a time |")
    print("|---|---|---|---|---|")
    for each in compiled([(CASES[name], 90) for name in SAMPLING]):
        result = each.result
        shared = f"{result['shared'] / 1024:.0f} KiB"
        row = (each.case.name, result["registers"], shared, result["spilled"], each.programs)
        print("|", " | ".join(map(str, row)), "|")


def print_plans(kernels: Mapping[Variant, Compiled]) -> None:
    from arbora.kernels.attention import cuda
    from arbora.kernels.attention.batch import AttentionBatch
    from arbora.kernels.attention.cuda_tiles import Tiles

    shape = cuda.Shape(HEADS, KV_HEADS, HEAD_DIM, FULL_REACH)
    device = torch.device("cpu")

    def line(name: str, queries: list[int], lengths: list[int]) -> None:
        tables = [np.arange(-(-length // PAGE_SIZE), dtype=np.int32) for length in lengths]
        batch = AttentionBatch.build(queries, lengths, tables, PAGE_SIZE, device, ())
        tiles = Tiles.choose(max(queries) * shape.repeat, shape.repeat, HEAD_DIM, 2)
        kind = {16: "decode", 64: "group", 128: "chunk"}[tiles.queries]
        plan = cuda.plan_rows(batch, np.ones(len(queries), np.bool_), (), shape, tiles, device)
        together = kernels[shown(None, kind, 90)].programs * H200.processors
        programs = len(plan.items) * KV_HEADS
        seen = sum(n * (end - n) + n * (n + 1) // 2 for n, end in zip(queries, lengths, strict=True))
        copied = 2 * 2 * KV_HEADS * HEAD_DIM * sum(lengths)
        written = 2 * 4 * plan.partials * HEADS * (HEAD_DIM + 1)  # and read again by the merge
        floor = max(copied / H200.bandwidth, 4 * HEADS * HEAD_DIM * seen / H200.matrix_rate)
        turns, merging = programs / together, written / H200.bandwidth * 1e6
        print(f"| {name} | {kind} | {programs} | {turns:.2f} | {floor * 1e6:.1f} | {merging:.1f} |")

    print("| step | tiles | programs | turns | floor, µs | partial results, µs |")
    print("|---|---|---|---|---|---|")
    with mock.patch.object(cuda, "processors", lambda device: H200.processors):
        for context in (1024, 8192, 32768):
            for rows in (1, 8, 64, 256):
                line(f"{rows} rows in decode, {context:,} tokens", [1] * rows, [context] * rows)
            for tokens in (4, 100, 512):
                line(f"{tokens} tokens after {context:,}", [tokens], [context + tokens])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="every variant and case")
    if parser.parse_args().all:
        print_all()
        return
    chosen = [shown(stored, kind, gpu) for stored, kind in SHAPES for gpu in TARGETS]
    results = compiled([(attention_case(variant), variant.architecture) for variant in chosen])
    kernels = dict(zip(chosen, results, strict=True))
    print_kernels(kernels)
    print()
    print_plans(kernels)
    print()
    print_loops(kernels)
    print()
    print_sampling()


if __name__ == "__main__":
    main()
