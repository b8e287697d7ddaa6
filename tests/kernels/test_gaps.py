# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""White space that the reply chooses: the CUDA kernel's `pass_gap` against `runtime.json_gaps`."""

import numpy as np
import torch
import triton
import triton.language as tl
from arbora.kernels.automaton import gap_cuda
from arbora.runtime import json_gaps as gaps
from triton_device import DEVICE

LANES = 256


@triton.jit
def pass_gap_kernel(given, found, LANES: tl.constexpr):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    gap, style, lines = (
        tl.load(given + 3 * lane),
        tl.load(given + 3 * lane + 1),
        tl.load(given + 3 * lane + 2),
    )
    way, style, lines = gap_cuda.pass_gap(gap, style, lines)
    tl.store(found + 3 * lane, way)
    tl.store(found + 3 * lane + 1, style)
    tl.store(found + 3 * lane + 2, lines)


def random_styles(count: int) -> np.ndarray:
    """Gaps, styles and lines, int32 [count, 3]: each field of a style takes each of its values."""
    rng = np.random.default_rng(0)
    gap = rng.integers(1, gaps.LEAVE_ARRAY + 1, count)
    lines = rng.integers(0, 1 << 28, count) >> rng.integers(0, 28, count)
    style = rng.integers(0, 2, count) * gaps.ONLY_LINES | rng.integers(0, gaps.TAB + 1, count) << gaps.UNIT
    for field in (gaps.BEFORE_COLON, gaps.AFTER_COLON, gaps.AFTER_COMMA, gaps.IN_OBJECT, gaps.IN_ARRAY):
        style |= rng.integers(0, 3, count) << field
    style |= np.array([int(each).bit_count() for each in lines]) << gaps.LEVEL
    indents = (gap == gaps.INDENT_SPACE) | (gap == gaps.INDENT_TAB)
    style |= np.where(indents, rng.integers(1, 200, count), 0) << gaps.LEFT
    return np.stack([gap, style, lines], axis=1).astype(np.int32)


def is_consistent(gap: int, style: int, lines: int) -> bool:
    """Whether a reply can come to this gap: a unit is known once a line is indented, and a space is chosen
    only where none was the choice until then."""
    spaces = {
        gaps.SPACE_AFTER_COLON: gaps.AFTER_COLON,
        gaps.SPACE_AFTER_COMMA: gaps.AFTER_COMMA,
        gaps.SPACE_IN_OBJECT: gaps.IN_OBJECT,
        gaps.SPACE_IN_ARRAY: gaps.IN_ARRAY,
    }
    if gap in spaces and style >> spaces[gap] & 3 != gaps.NONE:
        return False
    return bool(lines == 0 or style >> gaps.UNIT & 15)


def test_cuda_passes_every_gap_as_the_reference() -> None:
    given = np.array([row for row in random_styles(20_000).tolist() if is_consistent(*row)], np.int32)
    given = given[: len(given) // LANES * LANES]
    found = torch.zeros(given.shape, dtype=torch.int32, device=DEVICE)
    pass_gap_kernel[(len(given) // LANES,)](torch.from_numpy(given).to(DEVICE), found, LANES=LANES)
    assert set(given[:, 0].tolist()) == set(range(1, gaps.LEAVE_ARRAY + 1))
    for row, got in zip(given.tolist(), found.cpu().tolist(), strict=True):
        way, style, lines = gaps.pass_gap(*row)
        assert got[0] == way, row
        assert way == gaps.DEAD_WAY or got[1:] == [style, lines], row
