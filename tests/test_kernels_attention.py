"""Attention on the CPU against its plain-PyTorch reference."""

import pytest
import torch
from arbora.kernels import attention_cpu, reference
from arbora.kernels.attention import paged_attention
from attention_cases import AttentionCase, Step, build_case, steps
from hypothesis import given, settings
from hypothesis import strategies as st

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
HEADS = [(4, 4), (4, 2), (6, 2), (8, 1)]


def assert_matches_reference(case: AttentionCase) -> None:
    got = paged_attention(case.q, case.kv, case.batch, case.scale, case.window)
    expected = reference.paged_attention(case.q, case.kv, case.batch, case.scale, case.window)
    tolerance = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("flash_flops", [0, 10**15], ids=["flash", "numba"])
@settings(max_examples=60, deadline=None)
@given(
    step=steps(),
    heads=st.sampled_from(HEADS),
    head_dim=st.sampled_from([32, 80, 128]),
    window=st.sampled_from([None, None, 1, 7, 64]),
    dtype=st.sampled_from(list(TOLERANCE)),
    scattered=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_step_matches_the_reference(
    flash_flops: int,
    step: Step,
    heads: tuple[int, int],
    head_dim: int,
    window: int | None,
    dtype: torch.dtype,
    scattered: bool,
    seed: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_cpu, "FLASH_FLOPS", flash_flops)
        assert_matches_reference(build_case(step, heads, head_dim, window, dtype, scattered, seed))
