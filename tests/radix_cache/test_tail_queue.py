"""When a tail is evicted before the rest of its leaf. Pages have four tokens."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice

from arbora.radix_cache import PrefixCache
from prefix_requests import match, new_cache, serve

ids = count()


def new_tokens(length: int) -> tuple[int, ...]:
    return tuple(islice(ids, length))


def teach(cache: PrefixCache, shared: int, times: int = 60) -> None:
    """Prompts of ten tokens; others extend the first `shared` tokens of each."""
    for _ in range(times):
        prompt = new_tokens(10)
        serve(cache, prompt)
        serve(cache, prompt[:shared] + new_tokens(3))
    cache.drop("")


def left_of_21_prompts(cache: PrefixCache, evicted: int) -> Counter[int]:
    """How many prompts match how many tokens, after they filled 63 of 64 pages and some were evicted."""
    prompts = [new_tokens(10) for _ in range(21)]
    for prompt in prompts:
        serve(cache, prompt)
    serve(cache, new_tokens(4 * (1 + evicted)))
    return Counter(match(cache, prompt) for prompt in prompts)


def test_tails_are_evicted_first_if_requests_differ_in_them() -> None:
    cache = new_cache(64)
    teach(cache, shared=8)
    assert left_of_21_prompts(cache, evicted=12) == {8: 12, 10: 9}


def test_partial_pages_are_evicted_only_with_their_leaf_if_requests_extend_them() -> None:
    cache = new_cache(64)
    teach(cache, shared=10)
    assert left_of_21_prompts(cache, evicted=12) == {0: 4, 10: 17}


def test_after_all_tails_whole_leaves_are_evicted() -> None:
    cache = new_cache(64)
    teach(cache, shared=8)
    left = left_of_21_prompts(cache, evicted=40)
    assert left[0] >= 8
    assert left[10] <= 2


def test_a_change_in_how_often_partial_pages_are_extended_is_learned() -> None:
    cache = new_cache(64)
    teach(cache, shared=8)
    teach(cache, shared=10, times=300)
    assert left_of_21_prompts(cache, evicted=12) == {0: 4, 10: 17}


def test_a_tail_in_which_a_request_differed_is_evicted_too() -> None:
    cache = new_cache(64)
    teach(cache, shared=8)
    prompts = [new_tokens(10) for _ in range(5)]
    for prompt in prompts:
        serve(cache, prompt)
        serve(cache, prompt[:8] + new_tokens(3))
    serve(cache, new_tokens(4 * (64 - 5 * 4 + 8)))
    assert sum(match(cache, prompt) == 8 for prompt in prompts) >= 3
