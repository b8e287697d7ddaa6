"""Matrix products on the CPU against F.linear."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import product_memory
import pytest
import torch
import torch.nn.functional as F
from arbora.kernels.linear import Linear, half_cpu, pack_strips
from arbora.kernels.linear.half_cpu import PANEL, HalfCpuProduct
from arbora.kernels.linear.half_tile import OUTPUTS
from arbora.kernels.linear.onednn import OneDnnProduct, onednn_multiplies, padded_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from lesser_processor import Lacking, output_without
from sapphire_rapids import output_for_sapphire_rapids

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
PROBE = Path(__file__).parents[1] / "support" / "half_probe.py"
AVX512 = ("avx512", "avx10", "evex512", "amx")
WITHOUT = {"bfloat16 products": "avx512bf16", "AVX-512": AVX512, "fused multiply-adds": (*AVX512, "fma")}
"""beginnings of LLVM's names of features"""
Product = type[OneDnnProduct | HalfCpuProduct]
Products = list[tuple[Product, torch.dtype]]
PRODUCTS: Products = [(OneDnnProduct, dtype) for dtype in TOLERANCE if onednn_multiplies(dtype)]
HALVES = [torch.bfloat16, torch.float16]
PRODUCTS += [(HalfCpuProduct, dtype) for dtype in HALVES]
SERVED = [dtype for dtype in HALVES if half_cpu.serves(dtype)]
"""oneDNN multiplies the others"""


