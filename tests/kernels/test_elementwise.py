"""Norm, rotation, activation and page copies on the CPU against plain PyTorch and transformers."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from arbora.kernels import reference
from arbora.kernels.elementwise import add_rms_norm, gelu_and_mul, rms_norm, scale_and_cap, silu_and_mul
from arbora.kernels.pages import copy_pages, page_moves
from arbora.kernels.pages.cells import CellFormat
from arbora.kernels.rotary import HeadNorms, rotary_write_kv
from lesser_processor import output_without
from segmented import segmented
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ONE_ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
SEGMENTS = [1, 2, 9]
"""pages"""
# Sizes on both sides of the threshold for several threads, and widths that do not fill a vector register.
SHAPES = [(1, 64), (5, 1024), (3, 99), (70, 512)]


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = ONE_ROUNDING[got.dtype]
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_agrees_with_transformers(shape: tuple[int, int], dtype: torch.dtype) -> None:
    theirs = LlamaRMSNorm(shape[1], eps=1e-6).to(dtype)
    theirs.weight.data = torch.rand(shape[1]).to(dtype)
    x = torch.randn(shape).to(dtype)
    assert_close(rms_norm(x, theirs.weight.data, 1e-6), theirs(x).detach())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm_leaves_the_rounded_sum_in_the_residual(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, residual = torch.randn(2, *shape).to(dtype)
    weight = torch.rand(shape[1]).to(dtype)
    expected = reference.add_rms_norm(x, expected_residual := residual.clone(), weight, 1e-6)
    assert_close(add_rms_norm(x, residual, weight, 1e-6), expected)
    assert torch.equal(residual, expected_residual)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_weights_multiply_before_anything_is_rounded(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    theirs = Gemma3RMSNorm(shape[1], eps=1e-6)
    theirs.weight.data = torch.rand(shape[1])
    x = torch.randn(shape).to(dtype)
    assert_close(rms_norm(x, 1 + theirs.weight.data, 1e-6), theirs(x).detach())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_added_may_be_normalised_and_multiplied(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, *shape).to(dtype)
    weights = torch.rand(2, shape[1])
    more = (0.22, weights[1])
    expected = reference.add_rms_norm(x, expected_residual := residual.clone(), weights[0], 1e-6, *more)
    got = add_rms_norm(x, residual, weights[0], 1e-6, *more)
    # A value on the border of two roundings may take the other one, of which the sum is made.
    tolerance = 2 * ONE_ROUNDING[dtype]
    torch.testing.assert_close(residual, expected_residual, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(got, expected, atol=2 * tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_activations_agree_with_torch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = torch.randn(shape[0], 2 * shape[1]).to(dtype) * 4
    assert_close(silu_and_mul(gate_up), reference.silu_and_mul(gate_up))
    assert_close(gelu_and_mul(gate_up), reference.gelu_and_mul(gate_up))


@pytest.mark.parametrize("activate", [silu_and_mul, gelu_and_mul])
@pytest.mark.parametrize("width", [1, 20])
def test_activations_are_zero_far_below_zero_and_linear_far_above(
    activate: Callable[[torch.Tensor], torch.Tensor], width: int
) -> None:
    gate_up = torch.tensor([[-1000.0] * width + [1000.0] * width + [1.0] * 2 * width])
    assert activate(gate_up).tolist() == [[0.0] * width + [1000.0] * width]


@pytest.mark.parametrize("result", [None, torch.float32])
@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_scaled_and_capped(
    shape: tuple[int, int], dtype: torch.dtype, softcap: float | None, result: torch.dtype | None
) -> None:
    x = (torch.randn(shape) * 10).to(dtype)
    x[0, :4] = torch.tensor([-1e4, 1e4, 1e-4, torch.inf])
    got = scale_and_cap(x, 0.7, softcap, result)
    assert_close(got, reference.scale_and_cap(x, 0.7, softcap, result))


OTHER_PROCESSOR = """
import sys
import torch
from arbora.kernels import reference
from arbora.kernels.elementwise import add_rms_norm, gelu_and_mul, scale_and_cap, silu_and_mul
from arbora.kernels.rotary import HeadNorms, rotary_write_kv
TOLERANCES = {"float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10}
for name in sys.argv[1:]:
    dtype, tolerance = getattr(torch, name), TOLERANCES[name]
    gate_up = torch.randn(5, 2 * 99).to(dtype) * 4
    edges = torch.tensor([[-1000.0, -87.0, 0.0, torch.nan] * 8 + [1.0] * 32]).to(dtype)
    for case in (gate_up, edges):
        for got, expected in (
            (silu_and_mul(case), reference.silu_and_mul(case)),
            (gelu_and_mul(case), reference.gelu_and_mul(case)),
            (scale_and_cap(case, 0.7, 3.0), reference.scale_and_cap(case, 0.7, 3.0)),
        ):
            torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    x, residual = torch.randn(2, 5, 99).to(dtype)
    arguments = x, torch.rand(99).to(dtype), 1e-6
    got = add_rms_norm(arguments[0], residual.clone(), *arguments[1:])
    expected = reference.add_rms_norm(arguments[0], residual.clone(), *arguments[1:])
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)
    for half in (32, 16):
        q, k, v = torch.randn(3, 9, 2, 64).to(dtype)
        kv = torch.zeros(2, 2, 1, 9, 64, dtype=dtype)
        cos_sin, places = torch.randn(9, 2 * half), torch.arange(9)
        norms = HeadNorms(torch.rand(64), torch.rand(64), 1e-6)
        expected_q, expected_kv = q.clone(), kv.clone()
        reference.rotary_write_kv(expected_q, k, v, cos_sin, places, places, expected_kv, norms)
        rotary_write_kv(q, k, v, cos_sin, places, places, kv, norms)
        for got, expected in ((q, expected_q), (kv, expected_kv)):
            torch.testing.assert_close(got, expected, atol=2 * tolerance, rtol=2 * tolerance)
