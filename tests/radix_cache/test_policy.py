"""Prefixes that the learning policy keeps. Prompts of four one-token pages in a cache of forty."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count, repeat
from random import Random

from arbora.radix_cache import EvictionPolicy, GittinsPolicy, PrefixCache
from gittins_check import check
from least_recently_used import LeastRecentlyUsed
from prefix_world import pack, take_pages

PAGES = 40
ids = count()


def new_prompt() -> tuple[int, ...]:
    return tuple(next(ids) for _ in range(4))


def hit_share(prompts: Iterable[tuple[tuple[int, ...], int]], policy: EvictionPolicy) -> float:
    """The cached share of the second half of the prompts, given with the lengths of their answers."""
    cache = PrefixCache(PAGES, 1, policy)
    shares = []
    for prompt, generated in prompts:
        lock = cache.acquire(cache.match("", pack(prompt), len(prompt)))
        assert cache.extend(lock, len(prompt))
        cache.commit(lock, pack(prompt))
        cache.release(lock, pack(prompt), generated)
        shares.append(lock.matched / len(prompt))
    if isinstance(policy, GittinsPolicy):
        check(cache)
    half = len(shares) // 2
    return sum(shares[half:]) / (len(shares) - half)


def both(prompts: list[tuple[tuple[int, ...], int]]) -> tuple[float, float]:
    return hit_share(prompts, LeastRecentlyUsed()), hit_share(prompts, GittinsPolicy(PAGES, 1))


def test_frequently_used_prefixes_outlive_a_scan() -> None:
    hot = [new_prompt() for _ in range(7)]
    rounds = [[*hot, *(new_prompt() for _ in range(8))] for _ in range(80)]
    lru, learned = both([(prompt, 9) for prompt in chain(*rounds)])
    assert lru == 0
    assert learned > 0.4


def test_a_part_of_a_loop_larger_than_the_cache_stays() -> None:
    loop = [new_prompt() for _ in range(12)]
    lru, learned = both([(prompt, 9) for prompt in loop * 80])
    assert lru == 0
    assert learned > 0.6


def test_where_the_last_used_is_used_next_it_is_as_good_as_lru() -> None:
    random, stack, prompts = Random(1), [new_prompt() for _ in range(30)], []
    for _ in range(1500):
        stack.append(stack.pop(-int(30 ** random.random())))
        prompts.append((stack[-1], 9))
    lru, learned = both(prompts)
    assert learned > lru - 0.03


def test_the_length_of_an_output_may_predict_reuse() -> None:
    random, waiting, prompts = Random(2), [], []
    for _ in range(400):
        waiting.append(new_prompt())
        prompts.append((waiting[-1], 5))
        prompts += zip((new_prompt() for _ in range(3)), repeat(500), strict=False)
        if len(waiting) > 6:
            prompts.append((waiting.pop(random.randrange(3)), 5))
    lru, learned = both(prompts)
    assert lru < 0.05
    assert learned > 0.15


def test_extensions_of_a_shared_prompt_may_predict_reuse() -> None:
    once, back = new_prompt()[:2], new_prompt()[:2]
    waiting, prompts = [], []
    for _ in range(500):
        waiting.append((*back, *new_prompt()[:2]))
        prompts.append((waiting[-1], 9))
        prompts += [((*once, *new_prompt()[:2]), 9) for _ in range(3)]
        if len(waiting) > 6:
            prompts.append(((*waiting.pop(0), next(ids)), 9))
    lru, learned = both(prompts)
    assert lru < 0.49
    assert learned > 0.54


def test_it_adapts_when_the_load_changes() -> None:
    first = [new_prompt() for _ in range(9)]
    second = [new_prompt() for _ in range(9)]
    lru, learned = both([(prompt, 9) for prompt in first * 40 + second * 50])
    assert lru == 1
    assert learned == 1


def test_a_node_in_use_has_no_age() -> None:
    cache = PrefixCache(PAGES, 1)
    prompt = pack(new_prompt())
    lock = cache.acquire(cache.match("", prompt, 4))
    assert cache.extend(lock, 4)
    cache.commit(lock, prompt)
    assert lock.node is not None and lock.node.mark is None
    cache.release(lock, prompt)
    check(cache)


class Tidy(GittinsPolicy):
    """Drops stale entries with every new one."""

    def _drop_stale_entries(self) -> None:
        super()._drop_stale_entries()
        self._max_heap = 0


def test_no_group_is_lost_when_stale_entries_are_dropped() -> None:
    random, recent = Random(3), [new_prompt()]
    cache = PrefixCache(PAGES, 1, Tidy(PAGES, 1))
    for _ in range(300):
        recent.append(random.choice(recent[-12:]) if random.random() < 0.5 else new_prompt())
        lock = cache.acquire(cache.match("", pack(recent[-1]), 4))
        assert cache.extend(lock, 4)
        cache.release(lock, pack(recent[-1]), random.choice([5, 50, 500]))
        check(cache)


def test_a_cache_without_pages_works() -> None:
    cache = PrefixCache(0, 16)
    assert take_pages(cache, 1) is None
    cache.release(cache.acquire(cache.match("", pack((1, 2)), 1)), b"")
    assert len(GittinsPolicy(0, 16)) == 0
