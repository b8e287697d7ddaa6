"""What the drafter finds in a request's own tokens and in earlier replies."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from arbora.kernels.common.token_index import LONG, MAX_MATCH, SHORT, TokenIndex
from arbora.runtime.messages import DRAFT_SOURCES, SlotEnd, SlotSetup
from arbora.runtime.model.drafts import SuffixDrafter, suffix_drafter
from arbora.runtime.sampling_params import SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from step_driver import packed

SLOTS = 6
PARAMS = SamplingParams(max_tokens=64)


def ints(tokens: Sequence[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def start_request(
    drafter: SuffixDrafter, slot: int, prompt: Sequence[int], namespace: str | None = "a"
) -> None:
    drafter.set_up(SlotSetup(slot=slot, sampling=PARAMS, context=packed(prompt), namespace=namespace))


def sample(drafter: SuffixDrafter, slot: int, tokens: Sequence[int]) -> None:
    drafter.add(np.full(len(tokens), slot, np.int32), ints(tokens))


def draft(drafter: SuffixDrafter, slot: int, most: int = 4) -> list[int]:
    drafts = drafter.propose(ints([slot]), ints([most]))
    assert drafts.counts.tolist() == [len(drafts.tokens)]
    tokens: list[int] = drafts.tokens.tolist()
    return tokens


def finish_reply(
    drafter: SuffixDrafter, slot: int, prompt: Sequence[int], reply: Sequence[int], name: str
) -> None:
    start_request(drafter, slot, prompt, name)
    sample(drafter, slot, reply)
    drafter.end(SlotEnd(slot, len(prompt) + len(reply)))


def test_the_tokens_that_followed_the_last_ones_before_are_drafted() -> None:
    drafter = SuffixDrafter(SLOTS)
    start_request(drafter, 2, [9, 1, 2, 3, 4, 5, 6, 7, 8])
    assert draft(drafter, 2) == []
    sample(drafter, 2, [1, 2, 3])
    assert draft(drafter, 2) == []
    sample(drafter, 2, [4])
    assert draft(drafter, 2) == [5, 6, 7, 8]
    assert draft(drafter, 2, 6) == [5, 6, 7, 8, 1, 2]
    assert draft(drafter, 2, 2) == [5, 6]


def test_a_longer_match_comes_before_a_later_one() -> None:
    drafter = SuffixDrafter(SLOTS)
    start_request(drafter, 0, [7, 7, 1, 2, 3, 4, 50, 51, 8, 8, 1, 2, 3, 4, 60, 61, 7, 7, 1, 2, 3, 4])
    assert draft(drafter, 0, 2) == [50, 51]
    sample(drafter, 0, [60, 61, 8, 8, 1, 2, 3, 4])
    assert draft(drafter, 0, 2) == [60, 61]


def test_a_loop_is_drafted_beyond_the_last_token() -> None:
    drafter = SuffixDrafter(SLOTS)
    start_request(drafter, 0, [1, 2, 3, 1, 2, 3, 1])
    assert draft(drafter, 0, 7) == [2, 3, 1, 2, 3, 1, 2]


def test_replies_are_drafted_from_in_their_namespace_only() -> None:
    drafter = SuffixDrafter(SLOTS)
    finish_reply(drafter, 0, [90, 91, 92, 93], [1, 2, 3, 4, 5, 6, 7], "a")
    for namespace, found in (("a", [5, 6, 7]), ("b", []), (None, [])):
        start_request(drafter, 1, [80, 1, 2, 3, 4], namespace)
        assert draft(drafter, 1, 9) == found
    start_request(drafter, 1, [80, 91, 92, 93], "a")
    assert draft(drafter, 1) == []
    start_request(drafter, 1, [90, 91, 92, 93], "a")
    assert draft(drafter, 1) == [1, 2, 3, 4]


def test_a_request_without_a_namespace_leaves_no_reply() -> None:
    drafter = SuffixDrafter(SLOTS)
    start_request(drafter, 0, [9], None)
    sample(drafter, 0, [1, 2, 3, 4, 5])
    drafter.end(SlotEnd(0, 6))
    for namespace in ("a", None):
        start_request(drafter, 1, [1, 2, 3, 4], namespace)
        assert draft(drafter, 1) == []


def test_running_requests_draft_from_a_reply_that_ends_and_not_from_its_dropped_tokens() -> None:
    drafter = SuffixDrafter(SLOTS)
    start_request(drafter, 1, [80, 1, 2, 3, 4])
    start_request(drafter, 0, [9])
    sample(drafter, 0, [1, 2, 3, 4, 5, 6, 7])
    drafter.end(SlotEnd(0, 6))
    assert draft(drafter, 1, 9) == [5]


@pytest.mark.parametrize("order", [("", "a"), ("", None), ("a", None)])
def test_forgotten_replies_are_not_drafted_from(order: tuple[str, str | None]) -> None:
    drafter = SuffixDrafter(SLOTS)
    for name in ("a", "b"):
        finish_reply(drafter, 0, [9], [1, 2, 3, 4, 5, 6], name)
    start_request(drafter, 1, [1, 2, 3, 4], "a")
    start_request(drafter, 2, [1, 2, 3, 4], "b")
    drafter.forget(*order)
    assert draft(drafter, 1) == []
    assert draft(drafter, 2) == ([] if order == ("", None) else [5, 6])
    finish_reply(drafter, 0, [9], [5, 6, 7, 8, 9], "c")  # which may take the place of the forgotten replies
    sample(drafter, 1, [5, 6, 7, 8])
    assert draft(drafter, 1) == []


def test_tokens_that_forced_ones_superseded_are_forgotten() -> None:
    drafter = SuffixDrafter(SLOTS)
    start_request(drafter, 0, [1, 2, 3, 4, 5, 6])
    sample(drafter, 0, [20, 21, 22])
    setup = SlotSetup(slot=0, sampling=PARAMS, context=packed([1, 2, 3, 4]), context_start=7, namespace="a")
    drafter.set_up(setup)
    assert draft(drafter, 0) == [5, 6, 20, 1]


def start_with_prediction(drafter: SuffixDrafter, prompt: Sequence[int], prediction: Sequence[int]) -> None:
    setup = SlotSetup(
        slot=0, sampling=PARAMS, context=packed(prompt), prediction=packed(prediction), namespace="a"
    )
    drafter.set_up(setup)


def test_a_prediction_is_drafted_from_its_start_and_after_a_change() -> None:
    drafter = SuffixDrafter(SLOTS)
    start_with_prediction(drafter, [90, 91, 92, 93], [1, 2, 3, 4, 5, 6, 7, 8])
    assert draft(drafter, 0) == [1, 2, 3, 4]
    sample(drafter, 0, [1, 2, 77, 3, 4, 5, 6])
    drafts = drafter.propose(ints([0]), ints([4]))
    assert (drafts.tokens.tolist(), drafts.sources.tolist()) == ([7, 8], [DRAFT_SOURCES.index("prediction")])
    sample(drafter, 0, [7, 8, 90, 91, 92, 93])
    assert draft(drafter, 0, 2) == [1, 2]
    assert drafter.propose(ints([0]), ints([2])).sources.tolist() == [DRAFT_SOURCES.index("request")]


def test_a_prediction_stays_before_tokens_that_are_superseded_and_leaves_no_reply() -> None:
    drafter = SuffixDrafter(SLOTS)
    start_with_prediction(drafter, [90, 91, 92, 93], [1, 2, 3, 4, 5, 6])
    sample(drafter, 0, [50, 51, 52])
    drafter.set_up(SlotSetup(slot=0, sampling=PARAMS, position=4, context=packed([2, 3, 4]), context_start=5))
    assert draft(drafter, 0) == []
    sample(drafter, 0, [5])
    assert draft(drafter, 0) == [6]
    drafter._namespaces[0] = "a"
    drafter.end(SlotEnd(0, 9))
    start_request(drafter, 1, [1, 2, 3, 4])
    assert draft(drafter, 1) == []
    start_request(drafter, 1, [50, 2, 3, 4])
    assert draft(drafter, 1) == [5]


def test_a_full_namespace_forgets_its_oldest_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_drafter, "FIRST_REPLIES", 16)
    monkeypatch.setattr(suffix_drafter, "MAX_NAMESPACE_TOKENS", 64)
    drafter = SuffixDrafter(SLOTS)
    for start in range(100, 200, 10):
        finish_reply(drafter, 0, [], range(start, start + 10), "a")
        start_request(drafter, 1, range(start, start + 4), "a")
        assert draft(drafter, 1) == [*range(start + 4, start + 8)]
    start_request(drafter, 1, [100, 101, 102, 103], "a")
    assert draft(drafter, 1) == []
    start_request(drafter, 1, [160, 161, 162, 163], "a")
    assert draft(drafter, 1) == [164, 165, 166, 167]


def test_the_namespace_that_was_extended_longest_ago_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_drafter, "FIRST_REPLIES", 16)
    monkeypatch.setattr(suffix_drafter, "MAX_REPLY_TOKENS", 32)
    drafter = SuffixDrafter(SLOTS)
    for name in ("a", "b", "a", "c"):
        finish_reply(drafter, 0, [], [1, 2, 3, 4, 5], name)
    found = []
    for name in ("a", "b", "c"):
        start_request(drafter, 1, [1, 2, 3, 4], name)
        found.append(draft(drafter, 1))
    assert found == [[5], [], [5]]


def longest_match(tokens: Sequence[int]) -> int:
    """Of the last tokens of a text with an earlier place in it."""
    most = 0
    for end in range(1, len(tokens)):
        equal = 0
        while equal < min(end, MAX_MATCH) and tokens[end - 1 - equal] == tokens[-1 - equal]:
            equal += 1
        most = max(most, equal)
    return most


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 30), kinds=st.integers(2, 5), cuts=st.booleans())
def test_a_draft_follows_a_place_with_the_same_last_tokens(seed: int, kinds: int, cuts: bool) -> None:
    chosen, drafter = random.Random(seed), SuffixDrafter(1)
    text = [chosen.randrange(kinds) for _ in range(chosen.randint(1, 40))]
    start_request(drafter, 0, text)
    for _ in range(12):
        more = [chosen.randrange(kinds) for _ in range(chosen.randint(1, 6))]
        if cuts and chosen.random() < 0.3:
            start = chosen.randint(1, len(text))
            setup = SlotSetup(slot=0, sampling=PARAMS, context=packed(more), context_start=start)
            drafter.set_up(setup)
            text = text[:start] + more
        else:
            sample(drafter, 0, more)
            text += more
        found, match = draft(drafter, 0, 3), longest_match(text)
        if match < SHORT:
            assert found == []
        elif found:
            at_least = SHORT if cuts or match < LONG else LONG  # a cut may hide a longer match
            ends = [
                end for end in range(at_least, len(text)) if text[end - at_least : end] == text[-at_least:]
            ]
            assert any((text + 3 * text[end:])[end : end + 3] == found for end in ends)
        else:
            assert cuts, "without removed tokens a match is found"


def test_a_text_overwrites_its_oldest_tokens() -> None:
    index = TokenIndex(1)
    index.start(0, ints(range(20)), 16)
    assert index.capacity(0) == 16
    index.append(0, ints(range(20, 36)))
    assert index.read(0, 20).tolist() == [*range(20, 36)]
