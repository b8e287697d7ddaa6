"""Words and scales written by hand, for each order of packing."""

from __future__ import annotations

import pytest
import torch
from arbora.runtime.model.weight_formats.compressed_formats import ByteFormat, PackQuantizedFormat, ScaleGrid
from arbora.runtime.model.weight_formats.expand import PIECE, expand_into, unpack, widen_fp8
from arbora.runtime.model.weight_formats.group_quantized import AwqFormat, GptqFormat
from arbora.runtime.model.weight_formats.weight_format import (
    CodedRows,
    CodedWeight,
    Groups,
    TensorError,
    WeightFormat,
)
from quantizers import Quantize, awq, fp8, gptq, pack_quantized

UPWARDS = 0x76543210
"""nibbles 0 to 7 from the lowest on"""


def expanded(
    weight_format: WeightFormat, outputs: int, inputs: int, **stored: torch.Tensor
) -> list[list[float]]:
    target = torch.empty(outputs, inputs)
    expand_into(target, weight_format.read(stored, outputs, inputs))
    rows: list[list[float]] = target.tolist()
    return rows


def words(*rows: list[int]) -> torch.Tensor:
    """int32 from unsigned words"""
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)


def test_the_lowest_bits_of_a_word_come_first() -> None:
    assert unpack(words([UPWARDS, 0xFEDCBA98]), 4).tolist() == [list(range(16))]
    assert unpack(words([0xFF030201]), 8).tolist() == [[1, 2, 3, 255]]


def test_pack_quantized_stores_values_and_zero_points_with_an_offset_of_half_the_range() -> None:
    scale = torch.tensor([[0.5]])
    symmetric = PackQuantizedFormat(4, None, symmetric=True, ordered=False)
    got = expanded(symmetric, 1, 8, weight_packed=words([UPWARDS]), weight_scale=scale)
    assert got == [[-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5]]
    # Zero points are packed along the outputs: 1 for the first, 2 for the second.
    zeros = PackQuantizedFormat(4, None, symmetric=False, ordered=False)
    got = expanded(
        zeros,
        2,
        3,
        weight_packed=words([0x210], [0x210]),
        weight_scale=torch.ones(2, 1),
        weight_zero_point=words([0x21]),
    )
    assert got == [[-1, 0, 1], [-2, -1, 0]]


def test_gptq_packs_weights_along_the_inputs_and_zero_points_along_the_outputs() -> None:
    stored = {
        "qweight": words([UPWARDS, 0xFFFFFFFF]),
        "qzeros": words([0xF2]),
        "scales": torch.tensor([[1.0, 2.0]]),
    }
    version_1 = GptqFormat(4, None, ordered=False, zero_offset=1)
    # Stored zero points 2 and 15 are 3 and 0.
    assert expanded(version_1, 2, 8, **stored) == [[-3, -2, -1, 0, 1, 2, 3, 4], [30] * 8]
    version_2 = GptqFormat(4, None, ordered=False, zero_offset=0)
    assert expanded(version_2, 2, 8, **stored) == [[-2, -1, 0, 1, 2, 3, 4, 5], [0] * 8]


def test_the_group_index_of_gptq_gives_each_inputs_scale() -> None:
    got = expanded(
        GptqFormat(8, 2, ordered=True, zero_offset=1),
        1,
        4,
        qweight=words([0x04030201]),
        qzeros=words([0], [1]),
        scales=torch.tensor([[10.0], [100.0]]),
        g_idx=torch.tensor([1, 0, 0, 1]),
    )
    assert got == [[-100, 10, 20, 200]]


def test_awq_interleaves_the_outputs_of_a_word() -> None:
    got = expanded(
        AwqFormat(None), 8, 1, qweight=words([UPWARDS]), qzeros=words([0]), scales=torch.ones(1, 8)
    )
    assert got == [[0], [4], [1], [5], [2], [6], [3], [7]]


def test_blocks_at_the_edges_have_their_own_scales() -> None:
    got = expanded(
        ByteFormat("I8", ScaleGrid(2, 2)),
        3,
        3,
        weight=torch.ones(3, 3, dtype=torch.int8),
        weight_scale=torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    )
    assert got == [[1, 1, 2], [1, 1, 2], [3, 3, 4]]


def test_every_finite_fp8_value_is_widened_exactly() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    finite = ~values.float().isnan()
    assert finite.sum() == 254
    assert torch.equal(widen_fp8(values[finite]), values.float()[finite])


@pytest.mark.parametrize("bits", [0x7F, 0xFF])
def test_fp8_values_that_are_not_numbers_are_refused(bits: int) -> None:
    values = torch.tensor([[0, bits]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    weight = ByteFormat("F8_E4M3", ScaleGrid(None, None)).read(
        {"weight": values, "weight_scale": torch.ones(())}, 1, 2
    )
    with pytest.raises(TensorError, match="has values that are NaN"):
        weight.rows(slice(0, 1))


def test_a_large_weight_is_expanded_in_pieces_that_cover_every_row_once() -> None:
    target = torch.zeros(1000, 1500)
    seen: list[int] = []

    def rows(piece: slice) -> CodedRows:
        seen.extend(range(piece.start, piece.stop))
        codes = torch.full((piece.stop - piece.start, 1500), piece.start // 128, dtype=torch.uint8)
        return CodedRows(codes, torch.full((1, 1), 128.0))

    expand_into(target, CodedWeight(8, Groups(1500, None), 0, "scales", rows))
    assert seen == list(range(1000))
    assert target[-1, 0] == target[900, 0] == 896


def test_fp8_blocks_are_expanded_as_by_transformers() -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    torch.manual_seed(0)
    weight = torch.randn(384, 1280).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 10)
    target = torch.empty(384, 1280)
    blocks = ByteFormat("F8_E4M3", ScaleGrid(128, 128))
    expand_into(target, blocks.read({"weight": weight, "weight_scale": scale}, *target.shape))
    oracle = Fp8Dequantize(None)
    assert torch.equal(target, oracle._dequantize_one(weight, scale, torch.float32))


@pytest.mark.parametrize(
    ("quantize", "weight_format"),
    [
        (gptq(4, 16), GptqFormat(4, 16, ordered=False, zero_offset=1)),
        (awq(16), AwqFormat(16)),
        (pack_quantized(4, 16, symmetric=False), PackQuantizedFormat(4, 16, symmetric=False, ordered=False)),
        (fp8(48, 16, "weight_scale"), ByteFormat("F8_E4M3", ScaleGrid(48, 16))),
    ],
)
def test_the_last_piece_may_be_one_word_of_outputs(quantize: Quantize, weight_format: WeightFormat) -> None:
    torch.manual_seed(0)
    quantized = quantize(torch.randn(PIECE // 64 + 8, 64))
    target = torch.empty(quantized.weight.shape)
    expand_into(target, weight_format.read(quantized.tensors, *target.shape))
    assert torch.equal(target, quantized.weight)
