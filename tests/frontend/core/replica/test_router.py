"""A request goes to the replica that has most of its prompt, unless another would begin it much sooner."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import count

from arbora.frontend.core.replica.router import (
    EXPECTED_S,
    MAX_LATER_S,
    SIMILAR_S,
    WAIT_FOR_MATCH,
    Router,
)
from arbora.runtime.api_keys import Quota
from arbora.runtime.messages import Generate, Load, ReplicaReport, TreeChange
from arbora.runtime.sampling_params import SamplingParams
from fake_scheduler import packed

PAGE = 16
TOKEN_S = 0.001
numbers = count()
BOTH = (0, 1)


class World:
    """A router of two replicas, which report what the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.router = Router(PAGE, lambda: self.now)
        self.backlogs = {0: 0.0, 1: 0.0}
        self.token_s: dict[int, float | None] = {0: TOKEN_S, 1: TOKEN_S}
        self.sequences = Counter[int]()
        self.pages = count()
        for replica in BOTH:
            self.router.open(replica)
            self.report(replica, is_whole=True)

    def report(self, replica: int, *changes: TreeChange, is_whole: bool = False) -> bool:
        self.sequences[replica] += 1
        load = Load(self.backlogs[replica], self.token_s[replica])
        report = ReplicaReport(self.sequences[replica], load, list(changes), is_whole)
        return self.router.take(replica, report)

    def set_backlog(self, replica: int, seconds: float) -> None:
        self.backlogs[replica] = seconds
        self.report(replica)

    def store(self, replica: int, *tokens: int, namespace: str = "") -> list[int]:
        """Reports that a replica has a sequence, of which it had nothing. Returns its pages."""
        pages = [next(self.pages) for _ in range(len(tokens) // PAGE)]
        change = TreeChange(array("i", pages).tobytes(), packed(tokens), namespace=namespace)
        assert self.report(replica, change)
        return pages

    def choose(self, request: Generate) -> int:
        return self.router.choose([request], BOTH)

    def send(self, *requests: Generate) -> int:
        """Sends a request as the client does. Returns its replica."""
        replica = self.router.choose(requests, BOTH)
        self.router.send(requests, replica)
        return replica

    def count_matched(self, request: Generate) -> dict[int, int]:
        """How many tokens of a prompt each replica has or expects, without those that have none."""
        return {replica: int(count) for replica, count in enumerate(self.router._match(request)) if count}

    def end(self, *requests: Generate) -> None:
        for each in requests:
            self.router.note_accepted(each.request)
            self.router.note_end(each.request)


def request(*tokens: int, namespace: str | None = "", quota: Quota | None = None) -> Generate:
    sampling = SamplingParams(max_tokens=10)
    return Generate(f"r{next(numbers)}", 0, packed(tokens), sampling, namespace=namespace, quota=quota)


def test_new_prefixes_go_to_replicas_in_turn_that_would_begin_at_about_the_same_time() -> None:
    world = World()
    world.set_backlog(1, 0.9 * SIMILAR_S)
    taken = []
    for first in range(6):
        asked = request(*range(100 * first, 100 * first + 50))
        taken.append(world.send(asked))
        world.end(asked)
    assert Counter(taken) == {0: 3, 1: 3}


def test_a_new_prefix_goes_to_the_replica_that_would_begin_it_first() -> None:
    world = World()
    world.set_backlog(0, 2 * SIMILAR_S)
    assert {world.choose(request(*range(at, at + 50))) for at in range(0, 500, 50)} == {1}


def test_a_match_is_worth_a_wait_up_to_the_bound() -> None:
    world = World()
    world.store(1, *range(320))
    again = request(*range(340))
    assert world.choose(again) == 1
    world.set_backlog(1, MAX_LATER_S)
    assert world.choose(again) == 1, "the other one would compute 320 tokens more"
    world.set_backlog(1, MAX_LATER_S + 0.330)
    assert world.choose(again) == 0
    world.set_backlog(0, 0.1)
    assert world.choose(again) == 1, "the bound is relative to the earliest"


def test_a_short_match_is_worth_only_a_short_wait() -> None:
    world = World()
    world.store(1, *range(32))
    again = request(*range(40))
    saved = 32 * TOKEN_S
    world.set_backlog(1, saved + 0.9 * WAIT_FOR_MATCH * saved)
    assert world.choose(again) == 1
    world.set_backlog(1, saved + 1.1 * WAIT_FOR_MATCH * saved)
    assert world.choose(again) == 0


def test_prompts_that_share_only_their_first_tokens_are_new() -> None:
    world = World()
    taken = []
    for user in range(6):
        asked = request(*range(32), *range(1000 * user, 1000 * user + 400))
        taken.append(world.send(asked))
        world.end(asked)
    assert Counter(taken) == {0: 3, 1: 3}


def test_the_longest_match_wins_within_the_bound_and_the_earliest_of_equal_ones() -> None:
    world = World()
    world.store(0, *range(32))
    world.store(1, *range(160))
    world.set_backlog(1, 0.5)
    assert world.choose(request(*range(170))) == 1
    world.store(0, *range(32, 64))
    assert world.choose(request(*range(40), 7)) == 0


def test_a_hot_prefix_is_computed_at_another_replica_once_the_queue_is_long_and_then_shared() -> None:
    world = World()
    world.store(0, *range(480))
    taken = Counter[int]()
    for user in range(40):
        asked = request(*range(480), *range(1000 * user, 1000 * user + 100))
        replica = world.send(asked)
        if 1 not in taken and replica == 1:
            assert taken[0] > 5, "it waits for its match first"
        taken[replica] += 1
    assert min(taken.values()) >= 10


def test_a_prompt_that_was_sent_counts_until_it_is_reported() -> None:
    world = World()
    world.set_backlog(0, 0.5)
    first, second = request(*range(300)), request(*range(300), 5, 6)
    assert world.send(first) == 1
    world.set_backlog(0, 0.0)
    assert world.send(second) == 1
    world.now += 10 * EXPECTED_S
    assert world.choose(request(*range(300), 5)) == 1, "the prompts still wait there"
    world.end(first, second)
    assert world.count_matched(request(*range(300))) == {1: 288}
    world.now += EXPECTED_S
    assert not world.count_matched(request(*range(300)))


def test_the_tokens_that_were_sent_are_backlog_until_the_replica_counts_them() -> None:
    world = World()
    asked = request(*range(400))
    replica = world.send(asked)
    assert (asked.uncached, world.router.measure_backlog(replica)) == (400, 400 * TOKEN_S)
    again = request(*range(410))
    assert world.send(again) == replica and again.uncached == 10
    world.router.note_accepted(asked.request)
    assert world.router.measure_backlog(replica) == 10 * TOKEN_S
    world.end(asked, again)
    world.end(asked)
    assert world.router.measure_backlog(replica) == 0


def test_the_choices_of_a_prompt_are_computed_once() -> None:
    world = World()
    choices = [request(*range(400)) for _ in range(4)]
    assert world.router.measure_backlog(world.send(*choices)) == 400 * TOKEN_S
    assert [each.uncached for each in choices] == [400, 0, 0, 0]


def test_evicted_pages_are_no_match() -> None:
    world = World()
    pages = world.store(1, *range(320))
    assert world.router.find(request(*range(320)), BOTH) == 1
    assert world.report(1, TreeChange(array("i", pages[::-1]).tobytes()))
    assert not world.count_matched(request(*range(320)))


def test_a_lost_report_is_noticed_once_and_the_whole_tree_replaces_all() -> None:
    world = World()
    world.store(0, *range(320))
    world.sequences[0] += 1
    assert not world.report(0)
    assert world.report(0), "the whole tree was requested"
    assert world.report(0, is_whole=True)
    assert not world.count_matched(request(*range(320)))
    world.store(0, *range(160))
    assert world.count_matched(request(*range(320))) == {0: 160}


def test_the_whole_tree_is_requested_again_if_it_does_not_come() -> None:
    world = World()
    world.sequences[0] += 1
    assert not world.report(0)
    world.now += 10
    assert not world.report(0)
    assert world.report(0)


def test_prefixes_of_other_namespaces_and_of_requests_without_cache_do_not_match() -> None:
    world = World()
    world.store(1, *range(320))
    assert world.count_matched(request(*range(320))) == {1: 320}
    assert not world.count_matched(request(*range(320), namespace="other"))
    assert not world.count_matched(request(*range(320), namespace=None))
    unshared = request(*range(900, 1220), namespace=None)
    world.send(unshared)
    assert not world.count_matched(request(*range(900, 1220)))


def test_a_dead_replica_has_no_prefixes_and_no_work() -> None:
    world = World()
    world.store(0, *range(320))
    world.send(request(*range(330)))
    world.router.close(0)
    assert world.router.measure_backlog(0) == 0
    world.router.open(0)
    assert world.router.measure_backlog(0) == 0
    assert not world.count_matched(request(*range(320)))


def test_a_replica_that_has_computed_nothing_counts_as_fast_as_another() -> None:
    """It would otherwise get no new prompt of 400 tokens: the other one computes it in much less than the
    guess."""
    world = World()
    world.token_s = {0: TOKEN_S / 100, 1: None}
    for replica in BOTH:
        world.report(replica)
    chosen = []
    for number in range(4):
        new = request(*range(1000 * number, 1000 * number + 400))
        chosen.append(world.send(new))
        world.end(new)
    assert chosen in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_a_key_with_limits_has_one_replica_and_keys_are_spread() -> None:
    world = World()
    homes = {}
    for number in range(40):
        quota = Quota(f"key{number}", prompt_tokens=40, requests_per_minute=10)
        homes[number] = {world.send(request(*range(at, at + 40), quota=quota)) for at in (0, 100, 200)}
    assert all(len(home) == 1 for home in homes.values())
    spread = Counter(next(iter(home)) for home in homes.values())
    assert min(spread.values()) >= 10 and len(spread) == 2
