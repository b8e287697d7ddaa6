"""Time of each CPU kernel at the shapes of a 0.6B Qwen3 in bfloat16, beside the machine's limit.

Run: PYTHONSAFEPATH=1 python bench/kernels.py [--threads 2] [attention | linear | quantized | elementwise …]
Every figure is the best of many runs. The floor is the larger of the bytes that must be read at the bandwidth
measured here and the arithmetic at the rate of a large bfloat16 product. Working sets exceed the caches.
`kv_dtype` runs attention over bfloat16 and int8 caches in turns, and prints the ratios of their times. `tree`
does so for rows that share keys, read with and without groups, and `libraries` for our products and those of
PyTorch and oneDNN.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from arbora.kernels.activation import silu_and_mul
from arbora.kernels.attention import AttentionBatch, paged_attention
from arbora.kernels.linear import Fp8Packer, Fp8Shape, Linear, QuantizedPacker, QuantizedShape
from arbora.kernels.norm import add_rms_norm, rms_norm
from arbora.kernels.pages import copy_pages
from arbora.kernels.pages.cells import CellFormat
from arbora.kernels.rotary import HeadNorms, rotary_write_kv
from arbora.runtime.model.kv_pool import SEGMENT_TOKENS, segment_pages

sys.path.append(str(Path(__file__).parent / "lib"))
import library_products

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 1024, 3072, 16, 8, 128, 16
WORKING_SET = 400_000_000  # bytes of KV or weights that a case cycles through, more than a core's caches hold
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    name: str
    turn: Callable[[int], object]
    """one run; the number picks which of several copies of the data it reads"""
    read: int = 0
    """bytes"""
    flops: int = 0


def best_seconds(turn: Callable[[int], object], budget: float = 1.5) -> float:
    turn(0)
    best, runs, deadline = float("inf"), 0, time.perf_counter() + budget
    while time.perf_counter() < deadline or runs < 5:
        start = time.perf_counter()
        turn(runs)
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best


def cache(pages: int, kv_heads: int, head_dim: int, cells: CellFormat) -> torch.Tensor:
    """A layer's cache as a server arranges it, with random contents."""
    page_bytes = 2 * kv_heads * PAGE_SIZE * cells.bytes(head_dim)
    in_segment = segment_pages(page_bytes, PAGE_SIZE, pages, SEGMENT_TOKENS)
    shape = (-(-pages // in_segment), 2, kv_heads, in_segment * PAGE_SIZE, head_dim)
    return cells.encode(torch.randn(shape)).permute(1, 2, 0, 3, 4)


def attention_case(
    name: str,
    queries: list[int],
    lengths: list[int],
    groups: tuple[tuple[int, int, int], ...] = (),
    scattered: bool = False,
    shape: tuple[int, int, int] = (HEADS, KV_HEADS, HEAD_DIM),
    stored: torch.dtype = torch.bfloat16,
    shared: tuple[tuple[int, int, int], ...] | None = None,
) -> Case:
    """shared: (first row, rows, keys) of rows with the same pages, also decode rows that are in no group"""
    heads, kv_heads, head_dim = shape
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    ids = np.random.default_rng(0).permutation(sum(counts)) if scattered else np.arange(sum(counts))
    tables = [part.astype(np.int32) for part in np.split(ids, np.cumsum(counts)[:-1])]
    for first, count, keys in groups if shared is None else shared:
        for row in range(first + 1, first + count):
            tables[row][: keys // PAGE_SIZE] = tables[first][: keys // PAGE_SIZE]
    used, ids = np.unique(np.concatenate(tables), return_inverse=True)
    tables = [part.astype(np.int32) for part in np.split(ids, np.cumsum(counts)[:-1])]
    unused = PAGE_SIZE * sum(counts) - sum(lengths)  # at the ends of rows
    cells = CellFormat(stored)
    token_bytes = 2 * kv_heads * cells.bytes(head_dim)
    layer = len(used) * PAGE_SIZE * token_bytes
    layers = [
        cache(len(used), kv_heads, head_dim, cells) for _ in range(max(1, min(28, WORKING_SET // layer)))
    ]
    q = torch.randn(sum(queries), heads, head_dim).bfloat16()
    batch = AttentionBatch.build(queries, lengths, tables, PAGE_SIZE, CPU, groups)
    pairs = sum(n * length - n * (n - 1) // 2 for n, length in zip(queries, lengths, strict=True))
    return Case(
        f"attention, {name}" + (", int8" if stored == torch.int8 else ""),
        lambda turn: paged_attention(q, layers[turn % len(layers)], batch, head_dim**-0.5),
        read=(len(used) * PAGE_SIZE - unused) * token_bytes,
        flops=4 * heads * head_dim * pairs,
    )


def attention_cases() -> Iterator[Case]:
    yield attention_case("1 row x 500", [1], [500])
    yield attention_case("1 row x 2500", [1], [2500])
    yield attention_case("4 rows x 2048", [1] * 4, [2048] * 4)
    yield attention_case("4 rows x 2048, scattered pages", [1] * 4, [2048] * 4, scattered=True)
    yield attention_case("8 rows x 500", [1] * 8, [500] * 8)
    yield attention_case("4 rows x 2100 of which 2048 shared", [1] * 4, [2100] * 4, ((0, 4, 2048),))
    yield attention_case("8 rows x 2100 of which 2048 shared", [1] * 8, [2100] * 8, ((0, 8, 2048),))
    yield attention_case("200 rows x 200, 4/2 heads of 64", [1] * 200, [200] * 200, shape=(4, 2, 64))
    for chunk, prefix in ((64, 0), (64, 500), (256, 0), (256, 2048), (1024, 0), (1024, 2048)):
        yield attention_case(f"chunk of {chunk} after {prefix}", [chunk], [prefix + chunk])


def kv_dtype_cases() -> Iterator[tuple[Case, Case]]:
    """Pairs of a case in bfloat16 and the same in int8."""
    shared = ((0, 8, 2048),)
    steps: list[tuple[str, list[int], list[int], tuple[tuple[int, int, int], ...], bool]] = [
        ("1 row x 2500", [1], [2500], (), False),
        ("4 rows x 2048", [1] * 4, [2048] * 4, (), False),
        ("4 rows x 2048, scattered pages", [1] * 4, [2048] * 4, (), True),
        ("8 rows x 500", [1] * 8, [500] * 8, (), False),
        ("8 rows x 2100 of which 2048 shared", [1] * 8, [2100] * 8, shared, False),
    ]
    for chunk, prefix in ((64, 500), (256, 2048), (1024, 2048)):
        steps.append((f"chunk of {chunk} after {prefix}", [chunk], [prefix + chunk], (), False))
    for step in steps:
        yield attention_case(*step), attention_case(*step, stored=torch.int8)


def tree_cases() -> Iterator[list[Case]]:
    """Yields cases to compare: one step with different groups, or steps that show what sharing saves."""
    system, documents = (0, 64, 1024), tuple((first, 8, 2048) for first in range(0, 64, 8))
    tree = {"no group": (), "system prompt": (system,), "documents": documents, "both": (system, *documents)}
    yield [
        attention_case(
            f"64 rows x 2304 in 8 documents: {name}", [1] * 64, [2304] * 64, groups, shared=tree["both"]
        )
        for name, groups in tree.items()
    ]
    system, documents = (0, 16, 512), tuple((first, 2, 1536) for first in range(0, 16, 2))
    tree = {"no group": (), "system prompt": (system,), "documents": documents, "both": (system, *documents)}
    yield [
        attention_case(
            f"16 rows x 1600 in 8 documents: {name}", [1] * 16, [1600] * 16, groups, shared=tree["both"]
        )
        for name, groups in tree.items()
    ]
    for rows in (2, 4, 8):
        document = ((0, rows, 2000),)
        yield [
            attention_case(
                f"{rows} rows x 2100 in a document: {name}",
                [1] * rows,
                [2100] * rows,
                groups,
                shared=document,
            )
            for name, groups in {"no group": (), "a group": document}.items()
        ]
    for rows, tokens in ((2, 4), (2, 8), (5, 8), (2, 16), (5, 16), (2, 35), (5, 35), (2, 64), (2, 256)):
        yield chunk_cases(0, [tokens] * rows)
    for decode_rows in (1, 2, 3, 7):
        for chunks in ([2], [4], [4, 4], [8], [16], [64]):
            yield chunk_cases(decode_rows, chunks)


def chunk_cases(decode_rows: int, chunks: list[int]) -> list[Case]:
    """A step of decode rows and chunks after the same 2,000 tokens, the chunks without a group and in it."""
    queries = [1] * decode_rows + chunks
    document, apart = ((0, len(queries), 2000),), ((0, decode_rows, 2000),)
    tree = {"chunks apart": apart if decode_rows > 1 else (), "one group": document}
    return [
        attention_case(
            f"{decode_rows} rows, chunks of {chunks}: {name}",
            queries,
            [2000 + tokens for tokens in queries],
            groups,
            shared=document,
        )
        for name, groups in tree.items()
    ]


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


def filled_packer(outputs: int, inputs: int, bits: int, group: int, zero: int | None) -> QuantizedPacker:
    packer = QuantizedPacker(QuantizedShape(outputs, inputs, bits, group, zero))
    codes = torch.randint(0, 1 << bits, (outputs, inputs), dtype=torch.uint8)
    scales = torch.rand(outputs, inputs // group)
    packer.write(0, codes, scales, -8 * scales if zero is None else None)
    return packer


def filled_fp8_packer(outputs: int, inputs: int, group: int) -> Fp8Packer:
    shape = Fp8Shape(outputs, inputs, group)
    packer = Fp8Packer(shape)
    packer.write(0, torch.randn(outputs, inputs).to(torch.float8_e4m3fn), torch.rand(outputs, shape.groups))
    return packer


def quantized_cases() -> Iterator[Case]:
    """The bfloat16 product of each shape, then the quantized ones."""
    for name, (outputs, inputs) in PRODUCT_SHAPES.items():
        plain = torch.randn(outputs, inputs).bfloat16()
        copies = max(1, WORKING_SET // plain.nbytes)
        formats = {"bfloat16": ([Linear.pack(plain, None) for _ in range(copies)], plain.nbytes)}
        packers: dict[str, QuantizedPacker | Fp8Packer] = {
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
SETS = {"tree": tree_cases, "libraries": library_cases}
"""groups whose cases are compared with the first of each set"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        default=list(GROUPS),
        help=f"of {', '.join(GROUPS)} (default: these), kv_dtype, tree and libraries",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if unknown := {*options.groups} - {*GROUPS, *SETS, "kv_dtype"}:
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
