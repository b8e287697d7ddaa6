"""The first launch of a step in a CUDA graph: its tokens, and the new entries of its page tables."""

import torch
import triton
import triton.language as tl

BLOCK = 128


@triton.jit
def feed_kernel(
    ids, slots, last_tokens, tokens, token_count, places, pages, tables, page_count, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < token_count
    slot = tl.load(slots + at, mask=inside, other=-1)
    sampled = tl.load(last_tokens + slot, mask=slot >= 0, other=0)
    given = tl.load(ids + at, mask=inside, other=0)
    tl.store(tokens + at, tl.where(slot >= 0, sampled, given), mask=inside)
    place = tl.load(places + at, mask=at < page_count, other=-1)
    page = tl.load(pages + at, mask=at < page_count, other=0)
    tl.store(tables + place, page, mask=place >= 0)


def feed(
    ids: torch.Tensor,
    slots: torch.Tensor,
    last_tokens: torch.Tensor,
    places: torch.Tensor,
    pages: torch.Tensor,
    tables: torch.Tensor,
) -> torch.Tensor:
    """int32 [tokens]: ids[i], or the last token of slots[i] if that is not -1.

    Also writes pages[i] to tables[places[i]] if places[i] is not -1. ids, slots: int32 [tokens]; places:
    int64 [new pages]; pages: int32 [new pages].
    """
    tokens = torch.empty_like(ids)
    programs = triton.cdiv(max(len(ids), len(pages)), BLOCK)
    feed_kernel[(programs,)](
        ids, slots, last_tokens, tokens, len(ids), places, pages, tables, len(pages), BLOCK=BLOCK, num_warps=4
    )
    return tokens
