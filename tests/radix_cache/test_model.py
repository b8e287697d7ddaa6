"""Random histories of requests against a naive set of prefixes, down to the contents of every slot."""

from __future__ import annotations

from arbora.radix_cache import GittinsPolicy, PrefixCache, Reach
from gittins_check import check as check_gittins
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from least_recently_used import LeastRecentlyUsed
from prefix_world import Request, World

runs_of_tokens = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=5)
any_index = st.integers(0, 63)
any_cut = st.integers(0, 63) | st.just(1 << 20)
namespaces = st.sampled_from(["", "", "", "tenant"])
any_namespace = st.sampled_from(["", "", "", "tenant", None])


class PrefixCacheMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 4, 16]),
        num_pages=st.integers(8, 40),
        learns=st.booleans(),
        unused_tails=st.sampled_from([0, 50]),
        reaches=st.sampled_from([(), (Reach(9),), (Reach(16, True),), (Reach(3), Reach(24))]),
        window_pages=st.integers(4, 16),
    )
    def start(
        self,
        page_size: int,
        num_pages: int,
        learns: bool,
        unused_tails: int,
        reaches: tuple[Reach, ...],
        window_pages: int,
    ) -> None:
        policy = GittinsPolicy(num_pages, page_size) if learns else LeastRecentlyUsed()
        for _ in range(unused_tails):
            policy.observe_tail(0)
        windows = [(reach, window_pages) for reach in reaches]
        cache = PrefixCache(num_pages, page_size, policy, check_invariants=True, windows=windows)
        self.world = World(cache, num_pages)
        self.learns = learns
        self.seen: list[tuple[int, ...]] = [()]

    def sequence(self, base: int, cut: int, runs: list[tuple[int, int]]) -> tuple[int, ...]:
        """Continues the first `cut` tokens of a sequence seen before."""
        tail = [token for token, length in runs for _ in range(length)]
        tokens = (*self.seen[base % len(self.seen)][:cut], *tail)[: self.world.num_pages * self.page_size]
        self.seen.append(tokens)
        return tokens

    @property
    def page_size(self) -> int:
        return self.world.cache.page_size

    @rule(
        namespace=any_namespace, base=any_index, cut=any_cut, runs=runs_of_tokens, output=st.integers(0, 20)
    )
    def admit(
        self, namespace: str | None, base: int, cut: int, runs: list[tuple[int, int]], output: int
    ) -> None:
        if len(self.world.requests) < 5:
            self.admit_sequence(namespace, self.sequence(base, cut, runs), output)

    @rule(namespace=namespaces, base=any_index, cut=any_cut, runs=runs_of_tokens, output=st.integers(0, 20))
    def serve(self, namespace: str, base: int, cut: int, runs: list[tuple[int, int]], output: int) -> None:
        """A request from its arrival to its end, while the others pause."""
        request = self.admit_sequence(namespace, self.sequence(base, cut, runs), output)
        self.world.plan(request, len(request.tokens))
        self.world.cancel(request)
        while self.world.steps:
            self.world.run_step()

    def admit_sequence(self, namespace: str | None, tokens: tuple[int, ...], output: int) -> Request:
        return self.world.admit(namespace, tokens, max(len(tokens) - output, 1))

    @precondition(lambda self: self.world.requests)
    @rule(which=any_index, count=st.integers(1, 40))
    def plan(self, which: int, count: int) -> None:
        request = self.world.requests[which % len(self.world.requests)]
        if not request.cancelled:
            self.world.plan(request, count)

    @precondition(lambda self: self.world.steps)
    @rule()
    def run_step(self) -> None:
        self.world.run_step()

    @precondition(lambda self: self.world.requests)
    @rule(which=any_index)
    def cancel(self, which: int) -> None:
        request = self.world.requests[which % len(self.world.requests)]
        if not request.cancelled:
            self.world.cancel(request)

    @precondition(lambda self: self.world.requests)
    @rule(which=any_index)
    def discard(self, which: int) -> None:
        request = self.world.requests[which % len(self.world.requests)]
        while self.world.steps:
            self.world.run_step()
        if request in self.world.requests:
            self.world.discard(request)

    @precondition(lambda self: self.world.requests)
    @rule(which=any_index)
    def finish(self, which: int) -> None:
        request = self.world.requests[which % len(self.world.requests)]
        while self.world.steps:
            self.world.run_step()
        if request in self.world.requests:
            self.world.plan(request, len(request.tokens))
            self.world.cancel(request)
            while self.world.steps:
                self.world.run_step()

    @rule(namespace=namespaces, base=any_index, cut=any_cut, runs=runs_of_tokens)
    def look_up(self, namespace: str, base: int, cut: int, runs: list[tuple[int, int]]) -> None:
        self.world.look_up(namespace, self.sequence(base, cut, runs))

    @rule(namespace=namespaces, base=any_index, cut=any_cut, runs=runs_of_tokens)
    def pin(self, namespace: str, base: int, cut: int, runs: list[tuple[int, int]]) -> None:
        if len(self.world.pins) < 4:
            self.world.pin(namespace, self.sequence(base, cut, runs))

    @precondition(lambda self: self.world.pins)
    @rule(which=any_index)
    def unpin(self, which: int) -> None:
        self.world.unpin(self.world.pins[which % len(self.world.pins)])

    @rule(
        namespace=namespaces,
        base=any_index,
        cut=any_cut,
        ends_at=st.integers(0, 9),
        most=st.integers(1, 20),
        owner=st.sampled_from("ab"),
        is_estimate=st.booleans(),
    )
    def lease(
        self, namespace: str, base: int, cut: int, ends_at: int, most: int, owner: str, is_estimate: bool
    ) -> None:
        tokens = self.seen[base % len(self.seen)][:cut]
        if len(self.world.leases) < 6:
            self.world.lease(owner, namespace, tokens, ends_at, most, is_estimate=is_estimate)

    @precondition(lambda self: self.world.leases)
    @rule(which=any_index, ends_at=st.integers(0, 9))
    def renew_lease(self, which: int, ends_at: int) -> None:
        lease = self.world.leases[which % len(self.world.leases)]
        if lease.node is not None:
            self.world.cache.leases.renew(lease, ends_at)

    @precondition(lambda self: self.world.leases)
    @rule(which=any_index)
    def end_lease(self, which: int) -> None:
        self.world.end_lease(self.world.leases[which % len(self.world.leases)])

    @rule(namespace=namespaces, odds=st.integers(0, 3))
    def drop(self, namespace: str, odds: int) -> None:
        if odds == 3:
            self.world.drop(namespace)

    @rule(odds=st.integers(0, 9))
    def claim_everything(self, odds: int) -> None:
        if odds == 9:
            self.world.claim_everything()

    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        self.world.evict(count)

    @rule(count=st.integers(1, 8))
    def evict_windows(self, count: int) -> None:
        self.world.evict_windows(count)

    @invariant()
    def only_pages_in_use_are_locked(self) -> None:
        self.world.check_locks()

    @invariant()
    def contents_fit_their_tokens(self) -> None:
        self.world.check_contents()

    @invariant()
    def the_policy_keeps_its_books(self) -> None:
        if self.learns:
            check_gittins(self.world.cache)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for request in [r for r in self.world.requests if not r.cancelled]:
            self.world.cancel(request)
        while self.world.steps:
            self.world.run_step()
        for pin in list(self.world.pins):
            self.world.unpin(pin)
        self.world.claim_everything()
        assert self.world.cache.stats().free == self.world.num_pages
        assert not len(self.world.cache.leases)


TestPrefixCacheMachine = PrefixCacheMachine.TestCase
TestPrefixCacheMachine.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
