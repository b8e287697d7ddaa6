"""A request goes to the replica that has its prefix, unless that one has much more to do than another."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise

from arbora.frontend.core.replica import router as router_module
from arbora.frontend.core.replica.router import REPLY_TOKENS, Router, cut_prefixes
from arbora.runtime.api_keys import Quota
from arbora.runtime.messages import Generate
from arbora.runtime.sampling_params import SamplingParams
from fake_scheduler import packed
from pytest import MonkeyPatch

numbers = count()
BOTH = (0, 1)


def request(
    *tokens: int, namespace: str | None = "", quota: Quota | None = None, name: str | None = None
) -> Generate:
    sampling = SamplingParams(max_tokens=10)
    id = f"r{next(numbers)}-0" if name is None else name
    return Generate(id, 0, packed(tokens), sampling, namespace=namespace, quota=quota)


def send(router: Router, *requests: Generate) -> int:
    """Sends a request as the client does. Returns its replica."""
    replica = router.choose(requests, BOTH)
    router.send(requests, replica)
    return replica


def finish(router: Router, *requests: Generate) -> None:
    for each in requests:
        router.note_end(each.request)


def test_prompts_without_a_known_prefix_go_to_each_replica_in_turn() -> None:
    router = Router("cpu")
    taken = []
    for first in range(6):
        asked = request(*range(100 * first, 100 * first + 50))
        taken.append(send(router, asked))
        finish(router, asked)
    assert Counter(taken) == {0: 3, 1: 3}


def test_open_work_is_divided_by_its_tokens() -> None:
    router = Router("cpu")
    assert send(router, request(*range(1000))) == 0
    assert [send(router, request(*range(at, at + 100))) for at in range(5000, 5800, 100)] == [1] * 8


def test_a_computed_prompt_is_no_backlog_but_its_open_reply_is() -> None:
    router = Router("cpu")
    asked = request(*range(1000))
    send(router, asked)
    assert router.wait(0) == 1000 + REPLY_TOKENS
    router.note_computed(asked.request)
    assert router.wait(0) == REPLY_TOKENS
    finish(router, asked)
    finish(router, asked)
    assert router.wait(0) == 0


def test_the_choices_of_a_prompt_are_computed_once() -> None:
    router = Router("cpu")
    choices = [request(*range(400), name=f"r-{number}") for number in range(4)]
    assert router.wait(send(router, *choices)) == 400 + 4 * REPLY_TOKENS


def test_the_next_turn_of_a_conversation_goes_where_the_last_one_went() -> None:
    router = Router("cpu")
    turns: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for turn in range(1, 6):
        for first, taken in turns.items():
            asked = request(*range(1000 * first, 1000 * first + 100 * turn))
            taken.append(send(router, asked))
            finish(router, asked)
    assert all(len(set(taken)) == 1 for taken in turns.values())
    assert {taken[0] for taken in turns.values()} == {0, 1}


def test_a_busy_replica_loses_a_prefix_to_an_idle_one_which_then_has_it_too() -> None:
    router = Router("cpu")
    conversation = request(*range(500))
    send(router, conversation)
    finish(router, conversation)
    busy = request(*range(10_000, 11_000))
    router.send([busy], 0)
    assert send(router, request(*range(510))) == 0, "1,000 tokens are within three times the match"
    router.send([request(*range(20_000, 21_500))], 0)
    moved = request(*range(510))
    assert send(router, moved) == 1
    finish(router, moved)
    assert send(router, request(*range(520))) == 1


def test_no_match_is_worth_a_longer_wait_than_the_bound() -> None:
    router = Router("cpu")
    long = request(*range(4000))
    send(router, long)
    finish(router, long)
    router.send([request(*range(10_000, 10_000 + 4000 + 1700))], 0)
    assert router.choose([request(*range(4000))], BOTH) == 0
    router.send([request(*range(20_000, 20_200))], 0)
    assert router.choose([request(*range(4000))], BOTH) == 1


def test_prefixes_of_other_namespaces_and_of_requests_without_cache_do_not_match() -> None:
    router = Router("cpu")
    router.send([request(*range(500))], 1)
    router.forget(2)
    assert router.find(request(*range(500)), BOTH) == 1
    assert router.find(request(*range(500), namespace="other"), BOTH) == 0
    assert list(cut_prefixes(request(*range(500), namespace=None))) == []


def test_a_dead_replica_has_no_prefixes_and_no_work() -> None:
    router = Router("cpu")
    router.send([request(*range(500))], 0)
    router.forget(0)
    assert router.wait(0) == 0
    router.send([request(*range(600))], 1)
    assert router.choose([request(*range(700))], BOTH) == 1


def test_a_key_with_limits_has_one_replica_and_keys_are_spread() -> None:
    router = Router("cpu")
    homes = {}
    for number in range(40):
        quota = Quota(f"key{number}", prompt_tokens=40, requests_per_minute=10)
        homes[number] = {send(router, request(*range(at, at + 40), quota=quota)) for at in (0, 100, 200)}
    assert all(len(home) == 1 for home in homes.values())
    spread = Counter(next(iter(home)) for home in homes.values())
    assert min(spread.values()) >= 10 and len(spread) == 2


def test_prefixes_are_cut_at_the_same_places_in_all_prompts_and_not_too_often() -> None:
    short, long = request(*range(1000)), request(*range(12_000))
    ends = [prefix.tokens for prefix in cut_prefixes(long)]
    assert ends[:9] == [16, 32, 48, 64, 80, 96, 112, 128, 144]
    assert len(ends) < 80
    assert all(end - start <= max(16, start / 4) for start, end in pairwise(ends))
    assert [*cut_prefixes(short)] == [*cut_prefixes(long)][: len([*cut_prefixes(short)])]


def test_the_number_of_remembered_prefixes_is_bounded(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "MAX_KEYS", 20)
    router = Router("cpu")
    first, last = request(*range(160)), request(*range(1000, 1410))
    router.send([first], 1)
    assert router.find(first, BOTH) == 1
    router.send([last], 1)
    assert len(router._known[1]) == 20
    assert router.find(last, BOTH) == 1
    assert router.find(first, BOTH) == 0
