# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Stepping of pooled automata on CUDA: one program for each row."""

import torch
import triton
import triton.language as tl


@triton.jit
def advance_kernel(states, tokens, spans, token_bytes, state_rows, class_maps, transitions, after):
    row = tl.program_id(0)
    state, token = tl.load(states + row), tl.load(tokens + row)
    if state >= 0:
        for at in range(tl.load(spans + 2 * token), tl.load(spans + 2 * token + 1)):
            class_map = tl.load(state_rows + 3 * state + 1)
            byte_class = tl.load(class_maps + 256 * class_map + tl.load(token_bytes + at).to(tl.int32))
            state = tl.load(transitions + tl.load(state_rows + 3 * state) + byte_class.to(tl.int32))
    tl.store(after + row, state)


@triton.jit
def mask_index_kernel(states, state_rows, masks):
    row = tl.program_id(0)
    state = tl.load(states + row)
    mask = tl.load(state_rows + 3 * tl.maximum(state, 0) + 2)
    tl.store(masks + row, tl.where(state < 0, -1, mask))


def advance(
    states: torch.Tensor,
    tokens: torch.Tensor,
    spans: torch.Tensor,
    token_bytes: torch.Tensor,
    state_rows: torch.Tensor,
    class_maps: torch.Tensor,
    transitions: torch.Tensor,
) -> torch.Tensor:
    after = torch.empty_like(states)
    tables = (spans, token_bytes, state_rows, class_maps, transitions)
    advance_kernel[(len(states),)](states, tokens, *tables, after, num_warps=1)
    return after


def mask_index(states: torch.Tensor, state_rows: torch.Tensor) -> torch.Tensor:
    masks = torch.empty_like(states)
    mask_index_kernel[(len(states),)](states, state_rows, masks, num_warps=1)
    return masks
