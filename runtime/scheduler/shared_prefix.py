"""Prefixes that several requests share are computed once: one goes ahead, the others wait for its pages."""

from __future__ import annotations

from collections.abc import Iterable

from ...radix_cache import common_tokens
from .request import Awaited, Phase, Request


def waits_for_prefix(request: Request) -> bool:
    """Whether it still waits for what `awaits_prefix` found when it was last asked."""
    return request.awaited is not None and request.awaited.is_coming


def awaits_prefix(request: Request, matched: int, running: Iterable[Request], page_size: int) -> bool:
    """Whether the tree is about to hold more of the prompt than it has now.

    Another request is computing or restoring it, or has ended and gives what it holds with its last step's
    result.
    """
    request.awaited = None
    tokens = bytes(request.tokens)
    for other in running:
        if other.namespace != request.namespace:
            continue
        home = other.residence
        if other.phase is not Phase.RUNNING:
            common = common_tokens(tokens, other.slice(0, home.planned))
            if min(common, request.length - 1) > matched:
                return True
        elif home.prefilling:
            common = common_tokens(tokens, other.slice(0, home.prefill_end))
            whole_pages = min(common, request.length - 1) // page_size * page_size
            coming = whole_pages if whole_pages > matched else min(whole_pages, home.restore_end)
            if home.planned < coming:
                request.awaited = Awaited(other, home, coming)
                return True
    return False
