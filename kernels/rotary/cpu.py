# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Rotary embedding and cache writes on CPUs, in one pass over memory."""

from functools import cache

import numpy as np
import torch

from ..numba_tools import compiled, fetch_add, load, pointer, shifted, store
from ..threads import Callback, thread_count


def rotary_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
) -> None:
    """See `rotary.rotary_write_kv`."""
    tokens, heads, head_dim = q.shape
    assert q.stride(1) == k.stride(1) == v.stride(1) == head_dim and kv.is_contiguous()
    assert cos_sin.is_contiguous() and positions.is_contiguous() and slots.is_contiguous()
    arguments = (
        tokens,
        heads,
        k.shape[1],
        head_dim,
        cos_sin.shape[1] // 2,
        kv.shape[2] * kv.shape[3],
        q.data_ptr(),
        q.stride(0),
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        cos_sin.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        kv.data_ptr(),
    )
    callback(q.dtype).run(arguments, thread_count(q.numel() + 2 * k.numel()))


@compiled
def _rotate(source, target, cos_sin, half, head_dim, rotated):
    """`rotated` is scratch: where source and target are the same, a loop over both would not vectorise."""
    for i in range(half):
        left, right = load(source, i), load(source, half + i)
        cos, sin = cos_sin[i], cos_sin[half + i]
        rotated[i] = left * cos - right * sin
        rotated[half + i] = right * cos + left * sin
    for i in range(2 * half, head_dim):
        rotated[i] = load(source, i)
    for i in range(head_dim):
        store(target, i, rotated[i])


@compiled
def _rotate_and_write(arguments, kind):
    """Arguments as in `rotary_write_kv`, after the counter of tokens."""
    tokens, heads, kv_heads = arguments[1], arguments[2], arguments[3]
    head_dim, half, slots = arguments[4], arguments[5], arguments[6]
    integer = np.int64(0)
    buffer = np.empty(head_dim, np.float32)
    rotated = pointer(buffer.ctypes.data, np.float32(0))
    while True:
        token = fetch_add(arguments, 1)
        if token >= tokens:
            break
        position = pointer(arguments[14], integer)[token]
        slot = pointer(arguments[15], integer)[token]
        cos_sin = shifted(pointer(arguments[13], np.float32(0)), position * 2 * half)
        q = shifted(pointer(arguments[7], kind), token * arguments[8])
        for head in range(heads):
            source = shifted(q, head * head_dim)
            _rotate(source, source, cos_sin, half, head_dim, rotated)
        k = shifted(pointer(arguments[9], kind), token * arguments[10])
        v = shifted(pointer(arguments[11], kind), token * arguments[12])
        for head in range(kv_heads):
            keys = shifted(pointer(arguments[16], kind), (head * slots + slot) * head_dim)
            _rotate(shifted(k, head * head_dim), keys, cos_sin, half, head_dim, rotated)
            values = shifted(keys, kv_heads * slots * head_dim)
            for i in range(head_dim):
                values[i] = v[head * head_dim + i]


def _bfloat16(arguments):
    _rotate_and_write(arguments, np.uint16(0))


def _float16(arguments):
    _rotate_and_write(arguments, np.int16(0))


def _float32(arguments):
    _rotate_and_write(arguments, np.float32(0))


_KERNELS = {torch.bfloat16: _bfloat16, torch.float16: _float16, torch.float32: _float32}


@cache
def callback(dtype: torch.dtype) -> Callback:
    return Callback(_KERNELS[dtype])
