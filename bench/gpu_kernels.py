"""Time of the hot kernels on a GPU, beside the time that their bytes or products take.

    PYTHONSAFEPATH=1 python bench/gpu_kernels.py

Each figure is the median of many runs of a CUDA graph, before each of which the second-level cache is
overwritten. The bandwidth is that of a large copy on the same GPU, the rate of products that of a large
matrix product in bfloat16. Pages are saved and restored without a graph; there the bandwidth is that of a
large copy to pinned memory and from there. `--only TEXT` runs the cases whose names contain a text.
`--interpreted` runs each kernel once at a small shape in Triton's interpreter, without a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from arbora.kernels.linear.coded_product_cuda import CodedCudaProduct

Path = Literal["device", "save", "restore"]


class Case(NamedTuple):
    name: str
    run: Callable[[], Any]
    bytes: int
    path: Path = "device"
    """the bandwidth that bounds it"""
    flops: int = 0
    """of its products"""


def sampling_cases(rows: int, vocab: int, device: torch.device) -> Iterator[Case]:
    from arbora.kernels.sampling import SamplingBatch, TokenMask, cuda

    logits = (4 * torch.randn(rows, vocab, device=device)).bfloat16()
    words = -(-vocab // 32)
    index = torch.arange(rows, dtype=torch.int32, device=device)
    mask = TokenMask(index, torch.full((rows, words), -2, dtype=torch.int32, device=device))
    temperature, seed = torch.ones(rows, device=device), torch.arange(rows, device=device)
    filters: dict[str, dict[str, Any]] = {
        "no filter": {},
        "top-p 0.9": {"top_p": torch.full((rows,), 0.9, device=device)},
        "top-k 50": {"top_k": torch.full((rows,), 50, dtype=torch.int32, device=device)},
    }
    for name, values in filters.items():
        batch = SamplingBatch(temperature, seed, index, mask=mask, **values)
        read = 2 * logits.nbytes + mask.bits.nbytes
        yield Case(
            f"sampling, {rows} x {vocab}, mask, {name}",
            lambda batch=batch: cuda.sample(logits, batch, None),  # type: ignore[misc]
            read,
        )


def attention_case(
    name: str,
    rows: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
    queries: int = 1,
    shared: int = 0,
    as_group: bool = False,
) -> Case:
    """Attention of a layer of an 8B shape: `rows` of `length` tokens, the last `queries` of them new.

    shared: tokens at the beginning that all rows have in the same pages. The floor counts them once.
    """
    from arbora.kernels.attention import AttentionBatch, cuda

    heads, kv_heads, head_dim, page = 32, 8, 128, 16
    common, own = shared // page, -(-length // page) - shared // page
    kv = torch.randn(2, kv_heads, common + rows * own, page, head_dim, device=device, dtype=dtype)
    q = torch.randn(rows * queries, heads, head_dim, device=device, dtype=dtype)
    prefix = np.arange(common, dtype=np.int32)
    tables = [
        np.concatenate([prefix, np.arange(own, dtype=np.int32) + common + own * row]) for row in range(rows)
    ]
    groups = [(0, rows, shared)] if as_group else []
    batch = AttentionBatch.build([queries] * rows, [length] * rows, tables, page, device, groups)
    cells = 2 * kv_heads * head_dim * kv.element_size()
    pairs = rows * sum(range(length - queries + 1, length + 1))
    return Case(
        name,
        lambda: cuda.paged_attention(q, kv, batch, head_dim**-0.5),
        cells * (shared + rows * (length - shared)),
        flops=4 * heads * head_dim * pairs if queries > 1 else 0,
    )


def attention_cases(dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    for rows, length in ((1, 1024), (1, 8192), (1, 32768), (8, 1024), (8, 8192), (64, 1024), (64, 8192)):
        yield attention_case(f"decode attention, {rows} x {length}", rows, length, dtype, device)
    for queries, length in ((8192, 8192), (2048, 8192), (512, 8192), (100, 8292), (4, 8196)):
        name = f"{queries} tokens behind {length - queries}"
        yield attention_case(name, 1, length, dtype, device, queries)
    for rows, own in ((2, 128), (8, 128), (64, 128), (64, 1024)):
        for as_group in (False, True):
            name = f"{rows} rows share 8192 of {8192 + own}, {'a group' if as_group else 'plain'}"
            yield attention_case(name, rows, 8192 + own, dtype, device, 1, 8192, as_group)


def product_cases(
    shapes: Sequence[tuple[int, int]], dtype: torch.dtype, device: torch.device
) -> Iterator[Case]:
    """Products of few rows: by cuBLAS, by each tile of our kernel, and with quantized weights.

    shapes: inputs and outputs
    """
    from arbora.kernels.linear.float_cuda import FloatCudaProduct

    for inputs, outputs in shapes:
        plain = FloatCudaProduct(torch.randn(outputs, inputs, device=device, dtype=dtype), None)
        coded = {f"{bits or 8} bits": random_codes(bits, inputs, outputs, device) for bits in (4, 8)}
        coded["FP8"] = random_codes(None, inputs, outputs, device)
        for rows in (1, 4):
            x = torch.randn(rows, inputs, device=device, dtype=dtype)
            name = f"{rows} x {inputs} to {outputs}"
            for tiling in (None, *plain.tiles()):
                by = "cuBLAS" if tiling is None else f"tiles of {tiling.outputs}"
                yield Case(f"{name}, {by}", partial(plain.multiply, x, tiling), plain.weight.nbytes)
            for kind, product in coded.items():
                yield Case(f"{name}, {kind}", partial(product, x), product.nbytes)


def many_row_cases(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> Iterator[Case]:
    """Products of many rows: by cuBLAS, and with weights of 8 bits, expanded or multiplied as bytes."""
    x = torch.randn(rows, inputs, device=device, dtype=dtype)
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
    name, flops = f"{rows} x {inputs} to {outputs}", 2 * rows * inputs * outputs
    yield Case(f"{name}, cuBLAS", partial(torch.nn.functional.linear, x, weight), weight.nbytes, flops=flops)
    for kind, bits in (("8 bits", 8), ("FP8", None)):
        for how, may_round in (("expanded", False), ("as bytes", True)):
            product = random_codes(bits, inputs, outputs, device, may_round)
            yield Case(f"{name}, {kind} {how}", partial(product, x), product.nbytes, flops=flops)


def random_codes(
    bits: int | None, inputs: int, outputs: int, device: torch.device, may_round: bool = False
) -> CodedCudaProduct:
    """bits: None for FP8"""
    from arbora.kernels.linear import CodedShape
    from arbora.kernels.linear.coded_product_cuda import CodedCudaPacker

    zero = 0 if bits is None else 1 << (bits - 1)
    packer = CodedCudaPacker(CodedShape(outputs, inputs, bits, 128, zero), device=device)
    codes = torch.randint(0, 1 << (bits or 6), (outputs, inputs), dtype=torch.uint8)
    scales = torch.rand(outputs, -(-inputs // 128))
    packer.write(0, codes if bits is not None else codes.view(torch.float8_e4m3fn), scales)
    return packer.product(None, may_round)


def page_cases(pages: int, layers: int, page_words: int, device: torch.device) -> Iterator[Case]:
    from arbora.kernels.pages.cuda import CudaMoves

    kvs = [torch.zeros(2, 8, pages, 1, page_words, device=device) for _ in range(layers)]
    memory = torch.zeros(pages, layers, 16, page_words, pin_memory=device.type == "cuda")
    moves = CudaMoves(kvs, range(pages), memory, range(pages))
    yield Case(f"{pages} pages to host memory", moves.save, memory.nbytes, "save")
    yield Case(f"{pages} pages from host memory", lambda: moves.load(range(layers)), memory.nbytes, "restore")


def cases(device: torch.device) -> Iterator[Case]:
    if device.type == "cpu":
        yield from sampling_cases(2, 5000, device)
        yield attention_case("decode attention, 1 x 40", 1, 40, torch.float32, device)
        yield from product_cases([(256, 40)], torch.float16, device)
        yield from many_row_cases(257, 256, 40, torch.float16, device)
        yield from page_cases(2, 2, 64, device)
        return
    yield from sampling_cases(64, 128_256, device)
    yield from attention_cases(torch.bfloat16, device)
    yield from product_cases([(4096, 6144), (4096, 24576), (12288, 4096)], torch.bfloat16, device)
    for rows in (512, 8192):
        yield from many_row_cases(rows, 4096, 24576, torch.bfloat16, device)
    yield from page_cases(32, 36, 1024, device)  # 512 tokens of an 8B shape in bfloat16


def time_on_gpu(device: torch.device, only: str) -> None:
    from arbora.runtime.model.capture import CudaCapture
    from triton.testing import do_bench

    large = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    part = large[: 1 << 28]
    square = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    rate = 2 * 8192**3 / (do_bench(lambda: square @ square) * 1e-3)
    bandwidths: dict[Path, float] = {
        "device": large.nbytes / (do_bench(lambda: large[: 1 << 29].copy_(large[1 << 29 :])) * 1e-3),
        "save": part.nbytes / (do_bench(lambda: pinned.copy_(part, non_blocking=True)) * 1e-3),
        "restore": part.nbytes / (do_bench(lambda: part.copy_(pinned, non_blocking=True)) * 1e-3),
    }
    print(f"{torch.cuda.get_device_name()}: GB/s of a copy:")
    print(", ".join(f"{path} {bandwidth / 1e9:.1f}" for path, bandwidth in bandwidths.items()))
    print(f"TFLOP/s of a product: {rate / 1e12:.0f}")
    print(f"{'':48}{'us':>10}{'floor':>10}{'of floor':>10}")
    for case in cases(device):
        if only not in case.name:
            continue
        run = case.run if case.path != "device" else CudaCapture()(case.run)
        seconds = do_bench(run, return_mode="median") * 1e-3
        floor = max(case.bytes / bandwidths[case.path], case.flops / rate)
        print(f"{case.name:48}{seconds * 1e6:10.1f}{floor * 1e6:10.1f}{seconds / floor:10.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interpreted", action="store_true", help="without a GPU, and without times")
    parser.add_argument("--only", default="", metavar="TEXT")
    options = parser.parse_args()
    if not options.interpreted:
        if not torch.cuda.is_available():
            sys.exit(f"no CUDA device: PyTorch {torch.__version__} finds none")
        time_on_gpu(torch.device("cuda"), options.only)
        return
    os.environ["TRITON_INTERPRET"] = "1"
    for case in cases(torch.device("cpu")):
        case.run()
        print(f"{case.name}: ran")


if __name__ == "__main__":
    main()