"""


@pytest.mark.parametrize(
    ("lacking", "dtypes"),
    [
        ("avx512bf16", ["bfloat16"]),  # it only rounds to bfloat16
        ("avx512", ["float32", "bfloat16", "float16"]),
        (("avx512", "fma"), ["float32"]),
    ],
)
def test_code_for_other_processors_matches_the_reference(
    lacking: str | tuple[str, ...], dtypes: list[str], tmp_path: Path
) -> None:
    output_without(lacking, ["-c", OTHER_PROCESSOR, *dtypes], tmp_path)


def test_a_nan_passes_through_norm_and_activation() -> None:
    x = torch.full((1, 64), torch.nan, dtype=torch.bfloat16)
    assert rms_norm(x, torch.ones(64, dtype=torch.bfloat16), 1e-6).isnan().all()
    assert silu_and_mul(x).isnan().all()


@pytest.mark.parametrize("stored", [None, torch.int8], ids=["as computed", "int8"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [32, 16], ids=["whole head", "half of the head"])
@pytest.mark.parametrize("normal", [False, True], ids=["as they are", "normalised"])
@pytest.mark.parametrize("tokens, segment", [(1, 1), (9, 20), (200, 10)])
def test_rotary_write_kv_rotates_queries_and_fills_slots(
    tokens: int, segment: int, normal: bool, half: int, dtype: torch.dtype, stored: torch.dtype | None
) -> None:
    cells = CellFormat(stored or dtype)
    qkv = torch.randn(tokens, 8, 64).to(dtype)
    expected_qkv = qkv.clone()
    angles = torch.rand(300, half) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    positions = torch.randint(0, 300, (tokens,))
    places = torch.randperm(20 * 16)[:tokens]
    places[tokens // 2] = -1
    kv = segmented(cells.encode(torch.randn(2, 2, 20, 16, 64)), segment)
    expected_kv = kv.clone()
    norms = HeadNorms(torch.rand(64), torch.rand(64), 1e-6) if normal else None
    q, k, v = torch.split(qkv, [4, 2, 2], dim=1)
    rotary_write_kv(q, k, v, cos_sin, positions, places, kv, norms)
    q, k, v = torch.split(expected_qkv, [4, 2, 2], dim=1)
    reference.rotary_write_kv(q, k, v, cos_sin, positions, places, expected_kv, norms)
    assert_close(qkv[:, :4], expected_qkv[:, :4])
    got, expected = (cells.decode(part, 64, torch.float32) for part in (kv, expected_kv))
    # A value between two codes may be rounded either way.
    tolerance = 1.01 * expected.abs().max() / 127 if stored else ONE_ROUNDING[dtype]
    torch.testing.assert_close(got, expected, atol=float(tolerance), rtol=float(tolerance))
    assert ((got - expected).abs() < 1e-5).float().mean() > (0.999 if stored or dtype == torch.float32 else 0)


@pytest.mark.parametrize("segment", SEGMENTS)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("kv_heads, page_size, head_dim", [(3, 16, 32), (1, 1, 80)])
def test_copy_pages_copies_keys_and_values_of_every_head_and_layer_and_nothing_else(
    kv_heads: int, page_size: int, head_dim: int, stored: torch.dtype, segment: int
) -> None:
    layers = CellFormat(stored).encode(torch.randn(2, 2, kv_heads, 9, page_size, head_dim))
    kvs = [segmented(layer, segment) for layer in layers]
    copy_pages(kvs, page_size, [0, 8, 0], [5, 2, 3])
    reference.copy_pages(layers.unbind(), page_size, [0, 8, 0], [5, 2, 3])
    assert all(same(kv, segmented(layer, segment)) for kv, layer in zip(kvs, layers, strict=True))


@pytest.mark.parametrize("segment", SEGMENTS)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8])
def test_pages_move_to_host_memory_and_back(stored: torch.dtype, segment: int) -> None:
    layers = CellFormat(stored).encode(torch.randn(2, 2, 3, 9, 16, 32))
    kvs = [segmented(layer, segment) for layer in layers]
    memory = CellFormat(stored).encode(torch.randn(4, 2, 6, 16, 32)).flatten(3)
    expected_memory = memory.clone()
    page_moves(kvs, [8, 0], memory, [1, 3]).save()
    reference.save_pages(layers.unbind(), [8, 0], expected_memory, [1, 3])
    assert torch.equal(memory, expected_memory)
    moves = page_moves(kvs, [4, 5], memory, [3, 2])
    for layer in range(2):
        moves.load(range(layer, layer + 1))
    reference.load_pages(layers.unbind(), [4, 5], expected_memory, [3, 2])
    assert all(same(kv, segmented(layer, segment)) for kv, layer in zip(kvs, layers, strict=True))


def same(kv: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(kv.contiguous().view(torch.int8), expected.contiguous().view(torch.int8))


def test_the_cpu_kernels_need_no_triton() -> None:
    program = """
import sys
sys.modules["triton"] = None  # any import of it fails
import torch
from arbora.kernels import attention, elementwise, linear, pages, rotary
print(elementwise.rms_norm(torch.ones(2, 8), torch.ones(8), 0.0).sum().item())
"""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(16)  # some processors approximate the root
