"""Anthropic's `thinking` and `output_config.effort` as chat templates know them, and signatures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from arbora.frontend.api.anthropic.protocol import ContentBlock, MessagesRequest
from arbora.frontend.api.anthropic.thinking import (
    check_thinking,
    shown,
    signature,
    thinking_of,
    variables_of,
)
from arbora.runtime.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st

ENABLED = {"type": "enabled", "budget_tokens": 2048}


def request_of(**fields: Any) -> MessagesRequest:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4096, **fields}
    return msgspec.convert(body, MessagesRequest)


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": ENABLED}, {"enable_thinking": True, "thinking_budget": 2048}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            {"enable_thinking": True, "reasoning_effort": "max"},
        ),
        (
            {"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": False, "x": 1}},
            {"enable_thinking": False, "x": 1},
        ),
    ],
    ids=str,
)
def test_the_template_gets_its_variables(fields: Any, variables: Any) -> None:
    request = request_of(**fields)
    check_thinking(request)
    assert variables_of(request) == variables


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, "summarized"),
        ({"type": "disabled"}, "hidden"),
        ({"type": "adaptive"}, "summarized"),
        ({"type": "adaptive", "display": "omitted"}, "omitted"),
        ({**ENABLED, "display": "summarized"}, "summarized"),
        ({**ENABLED, "display": "omitted"}, "omitted"),
    ],
    ids=str,
)
def test_display_says_how_thinking_is_shown(thinking: Any, expected: str) -> None:
    assert shown(request_of(thinking=thinking)) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {**ENABLED, "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {**ENABLED, "budget_tokens": 4096}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(fields: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_thinking(request_of(**fields))
    assert caught.value.param == param


def block(thinking: str, signed: str) -> ContentBlock:
    return ContentBlock(type="thinking", thinking=thinking, signature=signed)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_block_returns_with_its_thinking_shown_or_omitted(text: str) -> None:
    assert thinking_of(block("", signature(text, is_omitted=True)), "x") == text
    assert thinking_of(block(text, signature(text, is_omitted=False)), "x") == text


def test_a_signature_is_never_empty() -> None:
    assert signature("", is_omitted=True) and signature("", is_omitted=False)


@pytest.mark.parametrize("tail", ["*", "AAA", "____"])
def test_a_changed_signature_of_omitted_thinking_is_refused(tail: str) -> None:
    changed = signature("Hm.", is_omitted=True) + tail
    with pytest.raises(RequestError) as caught:
        thinking_of(block("", changed), "messages[1].content[0]")
    assert caught.value.param == "messages[1].content[0].signature"
