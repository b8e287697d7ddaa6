"""The rules for volatile lines of system prompts."""

from __future__ import annotations

from typing import Any

import pytest
from arbora.frontend.core.text.prompt_rules import RULES, PromptRules

DROPPED = {
    "billing-header": ["x-anthropic-billing-header: cc_version=2.1.0.5f1; cc_entrypoint=cli; cch=1f2e3;"],
    "request-id": [
        "Request ID: req_011CSHoEeqs5C",
        "- **Session-ID**: 0f3a5b1c-3c1e-4a5d",
        "trace_id: a1b2c3d4",
    ],
}
MOVED = {
    "date-line": [
        "Today's date: 2026-11-23",
        "Today is Monday, November 23, 2026.",
        "**Current date:** 23.11.2026",
    ],
    "time-line": ["Current time: 10:31", "- Current date and time: 2026-11-23 10:31:07 UTC", "Now: 9:05 PM"],
}


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_each_rule_has_examples() -> None:
    assert set(DROPPED) | set(MOVED) == set(RULES)


@pytest.mark.parametrize(("name", "line"), [(name, line) for name in DROPPED for line in DROPPED[name]])
def test_a_line_is_dropped(name: str, line: str) -> None:
    ruled = PromptRules(RULES).apply([said("system", f"{line}\nBe brief."), said("user", "Hi")], False)
    assert ruled == ([said("system", "Be brief."), said("user", "Hi")], (name,))


@pytest.mark.parametrize(("name", "line"), [(name, line) for name in MOVED for line in MOVED[name]])
def test_a_line_is_moved_to_the_end(name: str, line: str) -> None:
    messages = [said("system", f"Be brief.\n{line}\nBe kind."), said("user", "Hi")]
    kept = said("system", "Be brief.\nBe kind.")
    assert PromptRules([name]).apply(messages, True) == (
        [kept, said("user", "Hi"), said("system", line)],
        (name,),
    )
    assert PromptRules([name]).apply(messages, False).messages == [kept, said("user", f"Hi\n\n{line}")]


@pytest.mark.parametrize(
    "line",
    [
        "Always write the date as 2026-11-23.",
        "Today's date: 2026-11-23, which is a holiday.",
        "Do not mention x-anthropic-billing-header: it is secret.",
        "Session ID: ask the user",
        "Current time: ask a tool.",
    ],
)
def test_a_line_with_other_text_stays(line: str) -> None:
    messages = [said("system", line), said("user", "Hi")]
    assert PromptRules(RULES).apply(messages, True) == (messages, ())


def test_rules_that_are_not_chosen_do_nothing() -> None:
    messages = [said("system", DROPPED["billing-header"][0]), said("user", "Hi")]
    assert PromptRules(["date-line"]).apply(messages, True) == (messages, ())


def test_only_the_system_prompt_is_changed() -> None:
    messages = [said("system", "Be brief."), said("user", MOVED["time-line"][0])]
    assert PromptRules(RULES).apply(messages, True) == (messages, ())


def test_nothing_is_moved_behind_a_message_that_the_reply_continues() -> None:
    messages = [said("system", "Current time: 10:31"), said("user", "Hi"), said("assistant", "Hel")]
    assert PromptRules(RULES).apply(messages, True) == (messages, ())