@pytest.mark.parametrize("product, dtype", PRODUCTS)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 16, 17, 37, 64])
@pytest.mark.parametrize("inputs", [83, 96])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_agrees_with_torch(
    rows: int, inputs: int, bias: bool, product: Product, dtype: torch.dtype
) -> None:
    weight = (torch.randn(100, inputs) / 9).to(dtype)
    offset = torch.randn(100).to(dtype) if bias else None
    x = torch.randn(rows, inputs).to(dtype)
    expected = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    got = product(weight, offset)(x)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_a_product_of_three_strips_agrees_with_torch(rows: int, dtype: torch.dtype) -> None:
    """Two threads take half a strip at a time."""
    outputs = 3 * OUTPUTS - 1
    weight, bias, x = (torch.randn(size).to(dtype) for size in ((outputs, 33), (outputs,), (rows, 33)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        got = HalfCpuProduct(weight / 9, bias)(x)
    finally:
        torch.set_num_threads(before)
    expected = F.linear(x.double(), (weight / 9).double(), bias.double())
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@given(
    rows=st.integers(1, 2 * PANEL + 3),
    outputs=st.integers(1, 200),
    inputs=st.integers(1, 700) | st.integers(1, 20).map(lambda number: 32 * number),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(HALVES),
)
@settings(deadline=None, max_examples=100)
def test_a_row_of_a_batch_invariant_product_has_the_same_bits_beside_any_others(
    rows: int, outputs: int, inputs: int, threads: int, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    x = torch.randn(rows, inputs).to(dtype)
    product = Linear.pack(weight, bias, batch_invariant=True)
    alone = torch.cat([product(x[row : row + 1]) for row in range(0, rows, 50)])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together = product(x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together[::50], alone)
    expected = F.linear(x.double(), weight.double(), bias.double())
    bound = 1.5 * TOLERANCE[dtype] * inputs**0.5
    torch.testing.assert_close(together.double(), expected, atol=bound, rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("lacking", WITHOUT.values(), ids=WITHOUT)
def test_code_for_other_processors_agrees_with_float64(lacking: Lacking, dtype: torch.dtype) -> None:
    """The processor may lack them too; then it runs the same code again."""
    got = json.loads(output_without(lacking, [str(PROBE), str(dtype).removeprefix("torch.")]))
    assert not got["pairs"]
    assert got["error"] < 1, got
    assert got["is_invariant"], "the bits of a row depend on other rows"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AMX is a unit of x86")
def test_code_for_processors_with_bfloat16_products_and_amx_uses_them(tmp_path: Path) -> None:
    """On any machine the code is compiled for a processor with both."""
    program = """
from arbora.kernels.linear.half_cpu import multiply_blocks, multiply_strip
from numba import types
multiply_blocks.compile((types.CPointer(types.int64), types.uint8[::1]))
numbers, sums = [types.int64] * 4, types.CPointer(types.float32)
for kinds in ((types.uint32, types.uint16), (types.uint64, types.int16)):
    multiply_strip.compile((types.CPointer(types.int64), *numbers, sums, *kinds))
for function in (multiply_blocks, multiply_strip):
    for signature in function.signatures:
        print(function.inspect_asm(signature))
"""
    assembly = output_for_sapphire_rapids(program, tmp_path)
    for name in (
        "vdpbf16ps",
        "ldtilecfg",
        "tileloadd",
        "tdpbf16ps",
        "tilestored",
        "tilerelease",
        "vcvtneps2bf16",
        "vcvtph2psx",
        "vcvtps2phx",
    ):
        assert re.search(rf"\b{name}\b", assembly), name


@pytest.mark.parametrize("rows", [33, 64, 130])
def test_more_activations_than_fit_into_a_cache_are_multiplied_in_parts(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = HalfCpuProduct(torch.randn(100, 96).bfloat16(), torch.randn(100).bfloat16())
    x = torch.randn(rows, 96).bfloat16()
    whole = product(x)
    monkeypatch.setattr("arbora.kernels.linear.half_cpu.AMX_ACTIVATIONS", 96 * 2 * 40)
    assert torch.equal(product(x), whole)


@pytest.mark.parametrize("dtype", SERVED)
@pytest.mark.parametrize("sizes", [[128, 64, 64], [64, 100], [70, 30, 1]])
@pytest.mark.parametrize("inputs", [96, 33])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_weight_in_parts_is_packed_like_the_whole_one(
    sizes: list[int], inputs: int, shift: int, dtype: torch.dtype
) -> None:
    """shift: elements, as tensors in a file may begin at any of its even addresses"""
    memory = torch.randn(sum(sizes) * inputs + 1).to(dtype)
    weight, bias = memory[shift : shift + sum(sizes) * inputs].view(-1, inputs), torch.randn(sum(sizes))
    x = torch.randn(5, inputs).to(dtype)
    whole = Linear.pack(weight.clone(), bias.to(dtype))
    parts = Linear.of_strips(pack_strips(torch.split(weight, sizes)), bias.to(dtype))
    assert (parts.out_features, parts.in_features) == (whole.out_features, whole.in_features)
    assert torch.equal(parts(x), whole(x))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_streamed_weight_is_packed_in_parts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(500, 33).to(dtype)
    whole = HalfCpuProduct(weight, None)
    monkeypatch.setattr("arbora.kernels.linear.half_cpu.PACKED_ELEMENTS", 1)
    parts = HalfCpuProduct(weight, None)
    assert torch.equal(whole._weight, parts._weight)


@pytest.mark.parametrize("outputs, inputs", [(1, 1), (200, 96), (130, 33)])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", SERVED)
def test_rows_of_a_streamed_weight_are_those_of_its_source(
    outputs: int, inputs: int, id_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    weight = torch.randn(outputs, inputs).to(dtype)
    read = Linear.pack(weight, None).stored_rows()
    assert read is not None
    ids = torch.randint(outputs, (1000,), dtype=id_dtype)
    assert torch.equal(read(ids), weight[ids.long()])
    assert read(ids[:0]).shape == (0, inputs)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_dtype_has_a_product_that_knows_its_sizes(dtype: torch.dtype) -> None:
    linear = Linear.pack(torch.ones(96, 80, dtype=dtype), None)
    y = linear(torch.ones(3, 80, dtype=dtype))
    assert (linear.in_features, linear.out_features) == (80, 96)
    assert torch.equal(y, torch.full((3, 96), 80.0, dtype=dtype))


def test_a_packed_weight_does_not_refer_to_its_source() -> None:
    weight = torch.randn(32, 32)
    product = OneDnnProduct(weight, None)
    x = torch.randn(2, 32)
    before = product(x)
    weight.zero_()
    assert torch.equal(product(x), before)


def test_few_numbers_of_rows_are_multiplied_and_few_rows_wasted() -> None:
    sizes = [padded_rows(rows) for rows in range(1, 4097)]
    assert sizes[0] == 2, "one row alone would be added up in another order"
    assert len(set(sizes)) == 15 + 8 * 8
    assert all(rows <= size <= 1.125 * rows for rows, size in enumerate(sizes[1:], 2))


@pytest.mark.parametrize("product, dtype", PRODUCTS)
def test_many_rows_agree_with_torch(product: Product, dtype: torch.dtype) -> None:
    weight, bias = (torch.randn(100, 96) / 9).to(dtype), torch.randn(100).to(dtype)
    x = torch.randn(1025, 96).to(dtype)
    expected = F.linear(x.double(), weight.double(), bias.double())
    got = product(weight, bias)(x)
    assert got.shape == expected.shape
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("product", ["packed", "strips"])
def test_products_of_many_numbers_of_rows_leave_little_memory(product: str) -> None:
    """They leave 27 MiB. Unpadded, they left 170."""
    result = subprocess.run(
        [sys.executable, product_memory.__file__, product],
        env={**os.environ, "PYTHONPATH": str(Path(product_memory.__file__).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout) < 52 << 20
