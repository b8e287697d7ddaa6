"""Time of each CPU kernel at the shapes of a 0.6B Qwen3 in bfloat16, beside the machine's limit.

Run: PYTHONSAFEPATH=1 python bench/kernels.py [--threads 2] [attention | linear | quantized | elementwise …]
Every figure is the best of many runs. The floor is the larger of the bytes that must be read at the bandwidth
measured here and the arithmetic at the rate of a large bfloat16 product. Working sets exceed the caches.
`kv_dtype` runs attention over bfloat16 and int8 caches in turns, and prints the ratios of their times. `tree`
does so for rows that share keys, read with and without groups, `flash` for our attention without tiles and
PyTorch's, and `libraries` for our products and those of PyTorch and oneDNN. `products` measures the rate of
the multiply instructions, and which share of it, or of the bandwidth, the products of each format reach.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from arbora.kernels.elementwise import add_rms_norm, rms_norm, silu_and_mul
from arbora.kernels.linear import CodedShape, Linear
from arbora.kernels.linear.fp8 import Fp8CpuPacker
from arbora.kernels.linear.integer import IntegerCpuPacker
from arbora.kernels.pages import copy_pages
from arbora.kernels.pages.cells import CellFormat
from arbora.kernels.rotary import HeadNorms, rotary_write_kv
from arbora.runtime.system_cores import count_usable_cores

sys.path.append(str(Path(__file__).parent / "lib"))
import library_products
from attention_steps import attention_cases, cache, flash_cases, kv_dtype_cases, tree_cases
from kernel_case import HEAD_DIM, HEADS, KV_HEADS, PAGE_SIZE, WORKING_SET, Case
from product_limits import ROWS, product_table
from reports import table

HIDDEN, INTERMEDIATE = 1024, 3072


def best_seconds(turn: Callable[[int], object], budget: float = 1.5) -> float:
    turn(0)
    best, runs, deadline = float("inf"), 0, time.perf_counter() + budget
    while time.perf_counter() < deadline or runs < 5:
        start = time.perf_counter()
        turn(runs)
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best


def print_in_turns(cases: list[Case], bandwidth: float, arithmetic: float) -> None:
    taken = in_turns(cases)
    for case, seconds in zip(cases, taken, strict=True):
        floor = max(case.read / bandwidth, case.flops / arithmetic)
        ratio = np.median(seconds / taken[0])
        print(f"{case.name:60}{seconds.min() * 1e6:10.1f}{floor * 1e6:10.1f}{ratio:9.3f}", flush=True)


def in_turns(cases: Sequence[Case], budget: float = 3.0) -> np.ndarray:
    """Seconds of each run, [cases, runs]."""
    rounds: list[list[float]] = []
    deadline = time.perf_counter() + budget
    while time.perf_counter() < deadline or len(rounds) < 5:
        taken = []
        for number, case in enumerate(cases):
            start = time.perf_counter()
            case.turn(len(rounds) * len(cases) + number)
            taken.append(time.perf_counter() - start)
        rounds.append(taken)
    return np.array(rounds[1:]).T


def compare(pairs: Iterator[tuple[Case, Case]]) -> None:
    print(f"{'bfloat16 and int8 in turns':48}{'us':>10}{'us int8':>10}{'best':>9}{'median':>9}{'bytes':>8}")
    for pair in pairs:
        one, two = in_turns(pair)
        times = f"{one.min() * 1e6:10.1f}{two.min() * 1e6:10.1f}"
        ratios = f"{two.min() / one.min():9.3f}{np.median(two / one):9.3f}{pair[1].read / pair[0].read:8.3f}"
        print(f"{pair[0].name:48}{times}{ratios}", flush=True)


def linear_cases() -> Iterator[Case]:
    outputs = {"qkv": (HIDDEN, 4096), "gate_up": (HIDDEN, 2 * INTERMEDIATE), "down": (INTERMEDIATE, HIDDEN)}
    for name, (inputs, width) in outputs.items():
        copies = WORKING_SET // (inputs * width * 2)
        weights = [Linear.pack(torch.randn(width, inputs).bfloat16(), None) for _ in range(copies)]
        for rows in (1, 4, 16, 256):
            x = torch.randn(rows, inputs).bfloat16()
            yield Case(
                f"linear, {name}, {rows} rows",
                lambda turn, x=x, weights=weights: weights[turn % len(weights)](x),  # type: ignore[misc]
                read=inputs * width * 2,
                flops=2 * rows * inputs * width,
            )


PRODUCT_SHAPES = {
    "qkv": (4096, HIDDEN),
    "o": (HIDDEN, 2048),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
    "head": (32_000, HIDDEN),
}
"""outputs and inputs"""
FORMATS = {
    "int8": (8, 0, 128),
    "int4 by 128": (4, 128, 8),
    "int4 by 32": (4, 32, 8),
    "int4 by 32, offsets": (4, 32, None),
}
"""bits, inputs of a group (0: all) and zero"""
FP8_GROUPS = {"fp8": 0, "fp8 by 128": 128}
"""inputs of a group (0: all)"""


def filled_packer(outputs: int, inputs: int, bits: int, group: int, zero: int | None) -> IntegerCpuPacker:
    packer = IntegerCpuPacker(CodedShape(outputs, inputs, bits, group, zero))
    codes = torch.randint(0, 1 << bits, (outputs, inputs), dtype=torch.uint8)
    scales = torch.rand(outputs, inputs // group)
    packer.write(0, codes, scales, -8 * scales if zero is None else None)
    return packer


def filled_fp8_packer(outputs: int, inputs: int, group: int) -> Fp8CpuPacker:
    shape = CodedShape(outputs, inputs, None, group, 0)
    packer = Fp8CpuPacker(shape)
    packer.write(0, torch.randn(outputs, inputs).to(torch.float8_e4m3fn), torch.rand(outputs, shape.groups))
    return packer


def quantized_cases() -> Iterator[Case]:
    """The bfloat16 product of each shape, then the quantized ones."""
    for name, (outputs, inputs) in PRODUCT_SHAPES.items():
        plain = torch.randn(outputs, inputs).bfloat16()
        copies = max(1, WORKING_SET // plain.nbytes)
        formats = {"bfloat16": ([Linear.pack(plain, None) for _ in range(copies)], plain.nbytes)}
        packers: dict[str, IntegerCpuPacker | Fp8CpuPacker] = {
            label: filled_packer(outputs, inputs, bits, group or inputs, zero)
            for label, (bits, group, zero) in FORMATS.items()
        }
        for label, group in FP8_GROUPS.items():
            packers[label] = filled_fp8_packer(outputs, inputs, group or inputs)
        for label, packer in packers.items():
            read = packer.product(None).nbytes
            copies = max(1, WORKING_SET // read)
            formats[label] = (
                [Linear.quantized(copy.deepcopy(packer).product(None)) for _ in range(copies)],
                read,
            )
        for rows in (1, 8, 16, 64, 256):
            x = torch.randn(rows, inputs).bfloat16()
            for label, (weights, read) in formats.items():
                yield Case(
                    f"{name}, {label}, {rows} rows",
                    lambda turn, x=x, weights=weights: weights[turn % len(weights)](x),  # type: ignore[misc]
                    read=read,
                    flops=2 * rows * outputs * inputs,
                )


def library_cases() -> Iterator[list[Case]]:
    """Our product of each shape, then those of libraries with the same kind of weight."""
    kinds: dict[str, dict[str, Callable[[int, int], Callable[[torch.Tensor], object]]]] = {
        "bfloat16": {
            "ours": lambda outputs, inputs: Linear.pack(torch.randn(outputs, inputs).bfloat16(), None),
            "oneDNN": library_products.onednn_bfloat16,
        },
        "int8": {
            "ours": lambda outputs, inputs: filled_packer(outputs, inputs, 8, inputs, 128).product(None),
            "oneDNN": library_products.onednn_int8,
            "PyTorch": library_products.pytorch_int8,
        },
        "int4 by 32": {
            "ours": lambda outputs, inputs: filled_packer(outputs, inputs, 4, 32, 8).product(None),
            "PyTorch": lambda outputs, inputs: library_products.pytorch_int4(outputs, inputs, 32),
        },
    }
    for name, (outputs, inputs) in PRODUCT_SHAPES.items():
        for kind, makers in kinds.items():
            copies = max(1, WORKING_SET // (2 * outputs * inputs))
            products = {by: [make(outputs, inputs) for _ in range(copies)] for by, make in makers.items()}
            for rows in (1, 4, 16, 64, 256):
                x = torch.randn(rows, inputs).bfloat16()
                yield [
                    Case(
                        f"{name}, {kind}, {rows} rows: {by}",
                        lambda turn, x=x, weights=weights: weights[turn % len(weights)](x),  # type: ignore[misc]
                        flops=2 * rows * outputs * inputs,
                    )
                    for by, weights in products.items()
                ]


def elementwise_cases() -> Iterator[Case]:
    weight = torch.rand(HIDDEN).bfloat16()
    norms = HeadNorms(torch.rand(HEAD_DIM).bfloat16(), torch.rand(HEAD_DIM).bfloat16(), 1e-6)
    cos_sin = torch.randn(4096, HEAD_DIM)
    kv = cache(64, KV_HEADS, HEAD_DIM, CellFormat(torch.bfloat16))
    for rows in (1, 8, 512):
        x, residual = torch.randn(2, rows, HIDDEN).bfloat16()
        gate_up = torch.randn(rows, 2 * INTERMEDIATE).bfloat16()
        qkv = torch.randn(rows, HEADS + 2 * KV_HEADS, HEAD_DIM).bfloat16()
        q, k, v = torch.split(qkv, [HEADS, KV_HEADS, KV_HEADS], dim=1)
        at = torch.arange(rows)
        turns: dict[str, tuple[Callable[[], object], int]] = {
            "rms_norm": (lambda x=x: rms_norm(x, weight, 1e-6), 2 * x.numel()),  # type: ignore[misc]
            "add_rms_norm": (
                lambda x=x, residual=residual: add_rms_norm(x, residual, weight, 1e-6),  # type: ignore[misc]
                4 * x.numel(),
            ),
            "rotary_write_kv": (
                lambda q=q, k=k, v=v, at=at: rotary_write_kv(q, k, v, cos_sin, at, at, kv, norms),  # type: ignore[misc]
                2 * qkv.numel(),
            ),
            "silu_and_mul": (lambda g=gate_up: silu_and_mul(g), 2 * gate_up.numel()),  # type: ignore[misc]
        }
        for name, (run, read) in turns.items():
            yield Case(f"{name}, {rows} rows", lambda turn, run=run: run(), read=read)  # type: ignore[misc]
    kvs = [kv.clone() for _ in range(28)]
    page = 28 * 2 * KV_HEADS * PAGE_SIZE * HEAD_DIM * 2
    yield Case(
        "copy_pages, 1 page, 28 layers",
        lambda turn: copy_pages(kvs, PAGE_SIZE, [1], [2 + turn % 60]),
        read=page,
    )


GROUPS = {
    "attention": attention_cases,
    "linear": linear_cases,
    "quantized": quantized_cases,
    "elementwise": elementwise_cases,
}
SETS = {"tree": tree_cases, "flash": flash_cases, "libraries": library_cases}
"""groups whose cases are compared with the first of each set"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        default=list(GROUPS),
        help=f"of {', '.join(GROUPS)} (default: these), kv_dtype, tree, flash, libraries and products",
    )
    parser.add_argument("--threads", type=int, default=count_usable_cores())
    options = parser.parse_args()
    if unknown := {*options.groups} - {*GROUPS, *SETS, "kv_dtype", "products"}:
        parser.error(f"no group {', '.join(unknown)}")
    torch.set_num_threads(options.threads)
    numbers, matrix = torch.ones(64_000_000), torch.randn(2048, 2048).bfloat16()
    product = Linear.pack(matrix, None)
    bandwidth = 4 * numbers.numel() / best_seconds(lambda turn: numbers.sum())
    arithmetic = 2 * 2048**3 / best_seconds(lambda turn: product(matrix))
    print(
        f"{options.threads} threads, {bandwidth / 1e9:.0f} GB/s read, {arithmetic / 1e9:.0f} GFLOP/s bfloat16"
    )
    print(f"{'':48}{'us':>10}{'floor':>10}{'GB/s':>8}{'GFLOP/s':>9}")
    for group in options.groups:
        if group == "kv_dtype":
            compare(kv_dtype_cases())
            continue
        if group == "products":
            head = ["format", "bits", "10⁹ products/s", *(f"{rows} rows" for rows in ROWS)]
            print(table(head, list(product_table(bandwidth, options.threads))))
            continue
        if group in SETS:
            print(f"{'in turns':60}{'us':>10}{'floor':>10}{'median':>9} of the first")
            for cases in SETS[group]():
                print_in_turns(cases, bandwidth, arithmetic)
            continue
        for case in GROUPS[group]():
            seconds = best_seconds(case.turn)
            floor = max(case.read / bandwidth, case.flops / arithmetic)
            rates = f"{case.read / seconds / 1e9:8.1f}{case.flops / seconds / 1e9:9.0f}"
            print(f"{case.name:48}{seconds * 1e6:10.1f}{floor * 1e6:10.1f}{rates}", flush=True)


if __name__ == "__main__":
    main()
