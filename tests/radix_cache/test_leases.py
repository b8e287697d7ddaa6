"""Leases in the tree: which are broken when pages run short, and what happens to leased tails.

Pages have four tokens.
"""

from __future__ import annotations

from arbora.radix_cache import Lease, Lock, PrefixCache
from hypothesis import given
from hypothesis import strategies as st
from least_recently_used import LeastRecentlyUsed
from prefix_world import World, pack, take_pages


class Served:
    """Requests without steps on a cache."""

    def __init__(self, num_pages: int) -> None:
        self.cache = PrefixCache(num_pages, 4, LeastRecentlyUsed(), check_invariants=True)

    def begin(self, tokens: list[int]) -> Lock:
        """A running request, which has computed all its tokens."""
        packed = pack(tokens)
        lock = self.cache.acquire(self.cache.match("", packed, len(tokens)))
        assert self.cache.extend(lock, len(tokens))
        self.cache.commit(lock, packed)
        if lock.source is not None:
            self.cache.end_copy(lock)
        return lock

    def serve(self, tokens: list[int]) -> None:
        lock = self.begin(tokens)
        self.cache.release(lock, pack(tokens))

    def lease(
        self, tokens: list[int], ends_at: float, owner: str = "", *, is_estimate: bool = False
    ) -> Lease:
        lease = self.cache.lease(owner, "", pack(tokens), ends_at, 1000, is_estimate)
        assert lease is not None
        return lease

    def matched(self, tokens: list[int]) -> int:
        return self.cache.match("", pack(tokens)).length


def tokens(start: int, count: int) -> list[int]:
    return list(range(100 * start, 100 * start + count))


def serve_in(world: World, tokens: list[int]) -> None:
    """A request in `world` from its arrival to its end."""
    request = world.admit("", tuple(tokens), len(tokens))
    world.plan(request, len(tokens))
    world.cancel(request)
    while world.steps:
        world.run_step()


def test_a_lease_on_pages_of_a_running_request_is_not_broken() -> None:
    served = Served(num_pages=6)
    served.serve(tokens(1, 8))
    served.serve(tokens(2, 8))
    running = served.lease(tokens(1, 8), ends_at=1.0)
    resting = served.lease(tokens(2, 8), ends_at=2.0)
    served.begin(tokens(1, 8))
    assert take_pages(served.cache, 3) is not None
    assert not running.is_broken
    assert resting.is_broken


def test_a_lease_whose_pages_another_lease_protects_is_not_broken_before_that() -> None:
    served = Served(num_pages=6)
    served.serve(tokens(1, 8))
    served.serve(tokens(2, 8))
    begin = served.lease(tokens(1, 4), ends_at=1.0)
    end = served.lease(tokens(1, 8), ends_at=3.0)
    other = served.lease(tokens(2, 8), ends_at=2.0)
    assert take_pages(served.cache, 3) is not None
    assert [begin.is_broken, end.is_broken, other.is_broken] == [False, False, True]


def test_a_leaf_is_as_safe_as_its_last_lease() -> None:
    served = Served(num_pages=6)
    served.serve(tokens(1, 8))
    served.serve(tokens(2, 8))
    leases = [served.lease(tokens(1, 8), ends_at, owner="a") for ends_at in (1.0, 9.0)]
    other = served.lease(tokens(2, 8), ends_at=5.0)
    assert take_pages(served.cache, 3) is not None
    assert other.is_broken
    assert not any(lease.is_broken for lease in leases)
    assert take_pages(served.cache, 1) is not None
    served.cache.leases.take_ended()
    assert take_pages(served.cache, 2) is not None
    assert all(lease.is_broken for lease in leases)


def test_a_renewed_lease_is_broken_by_its_new_end() -> None:
    served = Served(num_pages=4)
    served.serve(tokens(1, 8))
    served.serve(tokens(2, 8))
    first, second = served.lease(tokens(1, 8), 1.0), served.lease(tokens(2, 8), 2.0)
    served.cache.leases.renew(first, 3.0)
    assert take_pages(served.cache, 1) is not None
    assert [first.is_broken, second.is_broken] == [False, True]


def test_a_leased_tail_stays_in_the_tree_for_its_owner() -> None:
    served = Served(num_pages=8)
    served.serve(tokens(1, 6))
    lease = served.lease(tokens(1, 6), ends_at=1.0)
    other = [*tokens(1, 6), 7, 8, 9]
    lock = served.begin(other)
    assert lease.tokens == 6
    served.cache.discard(lock)
    assert lease.tokens == 6
    assert served.matched(tokens(1, 6)) == 6


def test_a_tail_without_leases_is_adopted() -> None:
    served = Served(num_pages=8)
    served.serve(tokens(1, 6))
    lock = served.cache.acquire(served.cache.match("", pack([*tokens(1, 6), 7]), 6))
    assert lock.matched == 6
    assert lock.copy is None


def test_a_covered_tail_is_freed_with_its_lease() -> None:
    served = Served(num_pages=8)
    served.serve(tokens(1, 6))
    lease = served.lease(tokens(1, 6), ends_at=1.0)
    served.serve([*tokens(1, 6), 7, 8])
    assert served.cache.stats().free == 8 - 3
    served.cache.end_lease(lease)
    assert served.cache.stats().free == 8 - 2
    assert served.matched([*tokens(1, 6), 7, 8]) == 8


def test_the_lease_of_a_covered_tail_is_broken_for_its_page_and_its_tokens_stay_cached() -> None:
    world = World(PrefixCache(4, 4, LeastRecentlyUsed(), check_invariants=True), 4)
    serve_in(world, tokens(1, 6))
    world.lease("", "", tuple(tokens(1, 6)), 1, 4, is_estimate=False)
    longer = (*tokens(1, 6), 7, 8, 9)
    running = world.admit("", longer, len(longer))
    world.plan(running, len(longer))
    world.run_step()
    assert world.allocate(1) is not None
    assert world.leases[0].is_broken
    assert world.longest("", longer) == 8


def test_a_lease_on_a_tail_is_on_the_path_of_one_that_continues_it() -> None:
    served = Served(num_pages=8)
    served.serve(tokens(1, 6))
    begin, tail = served.lease(tokens(1, 4), 1.0), served.lease(tokens(1, 6), 1.0)
    served.serve([*tokens(1, 6), 7, 8, 9])
    whole = served.lease([*tokens(1, 6), 7, 8, 9], 1.0)
    assert served.cache.leases.on_path(whole) == [tail, begin]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 5), st.integers(0, 9))),
    st.integers(0, 20),
)
def test_the_first_lease_to_free_pages_of_an_owner_is_the_one_after_which_it_has_fewer(
    taken: list[tuple[str, int, int, int]], allowed: int
) -> None:
    """Leases end for a smaller quota only where that gains pages, and in their order."""
    served = Served(num_pages=64)
    for start in range(4):
        served.serve(tokens(start, 20))
    leases = [
        served.lease(tokens(start, 4 * pages), ends_at, owner) for owner, start, pages, ends_at in taken
    ]
    mine = [lease for lease in leases if lease.owner == "a"]
    while served.cache.leases.count_pages("a") > allowed:
        group = served.cache.leases.first_to_free(mine)
        left = served.cache.leases.count_pages("a")
        for lease in group:
            served.cache.end_lease(lease)
        assert served.cache.leases.count_pages("a") < left
    assert all(lease.node is not None for lease in leases if lease.owner == "b")
