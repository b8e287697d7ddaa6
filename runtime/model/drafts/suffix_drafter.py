"""Drafts what followed the latest tokens where they stood before: in the request, or in earlier replies."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from ....kernels.common.drafts import Drafts
from ....kernels.common.token_index import END, LONG, NO_TEXT, TokenIndex, find_drafts
from ...messages import SlotEnd, SlotSetup

MAX_TEXT_GROWTH = 2048
"""A text has place for so many tokens of a reply. A longer reply overwrites the prompt's first tokens."""
MAX_REPLIES = 64
"""most namespaces whose replies are kept"""
FIRST_REPLIES = 1 << 12
MAX_NAMESPACE_TOKENS = 1 << 18
"""most tokens of replies that are kept in a namespace"""
MAX_REPLY_TOKENS = 1 << 20
"""most tokens of replies that are kept in all, at about 36 bytes each"""
BEFORE_REPLY = LONG
"""tokens of a prompt that are kept with the reply, so that its first tokens are found"""


class SuffixDrafter:
    """A `Drafter`. Replies are kept by namespace; a request without one neither reads nor leaves any."""

    def __init__(self, slots: int) -> None:
        self._texts, self._replies = TokenIndex(slots), TokenIndex(MAX_REPLIES)
        self._namespaces: list[str | None] = [None] * slots
        """of each slot's request"""
        self._predicted = np.zeros(slots, np.int64)
        """[slots]: how many tokens at the start of each slot's text are the client's prediction"""
        self._starts = np.zeros(slots, np.int64)
        """[slots]: where the replies begin in the slots' texts"""
        self._replies_of = np.full(slots, NO_TEXT, np.int32)
        """[slots]: the number of the replies from which the slot may draft"""
        self._numbers: OrderedDict[str, int] = OrderedDict()
        """the number of each namespace's replies, those that were extended last at the end"""
        self._free = list(range(MAX_REPLIES))

    def set_up(self, setup: SlotSetup) -> None:
        slot, tokens = setup.slot, np.frombuffer(setup.context, np.int32)
        prompt = setup.context_start + len(tokens) - setup.position
        if setup.context_start:
            self._texts.cut(slot, int(self._predicted[slot]) + setup.context_start)
            self._texts.append(slot, tokens)
        else:
            prediction = _follow_prompt(tokens[:prompt], np.frombuffer(setup.prediction, np.int32))
            growth = min(MAX_TEXT_GROWTH, setup.sampling.max_tokens)
            text = np.concatenate([prediction, tokens])
            self._texts.start(slot, text, len(text) + growth)
            self._predicted[slot] = len(prediction)
        self._namespaces[slot] = setup.namespace
        self._starts[slot] = self._predicted[slot] + prompt
        number = None if setup.namespace is None else self._numbers.get(setup.namespace)
        self._replies_of[slot] = NO_TEXT if number is None else number

    def add(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        self._texts.append_each(slots, tokens)

    def end(self, end: SlotEnd) -> None:
        namespace = self._namespaces[end.slot]
        if namespace is None:
            return
        ends_at = int(self._predicted[end.slot]) + end.length
        self._texts.cut(end.slot, ends_at)
        length, capacity = self._texts.length(end.slot), self._texts.capacity(end.slot)
        start = max(0, int(self._starts[end.slot]) - BEFORE_REPLY, length - capacity)
        reply = self._texts.read(end.slot, start)
        if ends_at > self._starts[end.slot]:
            self._keep(namespace, np.append(reply, np.int32(END)))

    def forget(self, scope: str, namespace: str | None) -> None:
        for name in list(self._numbers):
            if name == namespace if namespace is not None else name.startswith(scope):
                self._drop(name)

    def propose(self, slots: NDArray[np.int32], most: NDArray[np.int32]) -> Drafts:
        counts, sources, matched = np.zeros((3, len(slots)), np.int32)
        tokens = np.empty(int(most.sum()), np.int32)
        found_in = self._texts.table, self._replies.table, slots, self._replies_of, self._predicted
        total = find_drafts(*found_in, most, counts, tokens, sources, matched)
        return Drafts(slots, counts, tokens[:total], sources, matched)

    def _keep(self, namespace: str, reply: NDArray[np.int32]) -> None:
        number = self._numbers.get(namespace)
        if number is None:
            if not self._free:
                self._drop(next(iter(self._numbers)))
            number = self._numbers[namespace] = self._free.pop()
            self._replies.start(number, reply[:0], FIRST_REPLIES)
            of_namespace = [slot for slot, name in enumerate(self._namespaces) if name == namespace]
            self._replies_of[of_namespace] = number
        self._numbers.move_to_end(namespace)
        wanted, capacity = self._replies.length(number) + len(reply), self._replies.capacity(number)
        if wanted > capacity and capacity < MAX_NAMESPACE_TOKENS:
            kept = self._replies.read(number, 0)
            self._replies.start(number, kept, min(wanted, MAX_NAMESPACE_TOKENS))
        self._replies.append(number, reply[-MAX_NAMESPACE_TOKENS:])
        while len(self._numbers) > 1 and self._count_places() > MAX_REPLY_TOKENS:
            self._drop(next(iter(self._numbers)))

    def _count_places(self) -> int:
        return sum(self._replies.capacity(number) for number in self._numbers.values())

    def _drop(self, namespace: str) -> None:
        number = self._numbers.pop(namespace)
        self._replies.drop(number)
        self._replies_of[self._replies_of == number] = NO_TEXT
        self._free.append(number)


def _follow_prompt(prompt: NDArray[np.int32], prediction: NDArray[np.int32]) -> NDArray[np.int32]:
    """The prediction after the prompt's last tokens, so that its first tokens are found, and an end."""
    if not len(prediction):
        return prediction
    return np.concatenate([prompt[-BEFORE_REPLY:], prediction, np.full(1, END, np.int32)])
