# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Head norms, rotary embedding and cache writes on CUDA: one program for each token and head of q or k."""

import torch
import triton
import triton.language as tl

from .head_norms import HeadNorms


@triton.jit
def rotary_write_kv_kernel(
    q, k, v, cos_sin, positions, slots, kv, q_norm, k_norm, q_stride, k_stride, v_stride, slot_count, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_DIM: tl.constexpr, NORMAL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK_HALF)
    dim = tl.arange(0, BLOCK_DIM)
    turns = i < HALF
    passes = (dim >= 2 * HALF) & (dim < HEAD_DIM)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    if head < HEADS:
        source = q + token * q_stride + head * HEAD_DIM
        target = source
        weight = q_norm
    else:
        kv_head = (head - HEADS).to(tl.int64)
        source = k + token * k_stride + kv_head * HEAD_DIM
        target = kv + (kv_head * slot_count + slot) * HEAD_DIM
        weight = k_norm
        value = tl.load(v + token * v_stride + kv_head * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0)
        values_at = target + KV_HEADS * slot_count.to(tl.int64) * HEAD_DIM
        tl.store(values_at + dim, value, mask=dim < HEAD_DIM)
    left = tl.load(source + i, mask=turns, other=0.0).to(tl.float32)
    right = tl.load(source + HALF + i, mask=turns, other=0.0).to(tl.float32)
    rest = tl.load(source + dim, mask=passes, other=0.0).to(tl.float32)
    if NORMAL:
        squares = tl.sum(left * left) + tl.sum(right * right) + tl.sum(rest * rest)
        scale = 1.0 / tl.sqrt(squares / HEAD_DIM + eps)
        left *= scale * tl.load(weight + i, mask=turns, other=0.0).to(tl.float32)
        right *= scale * tl.load(weight + HALF + i, mask=turns, other=0.0).to(tl.float32)
        rest *= scale * tl.load(weight + dim, mask=passes, other=0.0).to(tl.float32)
    angles = cos_sin + tl.load(positions + token) * (2 * HALF)
    cos = tl.load(angles + i, mask=turns, other=0.0)
    sin = tl.load(angles + HALF + i, mask=turns, other=0.0)
    stored = kv.dtype.element_ty
    tl.store(target + i, (left * cos - right * sin).to(stored), mask=turns)
    tl.store(target + HALF + i, (right * cos + left * sin).to(stored), mask=turns)
    if 2 * HALF < HEAD_DIM:
        tl.store(target + dim, rest.to(stored), mask=passes)


def rotary_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
    norms: HeadNorms | None = None,
) -> None:
    """See `rotary.rotary_write_kv`."""
    tokens, heads, head_dim = q.shape
    kv_heads, half = k.shape[1], cos_sin.shape[1] // 2
    assert q.stride(1) == k.stride(1) == v.stride(1) == head_dim and kv.is_contiguous()
    assert cos_sin.is_contiguous() and positions.is_contiguous() and slots.is_contiguous()
    rotary_write_kv_kernel[(tokens, heads + kv_heads)](
        q,
        k,
        v,
        cos_sin,
        positions,
        slots,
        kv,
        q if norms is None else norms.q,
        q if norms is None else norms.k,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        kv.shape[2] * kv.shape[3],
        0.0 if norms is None else norms.eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        NORMAL=norms is not None,
        num_warps=1,
    )
