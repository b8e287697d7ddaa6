"""How evenly 4 to 64 threads share the work of models with 0.6 and 8 billion weights, by the kernels' own
functions. The tests need no machine with that many cores, and measure no time."""

from __future__ import annotations

import pytest
import torch
from arbora.kernels.attention import cpu as attention
from arbora.kernels.elementwise.cpu import split_row
from arbora.kernels.linear import fp8_cpu, fp8_tile, half_cpu, half_tile, integer_cpu
from arbora.kernels.linear.byte_dots import TILE
from arbora.kernels.linear.coded_weight import CodedShape
from arbora.kernels.linear.fp8 import Fp8CpuPacker, Fp8CpuProduct
from arbora.kernels.linear.half_cpu import HalfCpuProduct, count_panels, takes_half_strips
from simulated_machine import SimulatedMachine
from taken_pieces import share_of_ideal

THREADS = (4, 8, 16, 32, 64)
OUTPUTS = {
    "0.6B o and down": 1024,
    "0.6B q, k and v": 4096,
    "0.6B gate and up": 6144,
    "vocabulary": 151936,
    "8B o and down": 4096,
    "8B q, k and v": 6144,
    "8B gate and up": 24576,
    "8B gate and up of 14336": 28672,
}
STRIP = {
    "bfloat16": (64, 252),
    "bfloat16 in float32": (32, 96),
    "fp8": (fp8_tile.OUTPUTS, fp8_cpu.PANEL),
}
"""outputs of a strip and rows of a panel by format"""
FEWER = {
    ("integer", 1, "0.6B o and down", 64): 0.5,
    ("bfloat16", 1, "0.6B o and down", 64): 0.5,
    ("fp8", 1, "0.6B o and down", 32): 0.5,
    ("fp8", 1, "0.6B o and down", 64): 0.25,
    ("fp8", 1, "0.6B gate and up", 64): 0.75,
    ("fp8", 1, "8B q, k and v", 64): 0.75,
    ("bfloat16", 128, "0.6B o and down", 64): 0.625,
    ("fp8", 128, "0.6B o and down", 64): 0.625,
}
"""Shares of the ideal below 0.9, by format, rows, product and threads: there are fewer tiles, strips or half
strips than threads."""


def share(name: str, rows: int, outputs: int, threads: int) -> float:
    if name == "integer":
        halves = rows >= integer_cpu.HALVED_ROWS and outputs <= integer_cpu.OUTPUTS_OF_A_ROW * rows
        return share_of_ideal(-(-outputs // TILE) * (2 if halves else 1), threads, in_blocks=not halves)
    of_strip, panel = STRIP[name]
    strips = -(-outputs // of_strip)
    pieces = strips * count_panels(rows, strips, threads, panel)
    if name != "fp8" and rows <= half_tile.MAX_ROWS and takes_half_strips(strips, threads):
        pieces = 2 * strips
    return share_of_ideal(pieces, threads, in_blocks=False)


def test_strips_and_panels_of_bfloat16_have_the_sizes_of_the_table() -> None:
    name = "bfloat16" if half_tile.MULTIPLIES_PAIRS else "bfloat16 in float32"
    assert STRIP[name] == (half_tile.OUTPUTS, half_cpu.PANEL)


@pytest.mark.parametrize("sockets", [1, 2])
@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("name", ["integer", *STRIP])
def test_products_give_all_threads_equal_work(
    machine: SimulatedMachine, name: str, rows: int, sockets: int
) -> None:
    for threads in THREADS:
        machine.has_sockets(sockets, threads // sockets)
        for product, outputs in OUTPUTS.items():
            found = share(name, rows, outputs, threads)
            expected = FEWER.get((name, rows, product, threads))
            assert found == expected if expected else found >= 0.9, (product, threads, found)


def test_some_threads_get_a_little_less_if_their_number_is_no_power_of_two(machine: SimulatedMachine) -> None:
    for threads in (6, 12, 24, 48):
        machine.has_sockets(2, threads // 2)
        for outputs in (4096, 6144, 24576, 151936):
            for name in ("integer", "bfloat16", "bfloat16 in float32"):
                assert share(name, 1, outputs, threads) >= 0.88, (name, outputs, threads)


@pytest.mark.parametrize("threads", THREADS)
def test_one_row_of_a_long_prompt_keeps_all_threads_busy(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 8 KV heads, which share the keys of an item."""
    monkeypatch.setattr(attention, "thread_count", lambda: threads)
    keys = attention._split(False, 8, 1, 2048)
    items = -(-2048 // keys) * 8
    assert items % threads == 0
    assert keys >= (512 if threads <= 16 else 128)


@pytest.mark.parametrize("threads", [1, 2, *THREADS])
@pytest.mark.parametrize("width", [1, 100, 3072, 12288, 14336])
@pytest.mark.parametrize("tokens", [1, 3, 300])
def test_a_row_of_activations_is_divided_among_the_threads(threads: int, width: int, tokens: int) -> None:
    step = split_row(width, tokens, threads)
    assert step % 16 == 0 and 0 < step <= 4096
    pieces = -(-width // step)
    if tokens == 300:
        assert pieces == -(-width // 4096)
    elif width >= 3072:
        assert pieces >= min(width // 512, -(-threads // tokens)) - 1


@pytest.mark.parametrize("threads", [2, 5, 24])
@pytest.mark.parametrize("rows", [1, 6, 60, 130])
def test_the_bits_of_a_result_do_not_depend_on_how_strips_are_divided(rows: int, threads: int) -> None:
    outputs, inputs = 200, 512
    packer = Fp8CpuPacker(CodedShape(outputs, inputs, None, 64, 0))
    packer.write(0, torch.randn(outputs, inputs).to(torch.float8_e4m3fn), torch.rand(outputs, inputs // 64))
    products: list[Fp8CpuProduct | HalfCpuProduct] = [
        packer.product(torch.randn(outputs)),
        HalfCpuProduct(torch.randn(outputs, inputs).bfloat16(), torch.randn(outputs)),
        HalfCpuProduct(torch.randn(outputs, inputs).half(), torch.randn(outputs)),
    ]
    x, before = torch.randn(rows, inputs).bfloat16(), torch.get_num_threads()
    for product in products:
        results = []
        for number in (1, threads):
            torch.set_num_threads(number)
            results.append(product(x))
        assert torch.equal(*results)
    torch.set_num_threads(before)
