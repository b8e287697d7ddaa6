"""Merges the answers of all ranks' page stores to the same question into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ..messages import (
    PagesFetched,
    PagesForgotten,
    PagesFound,
    PagesLocated,
    SchedulerInbox,
)

Answer = PagesFound | PagesFetched | PagesForgotten | PagesLocated
T = TypeVar("T", bound=Answer)


@dataclass
class RankAnswers:
    """The answers that are not complete. Each rank's page store has its part of every page, and all get the
    same questions in the same order. A page can be restored if all stores have their parts of it.

    Each store answers each question once, so an answer is complete when there are as many as ranks.
    """

    ranks: int
    end_fetch: Callable[[int], None]
    """ends a fetch at all ranks"""
    _incomplete: dict[object, list[Any]] = field(default_factory=dict)

    def merge(self, messages: list[SchedulerInbox]) -> list[SchedulerInbox]:
        """Returns the messages, with one in place of each complete answer. Other answers are kept until they
        are complete."""
        if self.ranks == 1:
            return messages
        return [merged for message in messages for merged in self._take(message)]

    def _take(self, message: SchedulerInbox) -> Iterator[SchedulerInbox]:
        match message:
            case PagesFound(fetch=fetch):
                if found := self._complete(message, fetch):
                    yield self._choose_found(found)
            case PagesFetched(fetch=fetch):
                if fetched := self._complete(message, fetch):
                    yield min(fetched, key=lambda each: each.pages)
            case PagesForgotten():
                if forgotten := self._complete(message, message.client, message.dropped.query):
                    yield _average(forgotten)
            case PagesLocated(question=question):
                if located := self._complete(message, question):
                    yield located[0]
            case _:
                yield message

    def _complete(self, answer: T, *question: int) -> list[T]:
        """Returns all ranks' answers if this is the last one, and nothing otherwise."""
        place = type(answer), question
        answers: list[T] = self._incomplete.setdefault(place, [])
        answers.append(answer)
        if len(answers) < self.ranks:
            return []
        del self._incomplete[place]
        return answers

    def _choose_found(self, answers: list[PagesFound]) -> PagesFound:
        """Returns the answer with the fewest pages, which all ranks have. If ranks have found different ends,
        which needs windows or states, nothing is found."""
        fewest = min(answers, key=lambda each: each.pages)
        if any(each.end != fewest.end for each in answers):
            fewest = PagesFound(fewest.fetch, 0)
        if not fewest.pages:
            self.end_fetch(fewest.fetch)
        return fewest


def _average(answers: Sequence[PagesForgotten]) -> PagesForgotten:
    """Returns an answer with the mean of the ranks' counts, because each rank counts its parts of pages."""
    dropped = [each.dropped for each in answers]

    def average(counts: Sequence[int | None]) -> int | None:
        known = [each for each in counts if each is not None]
        return sum(known) // len(counts) if len(known) == len(counts) else None

    host = average([each.host_pages for each in dropped])
    assert host is not None
    return PagesForgotten(
        answers[0].client,
        msgspec.structs.replace(
            dropped[0],
            host_pages=host,
            disk_pages=average([each.disk_pages for each in dropped]),
            remote_pages=average([each.remote_pages for each in dropped]),
        ),
    )
