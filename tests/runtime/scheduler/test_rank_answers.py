"""The answers of all ranks' page stores become one, which any rank could have given."""

from __future__ import annotations

import random

from arbora.runtime.messages import (
    CacheDropped,
    PagesFetched,
    PagesForgotten,
    PagesFound,
    PagesInTiers,
    PagesLocated,
    SchedulerInbox,
)
from arbora.runtime.scheduler.rank_answers import RankAnswers
from hypothesis import given
from hypothesis import strategies as some


@given(
    pages=some.lists(some.lists(some.integers(0, 9), min_size=3, max_size=3), max_size=8),
    seed=some.integers(0, 99),
)
def test_what_all_ranks_have_is_found_once_in_any_order(pages: list[list[int]], seed: int) -> None:
    ended: list[int] = []
    answers = RankAnswers(3, ended.append)
    sent = [PagesFound(fetch, count) for fetch, counts in enumerate(pages) for count in counts]
    random.Random(seed).shuffle(sent)
    merged = [each for message in sent for each in answers.merge([message])]
    found = {each.fetch: each.pages for each in merged if isinstance(each, PagesFound)}
    assert len(merged) == len(pages)
    assert found == {fetch: min(counts) for fetch, counts in enumerate(pages)}
    assert sorted(ended) == [fetch for fetch, counts in enumerate(pages) if not min(counts)]
    assert not answers._incomplete


def test_ranks_that_have_found_different_ends_have_found_nothing() -> None:
    ended: list[int] = []
    answers = RankAnswers(2, ended.append)
    assert answers.merge([PagesFound(1, 8, 5), PagesFound(1, 8, 5)]) == [PagesFound(1, 8, 5)]
    assert answers.merge([PagesFound(2, 8, 5), PagesFound(2, 6, 3)]) == [PagesFound(2, 0)]
    assert answers.merge([PagesFound(3, 8, -1), PagesFound(3, 0)]) == [PagesFound(3, 0)]
    assert ended == [2, 3]


def test_fetches_are_as_long_as_the_shortest_and_other_answers_come_once() -> None:
    answers = RankAnswers(2, lambda fetch: None)
    assert answers.merge([PagesFetched(1, 4), PagesFetched(2, 5)]) == []
    assert answers.merge([PagesFetched(2, 3), PagesFetched(1, 6)]) == [PagesFetched(2, 3), PagesFetched(1, 4)]
    located = PagesLocated(1, [PagesInTiers(3, 2, 1)])
    assert answers.merge([located, located]) == [located]
    dropped: list[SchedulerInbox] = [
        PagesForgotten(4, CacheDropped(9, 5, 80, host_pages=7, disk_pages=disk, remote_pages=remote))
        for disk, remote in ((2, 12), (2, 0), (None, 0))
    ]
    assert answers.merge(dropped[:2]) == [
        PagesForgotten(4, CacheDropped(9, 5, 80, host_pages=7, disk_pages=2, remote_pages=6))
    ]
    assert answers.merge(dropped[1:]) == [
        PagesForgotten(4, CacheDropped(9, 5, 80, host_pages=7, disk_pages=None, remote_pages=0))
    ]


def test_a_single_rank_answers_itself() -> None:
    answers = RankAnswers(1, lambda fetch: None)
    messages: list[SchedulerInbox] = [PagesFound(1, 0), PagesFetched(2, 5)]
    assert answers.merge(messages) == messages
