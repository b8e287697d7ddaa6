"""Explanations of prompts that are compared with made-up earlier ones."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from arbora.frontend.core.cache_misses.explanation import (
    ONCE_CACHED,
    PromptComparison,
    count_by_cause,
    escape,
    explain,
)
from arbora.frontend.core.cache_misses.outline import NO_OUTLINE, Outline, outline_of
from arbora.frontend.core.cache_misses.recent_prompts import Place, RecentPrompts
from arbora.frontend.core.cache_misses.repeated import count_repeated_tokens
from hypothesis import given
from hypothesis import strategies as st

PLACE = Place("", "")
PAGE = 4
IDS = st.lists(st.integers(0, 3), max_size=60)


def packed(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def decode(tokens: bytes) -> str:
    """One character for each token: its id is the character's code."""
    return "".join(map(chr, array("i", tokens)))


def text(written: str) -> bytes:
    return packed(list(map(ord, written)))


def rendered(messages: Sequence[dict[str, Any]]) -> str:
    return "".join(f"<{each['role']}>{each['content']}\n" for each in messages)


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def asked(
    now: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]], shown: str | None = None, reply: str = ""
) -> PromptComparison:
    """The question about a prompt of messages; `before` was the earlier one, and `reply` its reply.

    `shown` is the prompt's text if the template renders it in another way.
    """
    recent = RecentPrompts()
    seen = recent.add(PLACE, text(rendered(before)), outline_of(before, None, ()).parts)
    recent.extend(seen, text(reply))
    outline = outline_of(now, None, ())
    tokens = text(shown or rendered(now))
    return PromptComparison(
        tokens=tokens, outline=outline, near=recent.nearest(PLACE, tokens, outline.parts), page_size=PAGE
    )


@given(
    prompt=IDS,
    before=st.lists(IDS, max_size=4),
    matched=st.integers(0, 60),
    remembered=st.integers(0, 60),
    elsewhere=st.integers(0, 60),
    is_off=st.booleans(),
)
def test_matched_tokens_and_the_tokens_of_all_causes_are_the_prompt(
    prompt: list[int], before: list[list[int]], matched: int, remembered: int, elsewhere: int, is_off: bool
) -> None:
    recent = RecentPrompts()
    for each in before:
        recent.add(PLACE, packed(each), ())
    tokens = packed(prompt)
    question = PromptComparison(
        tokens=tokens,
        outline=NO_OUTLINE,
        near=recent.nearest(PLACE, tokens, ()),
        elsewhere=min(elsewhere, len(prompt)),
        remembered=min(remembered, len(prompt)),
        page_size=PAGE,
        is_off=is_off,
    )
    matched = min(matched, len(prompt))
    causes, _ = count_by_cause(question, matched, decode)
    assert matched + sum(causes.values()) == len(prompt)
    assert all(count > 0 for count in causes.values())
    found = explain(question, matched, decode)
    assert found.causes == causes
    assert matched <= found.could_match_tokens <= len(prompt)
    assert found.could_match_tokens == len(prompt) - sum(
        count for cause, count in causes.items() if cause not in ONCE_CACHED
    )


def test_tokens_that_the_tree_remembers_beyond_the_match_were_evicted() -> None:
    question = PromptComparison(
        tokens=packed(range(50)), outline=NO_OUTLINE, near=None, remembered=40, page_size=PAGE
    )
    assert count_by_cause(question, 10, decode)[0] == {"evicted": 30, "new": 10}


def test_tokens_after_the_last_checkpoint_lack_one() -> None:
    question = PromptComparison(
        tokens=packed(range(50)), outline=NO_OUTLINE, near=None, remembered=45, paged=40, page_size=PAGE
    )
    assert count_by_cause(question, 10, decode)[0] == {"checkpoint": 30, "evicted": 5, "new": 5}


def test_tokens_of_less_than_a_page_are_too_short_to_match() -> None:
    question = PromptComparison(
        tokens=packed(range(13)), outline=NO_OUTLINE, near=None, remembered=13, page_size=PAGE
    )
    assert count_by_cause(question, 12, decode)[0] == {"short": 1}


