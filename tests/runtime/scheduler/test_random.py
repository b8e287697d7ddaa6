"""In random histories every reply equals the reply of its request alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import pytest
from arbora.radix_cache import Reach, WindowGroup
from arbora.runtime.messages import (
    BACKGROUND_PRIORITY,
    Abort,
    AwaitTools,
    DropCache,
    EndLease,
    GroupCost,
    LeaseTerms,
    PrefixPinned,
    RowError,
)
from arbora.runtime.scheduler import plan
from evicted_prompts import FewRestored
from fake_model import EOS, reply_alone
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scheduler_bench import SchedulerBench

lease_terms = st.builds(
    LeaseTerms,
    kind=st.sampled_from(["conversation", "breakpoint", "tool_pause"]),
    ttl_s=st.integers(0, 6),
    key=st.sampled_from(["", "x", "y"]),
    end=st.none() | st.integers(0, 60),
    most=st.integers(1, 2),
)
GROUPS_COST_NOTHING = GroupCost(0.01, min_shared_tokens=1, chunk_tokens=8)
DOCUMENTS = [[1 + (i * k) % 50 for i in range(40)] for k in (3, 7, 11)]


def _choose_count(chosen: random.Random, most: int) -> int:
    """How many tokens a row samples. One that may sample several may sample none, and is repeated."""
    return chosen.randint(int(most == 1), most)


class AnyOrder(RuleBasedStateMachine):
    """Few pages, so that retraction and eviction happen; shared documents, so that prefixes meet."""

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        tokens=st.integers(96, 400),
        slots=st.integers(1, 6),
        cache=st.booleans(),
        most_stored=st.sampled_from([0, 3, 1000]),
        host_pages=st.sampled_from([3, 30]),
        write_through=st.booleans(),
        group_cost=st.sampled_from([GroupCost(), GROUPS_COST_NOTHING]),
        max_sampled=st.sampled_from([1, 1, 3]),
        more_states=st.none() | st.integers(0, 10),
        reaches=st.sampled_from([(), (Reach(9),), (Reach(16, True),), (Reach(5), Reach(30))]),
        spare=st.integers(0, 12),
    )
    def start(
        self,
        page_size: int,
        tokens: int,
        slots: int,
        cache: bool,
        most_stored: int,
        host_pages: int,
        write_through: bool,
        group_cost: GroupCost,
        max_sampled: int,
        more_states: int | None,
        reaches: Sequence[Reach],
        spare: int,
    ) -> None:
        """more_states: places for recurrent states beside the two of each slot; None: no such states
        spare: pages of windowed groups beside those that one request needs"""
        pages = tokens // page_size
        if more_states is not None:
            max_sampled, reaches = 1, ()
        most_stored = 0 if reaches else most_stored
        self.most_protected = pages // 3
        self.new_bench = partial(
            SchedulerBench,
            pages,
            page_size,
            slots,
            prefix_cache=cache,
            max_pinned=pages // 3,
            most_stored=most_stored,
            host_pages=host_pages if most_stored else 0,
            write_through=write_through,
            budget=FewRestored(step_ms=8.0),
            group_cost=group_cost,
            max_sampled=max_sampled,
            count=partial(_choose_count, random.Random(tokens)),
            states=0 if more_states is None else 2 * slots + more_states,
            windows=[(reach, WindowGroup(reach, 0, page_size).max_held(80) + spare) for reach in reaches],
        )
        self.bench = self.new_bench()
        self.expected: dict[str, tuple[list[int], int, bool | Literal["bad"]]] = {}
        self.dropped: set[str] = set()
        self.pins = 0

    @rule(
        document=st.sampled_from(DOCUMENTS),
        length=st.integers(1, 40),
        tail=st.lists(st.integers(1, 60), max_size=12),
        max_tokens=st.integers(0, 20),
        grammar=st.sampled_from([False, True, "bad"]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        prompt_logprobs_start=st.integers(0, 50),
        namespace=st.sampled_from(["", "", "", "other", None]),
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from([0, 0, 1, BACKGROUND_PRIORITY]),
        leases=st.lists(lease_terms, max_size=3),
    )
    def submit(
        self,
        document: list[int],
        length: int,
        tail: list[int],
        max_tokens: int,
        grammar: bool | Literal["bad"],
        prompt_logprobs: int | None = None,
        prompt_logprobs_start: int = 0,
        namespace: str | None = "",
        tenant: str = "",
        priority: int = 0,
        leases: Sequence[LeaseTerms] = (),
    ) -> None:
        name = f"r{len(self.expected)}"
        prompt = document[:length] + tail
        self.expected[name] = (prompt, max_tokens, grammar)
        self.bench.submit(
            name,
            prompt,
            max_tokens,
            grammar="bad" if grammar == "bad" else "even" if grammar else None,
            namespace=namespace,
            tenant=tenant,
            priority=priority,
            leases=leases,
            prompt_logprobs=prompt_logprobs,
            prompt_logprobs_start=min(prompt_logprobs_start, max(0, len(prompt) - 1)),
        )

    @rule(turn=st.integers(0, 5), tail=st.lists(st.integers(1, 60), min_size=1, max_size=6))
    def next_turn(self, turn: int, tail: list[int]) -> None:
        """The next turn after a complete reply."""
        done = [n for n in self.expected if self.bench.finish(n) and len(self.expected[n][0]) < 80]
        if done:
            name = done[turn % len(done)]
            self.submit(self.expected[name][0] + self.bench.tokens(name), 1000, tail, 8, False)

    @rule()
    def plan(self) -> None:
        self.bench.plan()

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.bench.model.plans:
                self.bench.step()

    @rule(row=st.integers(0, 5))
    def fail_a_row(self, row: int) -> None:
        if not self.bench.model.plans:
            return
        slots = [row.slot for row in self.bench.model.plans[0].rows if row.samples]
        result = self.bench.model.run_step()
        if slots:
            result.errors = [RowError(slots[row % len(slots)], "not_a_number", "not a number")]
        self.bench.handle(result)

    @rule(steps=st.integers(1, 8))
    def run(self, steps: int) -> None:
        self.bench.run(steps)

    @rule(rounds=st.integers(1, 2))
    def answer_fetches(self, rounds: int) -> None:
        self.bench.answer_fetches(rounds)

    @rule(keep=st.integers(0, 5))
    def lose_stored_pages(self, keep: int) -> None:
        """Drops the stored pages, except those of fetches."""
        for key in list(self.bench.model.store.pages)[keep:]:
            del self.bench.model.store.pages[key]

    @rule()
    def compile_grammars(self) -> None:
        self.bench.compiler.finish_all()
        self.bench.update()

    @rule(pick=st.integers(0, 100))
    def drop(self, pick: int) -> None:
        names = [name for name in self.expected if name not in self.dropped]
        if names:
            name = names[pick % len(names)]
            self.bench.handle(Abort(name))
            self.dropped.add(name)

    @rule(document=st.sampled_from(DOCUMENTS), length=st.integers(16, 40), ttl_s=st.integers(1, 5))
    def pin(self, document: list[int], length: int, ttl_s: int) -> None:
        self.pins += 1
        pinned = self.bench.report().pages_pinned
        answer = self.bench.pin(document[:length], ttl_s, f"p{self.pins}")
        assert isinstance(answer, PrefixPinned) or self.bench.report().pages_pinned == pinned

    @rule(pick=st.integers(0, 100), tools=st.lists(st.sampled_from(["find", "read"]), max_size=2))
    def await_tools(self, pick: int, tools: list[str]) -> None:
        if self.expected:
            self.bench.handle(AwaitTools(f"r{pick % len(self.expected)}", tools))

    @rule(namespace=st.sampled_from(["", "other"]), tenant=st.sampled_from("abc"), key=st.sampled_from("xy"))
    def end_lease(self, namespace: str, tenant: str, key: str) -> None:
        self.bench.handle(EndLease(namespace, tenant, key))

    @rule(namespace=st.sampled_from(["", "other"]), tenant=st.sampled_from("abc"))
    def end_kind(self, namespace: str, tenant: str) -> None:
        self.bench.handle(EndLease(namespace, tenant, None, "conversation"))

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.bench.wait(seconds)
        assert all(lease.ends_at > self.bench.now for lease in self.bench.report().leases)
        assert all(pin.expires_at > self.bench.now for pin in self.bench.report().pins)

    @rule(odds=st.integers(0, 3))
    def drop_cache(self, odds: int) -> None:
        if odds == 3:
            pinned = self.bench.report().pages_pinned
            steps = self.bench.scheduler.stats().steps
            self.bench.control(DropCache(0, 1, "", None))
            has_waited = self.bench.scheduler.stats().steps > steps  # others may have ended since
            assert self.bench.report().pages_cached == 0 or has_waited
            assert self.bench.report().pages_pinned == pinned

    @rule(odds=st.integers(0, 3), drained=st.booleans())
    def restart(self, odds: int, drained: bool) -> None:
        """The server loses its requests and its cache, but not the page store."""
        if odds < 3:
            return
        if drained:
            self.compile_grammars()
            self.bench.run()
            self.bench.drain()
        stored = self.bench.model.store.pages
        self.bench = self.new_bench()
        self.bench.model.store.pages = stored
        self.expected, self.dropped = {}, set()

    @invariant()
    def leases_stay_within_their_quota(self) -> None:
        if hasattr(self, "bench"):
            stats, leases = self.bench.scheduler.stats(), self.bench.cache.leases
            protected = self.bench.cache.stats().pinned + stats.pages_leased
            assert protected <= self.most_protected or not stats.pages_leased
            assert sum(stats.leases.values()) == sum(lease.is_breakable for lease in leases)

    @invariant()
    def replies_are_right_so_far(self) -> None:
        if not hasattr(self, "bench"):
            return
        for name, (prompt, max_tokens, grammar) in self.expected.items():
            tokens = self.bench.tokens(name)
            if grammar:
                assert all(token % 2 == 0 for token in tokens)
            else:
                assert tokens == reply_alone(prompt, max_tokens)[: len(tokens)]

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.compiler.finish_all()
        self.bench.run()
        for name, (prompt, max_tokens, grammar) in self.expected.items():
            if name in self.dropped or name in self.bench.refused:
                continue
            tokens = self.bench.tokens(name)
            if self.bench.finish(name) == "error":
                continue
            assert self.bench.finish(name) == ("stop" if tokens and tokens[-1] == EOS else "length")
            if not grammar:
                assert tokens == reply_alone(prompt, max_tokens)
        assert self.bench.scheduler.idle
        self.bench.wait(1000)
        assert not self.bench.scheduler.stats().leases
        assert self.bench.scheduler.stats().pages_used == 0
        keys = self.bench.cache.keys
        cached = [] if keys is None else keys.list_pages()
        self.bench.answer_fetches()
        self.bench.drain()
        assert not self.bench.model.store.held
        assert len(self.bench.model.store.pages) <= self.bench.model.store.most
        assert all(pages.keys for pages in cached)


@pytest.fixture(autouse=True, scope="module")
def frequent_checkpoints() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "CHECKPOINT_TOKENS", 6)
        patch.setattr(plan, "DECODE_CHECKPOINT_TOKENS", 3)
        yield


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
