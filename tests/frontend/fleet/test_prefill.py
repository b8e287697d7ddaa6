"""Prefill apart from decode: pages travel between simulated replicas, and each request is served whole."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from arbora.frontend.fleet.prefill import PageMoves, PrefillServers
from arbora.frontend.fleet.replica import Shape
from arbora.frontend.fleet.simulation import Simulation
from arbora.frontend.fleet.step_cost import StepCost
from arbora.frontend.fleet.workload import Arrival, make_conversations
from arbora.radix_cache import KEY_BYTES
from arbora.runtime.messages import (
    Abort,
    EndFetch,
    FetchPages,
    FindPages,
    Generate,
    Output,
    Outputs,
    PagesFetched,
    PagesFound,
    Refused,
    SavedPages,
    SavePages,
)

SHAPE = Shape(pages=4000, page_size=16)
COST = StepCost(base=8.0, prefill=0.05, row=0.1, context=1e-5)
PAGE_S = 1e-4


def one(at: float, first: int, length: int, output: int) -> Arrival:
    return Arrival(at, range(first, first + -(-length // 16)), 16, length, output)


def check_whole(ran: Simulation, arrivals: Sequence[Arrival]) -> None:
    """Each request has ended once with the tokens that it asked for, and holds nothing any more."""
    assert all(served.ends == 1 for served in ran.served)
    assert [served.tokens for served in ran.served] == [arrival.output for arrival in arrivals]
    for replica in ran.replicas:
        assert replica.scheduler.idle and not replica.is_running
        assert replica.cache.available() == replica.cache.num_pages, "no request holds a page"
    for arrival, served in zip(arrivals, ran.served, strict=True):
        assert arrival.at < served.first_at <= served.last_at


def test_the_first_token_takes_prefill_then_the_transfer_then_a_step_of_decode() -> None:
    # A step takes 10 ms, and 0.1 ms for each prompt token. The prefill replica computes the 32 full pages in
    # chunks of 128, 128 and 256 tokens, and saves them together. The decode replica restores them in the step
    # that computes the other 8 tokens.
    cost, page_s = StepCost(base=10.0, prefill=0.1), 0.002
    ran = Simulation(SHAPE, cost, [one(1.0, 0, 520, 3)], prefill=PrefillServers(1, page_s))
    figures = ran.run()
    (served,) = ran.served
    prefill_s, transfer_s, decode_s = 3 * 0.010 + 512 * 0.0001, 32 * page_s, 0.010 + 8 * 0.0001
    assert ran.replicas[1].usage.busy_s == pytest.approx(prefill_s)
    assert figures.prefill_s is not None
    assert figures.prefill_s.p50 == pytest.approx(prefill_s + transfer_s)
    assert served.first_at == pytest.approx(1.0 + prefill_s + transfer_s + decode_s)
    assert list(ran.gaps_s) == pytest.approx([0.010] * 2)
    assert served.cached == 512, "the server counts pages of a prefill server as cached"
    assert figures.cached_tokens == 0, "but some replica has computed them"


def test_pages_of_a_long_prompt_travel_while_the_rest_is_computed() -> None:
    cost, page_s = StepCost(base=10.0, prefill=0.1), 0.001
    ran = Simulation(SHAPE, cost, [one(0.0, 0, 8200, 1)], prefill=PrefillServers(1, page_s))
    figures = ran.run()
    transfer_s, prefill_s = 512 * page_s, ran.replicas[1].usage.busy_s
    assert figures.prefill_s is not None
    assert max(transfer_s, prefill_s) < figures.prefill_s.p50 < prefill_s + transfer_s / 2


def test_the_time_to_the_first_token_grows_with_the_time_of_a_transfer() -> None:
    def measure(page_s: float) -> float:
        ran = Simulation(SHAPE, COST, [one(0.0, 0, 2000, 2)], prefill=PrefillServers(1, page_s))
        return ran.run().ttft_s.p50

    assert measure(0.02) - measure(0.01) == pytest.approx(125 * 0.01, rel=0.1)


def test_a_short_prompt_is_computed_by_the_decode_replica() -> None:
    ran = Simulation(SHAPE, COST, [one(0.0, 0, 500, 2)], prefill=PrefillServers(1, PAGE_S))
    ran.run()
    assert ran.replicas[1].usage.busy_s == 0
    check_whole(ran, [one(0.0, 0, 500, 2)])


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 3), (3, 1)])
def test_each_request_is_answered_once_and_whole(prefill: int, decode: int) -> None:
    arrivals = make_conversations(rate=20.0, requests=150)
    ran = Simulation(SHAPE, COST, arrivals, decode, prefill=PrefillServers(prefill, PAGE_S))
    figures = ran.run()
    check_whole(ran, arrivals)
    assert figures.output_tokens == sum(arrival.output for arrival in arrivals)
    counted = [replica.scheduler.stats() for replica in ran.replicas]
    assert sum(stats.output_tokens for stats in counted[:decode]) == figures.output_tokens
    assert all(replica.usage.busy_s > 0 for replica in ran.replicas)
    assert {served.replica for served in ran.served} == set(range(decode))


@pytest.mark.parametrize("seed", range(3))
def test_full_caches_of_both_roles_still_serve_all(seed: int) -> None:
    source = random.Random(seed)
    arrivals = [
        one(0.02 * at, 200 * source.randrange(20), source.randrange(100, 1500), 1 + source.randrange(60))
        for at in range(80)
    ]
    shape = Shape(pages=220, page_size=16, slots=8)
    ran = Simulation(shape, COST, arrivals, 2, prefill=PrefillServers(2, PAGE_S))
    ran.run()
    check_whole(ran, arrivals)


def test_a_simulation_with_roles_can_be_repeated() -> None:
    arrivals = make_conversations(rate=20.0, requests=80)
    first, again = (Simulation(SHAPE, COST, arrivals, 2, prefill=PrefillServers(1, PAGE_S)) for _ in range(2))
    assert first.run() == again.run()


def test_the_next_turn_of_a_conversation_computes_only_what_the_decode_replica_lacks() -> None:
    ran = Simulation(
        SHAPE, COST, [one(0.0, 0, 1600, 2), one(5.0, 0, 1700, 2)], prefill=PrefillServers(1, PAGE_S)
    )
    ran.run()
    decode, prefill = (replica.scheduler.stats().prompt_tokens_computed for replica in ran.replicas)
    assert prefill == 1584, "the second prompt lacks fewer than 512 tokens"
    assert decode == 16 + 100


def test_replies_go_on_more_evenly_beside_long_prompts_than_with_replicas_that_do_both() -> None:
    chats = [one(0.05 * at, 100_000 + 100 * at, 200, 100) for at in range(40)]
    long = [one(0.3 * at, 1000 * at, 12_000, 2) for at in range(8)]
    arrivals = sorted([*chats, *long], key=lambda arrival: arrival.at)
    both = Simulation(SHAPE, COST, arrivals, 2).run()
    apart = Simulation(SHAPE, COST, arrivals, 1, prefill=PrefillServers(1, PAGE_S)).run()
    assert apart.itl_s.p99 < both.itl_s.p99 / 2
    assert apart.output_tokens == both.output_tokens


def test_a_prompt_goes_to_the_prefill_replica_that_owes_the_fewest_pages() -> None:
    arrivals = [one(0.001 * at, 1000 * at, 2000, 2) for at in range(4)]
    ran = Simulation(SHAPE, COST, arrivals, prefill=PrefillServers(2, PAGE_S))
    ran.run()
    assert [replica.scheduler.stats().prompt_tokens_computed for replica in ran.replicas[1:]] == [
        2 * 1984
    ] * 2


KEYS = b"".join(bytes([number] * KEY_BYTES) for number in range(1, 41))
"""of 40 pages"""


def ask(moves: PageMoves, fetch: int = 1) -> Generate:
    """Has the decode replica, which is alone, ask for the pages of `KEYS` and take them."""
    find = FindPages(fetch, "", KEYS, prompt=b"\0\0\0\0" * 640)
    request, found = moves.take(0, [find], 0.0, 0.0)
    assert found == (0.0, 0, PagesFound(fetch, 40))
    assert not list(moves.take(0, [FetchPages(fetch)], 0.0, 0.0))
    assert isinstance(request.message, Generate)
    return request.message


def save(pages: int) -> SavePages:
    return SavePages([SavedPages("", KEYS[: pages * KEY_BYTES], b"")])


def end(request: Generate) -> Outputs:
    return Outputs([Output(request.request, b"", finish="length")])


def test_a_decode_replica_goes_on_with_the_pages_that_a_prefill_replica_has_computed() -> None:
    moves = PageMoves(1, PrefillServers(1, page_s=0.01))
    request = ask(moves)
    assert not list(moves.take(1, [save(30)], now=1.0, saved_at=1.5))
    # The prefill replica has evicted the other pages before they were saved.
    assert list(moves.take(1, [end(request)], now=2.0, saved_at=2.0)) == [(2.0, 0, PagesFetched(1, 30))]
    assert list(moves.waits_s) == [2.0]


def test_a_decode_replica_computes_a_prompt_that_the_prefill_replica_refuses() -> None:
    moves = PageMoves(1, PrefillServers(1, page_s=0.01))
    refused = Refused(ask(moves).request, 400, "too long", None, "too_long")
    assert list(moves.take(1, [refused], 1.0, 1.0)) == [(1.0, 0, PagesFetched(1, 0))]


def test_a_fetch_that_ends_early_ends_the_request_of_the_prefill_replica() -> None:
    moves = PageMoves(1, PrefillServers(2, page_s=0.01))
    request = ask(moves)
    assert not list(moves.take(1, [save(10)], 1.0, 1.0))
    assert list(moves.take(0, [EndFetch(1)], 1.0, 1.0)) == [(1.0, 1, Abort(request.request))]
    assert not list(moves.take(1, [save(40), end(request)], 2.0, 2.0))


def test_transfers_of_a_replica_follow_each_other() -> None:
    moves = PageMoves(1, PrefillServers(2, page_s=0.01))
    for fetch, begin, end_at in ((1, 1.0, 1.4), (2, 1.1, 1.8)):
        ask(moves, fetch)
        [delivery] = moves.take(fetch, [save(40)], begin, begin)
        assert delivery.message == PagesFetched(fetch, 40)
        assert delivery.at == pytest.approx(end_at)
