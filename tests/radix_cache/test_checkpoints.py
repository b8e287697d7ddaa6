"""Random histories of requests with recurrent states: a match ends at the deepest checkpoint, whose place
holds the state after exactly its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from arbora.radix_cache import Lock, PrefixCache
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from prefix_world import pack

SLOTS = 3
any_index = st.integers(0, 63)


@dataclass(eq=False)
class Request:
    namespace: str | None
    tokens: tuple[int, ...]
    lock: Lock
    length: int  # tokens that are computed


class CheckpointMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4]), num_pages=st.integers(24, 60), more=st.integers(0, 8))
    def start(self, page_size: int, num_pages: int, more: int) -> None:
        self.cache = PrefixCache(
            num_pages, page_size, check_invariants=True, states=2 * SLOTS + more, slots=SLOTS
        )
        self.requests: list[Request] = []
        self.seen: list[tuple[int, ...]] = [()]
        self.states: dict[int, tuple[int, ...]] = {}  # the tokens of the state in each place

    @rule(
        namespace=st.sampled_from(["", "", "other", None]),
        base=any_index,
        cut=st.integers(0, 20),
        tail=st.lists(st.integers(0, 2), min_size=1, max_size=9),
        whole_pages=st.booleans(),
    )
    def admit(self, namespace: str | None, base: int, cut: int, tail: list[int], whole_pages: bool) -> None:
        if len(self.requests) == SLOTS:
            return
        tokens = (*self.seen[base % len(self.seen)][:cut], *tail)[:24]
        self.seen.append(tokens)
        found = self.cache.match(namespace, pack(tokens), len(tokens) - 1, whole_pages)
        assert found.length == self.find_longest(namespace, tokens, found.paged, whole_pages)
        if self.cache.count_pages(len(tokens)) > self.cache.max_pages(found):
            return
        lock = self.cache.acquire(found)
        assert self.cache.extend(lock, len(tokens))
        if lock.copy is not None:
            self.cache.end_copy(lock)
        assert lock.state is not None
        if found.checkpoint is not None:
            assert self.states[found.checkpoint.place] == tokens[: found.length]
        self.states[lock.state] = tokens[: found.length]
        self.requests.append(Request(namespace, tokens, lock, found.length))

    def find_longest(
        self, namespace: str | None, tokens: tuple[int, ...], paged: int, whole_pages: bool
    ) -> int:
        """The longest prefix, among those whose pages are there, that has a checkpoint."""
        root = self.cache._tree.roots.get(namespace)
        nodes = [] if root is None else list(root.subtree())
        kept = {self.states[each.place] for node in nodes for each in node.checkpoints.values()}
        step = self.cache.page_size if whole_pages else 1
        return max((n for n in range(step, paged + 1, step) if tokens[:n] in kept), default=0)

    @rule(at=any_index, count=st.integers(1, 9), saves=st.booleans(), is_shared=st.booleans())
    def compute(self, at: int, count: int, saves: bool, is_shared: bool) -> None:
        if not self.requests:
            return
        request = self.requests[at % len(self.requests)]
        end = min(request.length + count, len(request.tokens))
        if end == request.length:
            return
        request.length = end
        place = self.cache.make_checkpoint(request.lock, end, is_shared) if saves else None
        self.cache.commit(request.lock, pack(request.tokens[:end]))
        assert request.lock.state is not None
        self.states[request.lock.state] = request.tokens[:end]
        if place is not None:
            self.states[place] = request.tokens[:end]

    @rule(at=any_index, back=st.integers(1, 6))
    def rewind(self, at: int, back: int) -> None:
        """Other tokens take the place of the last ones that are not committed."""
        if not self.requests:
            return
        request = self.requests[at % len(self.requests)]
        lock, wanted = request.lock, max(request.length - back, request.lock.depth)
        self.cache.drop_checkpoints(lock, wanted + 1, request.length + 1)
        request.length, checkpoint = lock.newest_checkpoint(wanted)
        assert lock.state is not None
        self.states[lock.state] = self.states[checkpoint.place] if checkpoint else ()
        assert self.states[lock.state] == request.tokens[: request.length]
        rest = [(token + 1) % 3 for token in request.tokens[wanted:]]
        request.tokens = (*request.tokens[:wanted], *rest)

    @rule(at=any_index, keeps_state=st.booleans(), is_faulty=st.sampled_from([False, False, True]))
    def end(self, at: int, keeps_state: bool, is_faulty: bool) -> None:
        if not self.requests:
            return
        request = self.requests.pop(at % len(self.requests))
        if is_faulty:
            self.cache.discard(request.lock)
        else:
            length = max(request.length, request.lock.depth)
            is_exact = keeps_state and length == request.length
            self.cache.release(request.lock, pack(request.tokens[:length]), keeps_state=is_exact)

    @rule(namespace=st.sampled_from(["", "other"]))
    def drop(self, namespace: str) -> None:
        self.cache.drop(namespace)

    def teardown(self) -> None:
        while hasattr(self, "requests") and self.requests:
            self.end(0, True, False)


CheckpointMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestCheckpoints = CheckpointMachine.TestCase