def test_an_edited_turn_loses_the_turns_after_it() -> None:
    rest = [said("assistant", "A long answer."), said("user", "Another question.")]
    question = asked([said("user", "What is new?"), *rest], [said("user", "What is old?"), *rest])
    found = explain(question, 14, decode)
    assert set(found.causes) == {"history", "new"}
    assert found.difference is not None
    assert (found.difference.part, found.difference.index) == ("message", 0)
    assert found.difference.character == found.difference.token == len("<user>What is ")


def test_reasoning_that_the_template_strips_is_a_rewritten_turn() -> None:
    question = said("user", "Why?")
    answer = said("assistant", "Because of the weather.", reasoning_content="Let me think.")
    now = [question, answer, said("user", "And then?")]
    shown = "<user>Why?\n<assistant>Because of the weather.\n<user>And then?\n"
    reply = "<assistant>Let me think. Because of the weather.\n"
    found = explain(asked(now, [question], shown, reply), len("<user>Why?\n"), decode)
    assert found.difference is not None
    assert found.difference.cause == "template"
    assert (found.difference.index, found.difference.role) == (1, "assistant")


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [('{"city": "Oslo in Norway"}', "template"), ('{"city": "Rome in Italy"}', "history")],
)
def test_calls_that_are_rendered_in_another_way_are_told_from_edited_ones(arguments: str, cause: str) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    question, reply = said("user", "Where?"), '[weather {"city":"Oslo in Norway"}] and a long text.'
    now = [question, said("assistant", "and a long text.", tool_calls=[call]), said("user", "Next.")]
    shown = rendered([question]) + "weather(Oslo) and a long text.\n<user>Next.\n"
    found = explain(asked(now, [question], shown, reply), len("<user>Where?\n"), decode)
    assert found.difference is not None
    assert found.difference.cause == cause


def test_a_prompt_with_another_question_is_new_after_the_system_prompt() -> None:
    system = said("system", "Be brief, and answer in English.")
    question = asked([system, said("user", "abcdefgh")], [system, said("user", "stuvwxyz")])
    found = explain(question, len("<system>Be brief, and answer in English.\n<user>"), decode)
    assert set(found.causes) == {"new"}
    assert found.difference is not None
    assert found.difference.cause == "new"
    assert found.difference.earlier.endswith("stuvwxyz\\n")


def test_the_nearest_prompt_is_that_of_the_same_conversation() -> None:
    """The other conversation begins with more of the same tokens, but has none of the same messages."""
    recent = RecentPrompts()

    def conversation(clock: str, question: str) -> tuple[bytes, Outline]:
        messages = [said("system", f"It is {clock}. Be brief."), said("user", question)]
        return text(rendered(messages)), outline_of(messages, None, ())

    tokens, outline = conversation("10:01", "My question is long enough.")
    mine = recent.add(PLACE, tokens, outline.parts)
    tokens, outline = conversation("10:02", "Not this one.")
    recent.add(PLACE, tokens, outline.parts)
    tokens, outline = conversation("10:02", "My question is long enough.")
    near = recent.nearest(PLACE, tokens, outline.parts)
    assert near is not None
    assert near.seen is mine


@given(tokens=IDS, earlier=IDS, run=st.integers(1, 5))
def test_repeated_tokens_are_those_of_common_runs(tokens: list[int], earlier: list[int], run: int) -> None:
    runs = {tuple(earlier[at : at + run]) for at in range(len(earlier) - run + 1)}
    starts = [at for at in range(len(tokens) - run + 1) if tuple(tokens[at : at + run]) in runs]
    expected = {at + offset for at in starts for offset in range(run)}
    assert count_repeated_tokens(packed(tokens), packed(earlier), run) == len(expected)


def test_texts_are_shown_without_control_characters() -> None:
    assert escape("a\nb\x1b[31m\u202e\\é") == "a\\nb\\x1b[31m\\u202e\\\\é"
