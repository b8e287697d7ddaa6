"""Which tokens a choice is scored by."""

from __future__ import annotations

import pytest
from arbora.frontend.language.http_backend import first_scored
from hypothesis import given
from hypothesis import strategies as st

TOKENS = st.lists(st.integers(0, 3), min_size=6, max_size=8)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(TOKENS, min_size=1, max_size=4))
def test_everything_before_is_shared_and_no_more(prompt: list[int], rest: list[list[int]]) -> None:
    candidates = [prompt[:1] + tail for tail in rest]
    first = first_scored(prompt, candidates)
    everything = [prompt, *candidates]
    assert all(tokens[:first] == prompt[:first] for tokens in everything)
    ends = {tuple(tokens[first : first + 1]) for tokens in everything}
    assert len(ends) > 1 or () in ends


def test_a_choice_needs_a_token_before_it() -> None:
    with pytest.raises(ValueError, match=r"needs text before it"):
        first_scored([], [[1], [2]])


def test_a_choice_that_adds_no_token_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match=r"choice 2 adds no token"):
        first_scored([1, 2], [[1, 2, 3], [1, 2]])
