"""Requests that share a prefix compute it once: one computes it, the others wait for its pages."""

from __future__ import annotations

from collections.abc import Iterable

from ...radix_cache import common_tokens
from .request import AwaitedPrefix, Phase, Request


def waits_for_prefix(request: Request) -> bool:
    """Whether the prefix that `awaits_prefix` found last is still being computed."""
    return request.awaits is not None and request.awaits.is_coming


def awaits_prefix(request: Request, matched: int, residents: Iterable[Request], page_size: int) -> bool:
    """Whether the tree will soon hold more of the prompt than the `matched` tokens that it has now.

    Another request is computing or restoring that prefix, or has ended and enters its tokens into the tree
    when its last step is done.
    """
    request.awaits = None
    tokens = bytes(request.tokens)
    for other in residents:
        if other.namespace != request.namespace:
            continue
        allocation = other.allocation
        if other.phase is not Phase.RUNNING:
            common = common_tokens(tokens, other.slice(0, allocation.planned))
            if min(common, request.most_cached) > matched:
                return True
        elif allocation.prefilling:
            common = common_tokens(tokens, other.slice(0, allocation.prefill_end))
            whole_pages = min(common, request.most_cached) // page_size * page_size
            coming = whole_pages if whole_pages > matched else min(whole_pages, allocation.restore_end)
            if allocation.planned < coming:
                request.awaits = AwaitedPrefix(other, allocation, coming)
                return True
    return False
