"""Why prompts miss the cache, as a running server explains it: a conversation for each cause."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from explained import SYSTEM, TOOLS, facts, said, write_forgetful_checkpoint
from served import Served, serve, write_served_checkpoint


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(write_served_checkpoint(tmp_path_factory.mktemp("model"))) as server:
        yield server


def asked(served: Served, messages: list[Any], path: str = "/v1/chat/completions", **fields: Any) -> Any:
    """The explanation of a prompt, which is computed and replied to unless the path says otherwise."""
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, "explain_cache": True, **fields}
    answer = served.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    explanation = found if path == "/cache/explain" else found["cache_explanation"]
    assert explanation["matched_tokens"] + sum(explanation["causes"].values()) == explanation["prompt_tokens"]
    return explanation


def test_a_first_prompt_is_new(served: Served) -> None:
    found = asked(served, [said("user", facts("prompt"))])
    assert found["causes"] == {"new": found["prompt_tokens"]}
    assert found["difference"] is None


def test_the_next_turn_of_a_conversation_misses_only_what_is_new(served: Served) -> None:
    messages = [said("system", SYSTEM), said("user", facts("Turns"))]
    first: Any = served.client.chat.completions.create(
        model=served.model, messages=messages, max_tokens=4, temperature=0
    )
    more = [*messages, said("assistant", first.choices[0].message.content), said("user", "And what is new?")]
    found = asked(served, more)
    assert set(found["causes"]) <= {"new", "short"}
    assert found["matched_tokens"] >= first.usage.prompt_tokens
    assert found["could_match_tokens"] == found["matched_tokens"]
    assert found["difference"] is None


def test_the_last_token_of_a_known_prompt_is_too_short_to_match(served: Served) -> None:
    messages = [said("user", facts("Twice"))]
    asked(served, messages)
    found = asked(served, messages)
    assert found["causes"] == {"short": 1}
    assert found["could_match_tokens"] == found["matched_tokens"] == found["prompt_tokens"] - 1


def test_a_request_without_the_cache_says_that_it_is_off(served: Served) -> None:
    messages = [said("user", facts("Off"))]
    asked(served, messages)
    found = asked(served, messages, cache_prompt=False)
    assert found["causes"] == {"off": found["prompt_tokens"]}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("Current time: 2026-11-23 10:0{}:00", "time"),
        ("Today's date: November 1{}, 2026", "date"),
        ("Session ID: 0f3a5b1c-3c1e-4a5d-9d0e-0d6f0a4f2b1{}", "uuid"),
        ("request req_011CSHoEeqs5C35K2UUqR7F{}", "id"),
        ("x-anthropic-billing-header: cc_version=2.1.0.5f1; cch=1f2e{};", "billing header"),
    ],
)
def test_a_volatile_line_in_the_system_prompt(served: Served, line: str, word: str) -> None:
    question = said("user", facts(word))
    for value in "12":
        found = asked(served, [said("system", f"{line.format(value)}\n{SYSTEM}"), question])
    assert found["causes"]["volatile"] > 100
    difference = found["difference"]
    assert (difference["cause"], difference["part"], difference["index"]) == ("volatile", "system", 0)
    assert word in difference["note"]
    assert difference["prompt"] != difference["earlier"]
    assert found["could_match_tokens"] >= found["prompt_tokens"] - 20


def test_a_tool_that_was_added_in_front(served: Served) -> None:
    messages = [said("system", f"Add. {SYSTEM}"), said("user", "How high is Rome?")]
    asked(served, messages, tools=TOOLS[1:])
    found = asked(served, messages, tools=TOOLS)
    assert found["causes"]["tools"] > 50
    assert "had not: 1" in found["difference"]["note"]


def test_an_edited_message(served: Served) -> None:
    begin, end = said("system", SYSTEM), [said("assistant", "Yes."), said("user", facts("Edited"))]
    asked(served, [begin, said("user", "The cat was black."), *end])
    found = asked(served, [begin, said("user", "The dog was black."), *end])
    difference = found["difference"]
    assert found["causes"]["history"] > 100
    assert (difference["part"], difference["index"], difference["role"]) == ("message", 1, "user")


def test_a_removed_message(served: Served) -> None:
    begin, end = said("system", SYSTEM), [said("user", facts("Removed"))]
    asked(served, [begin, said("user", "Remember the mat."), said("assistant", "I will."), *end])
    found = asked(served, [begin, *end])
    assert found["causes"]["history"] > 100
    assert "was message 3" in found["difference"]["note"]


def test_a_reply_that_was_not_sent_back_as_it_was(served: Served) -> None:
    messages: Any = [said("system", SYSTEM), said("user", "Say a word.")]
    reply: Any = served.client.chat.completions.create(
        model=served.model,
        messages=messages,
        max_tokens=200,
        extra_body={"choice": [facts("Reply")]},
    )
    text = reply.choices[0].message.content
    found = asked(served, [*messages, said("assistant", f"Well: {text}"), said("user", "Go on.")])
    assert found["causes"]["history"] > 50
    assert (found["difference"]["index"], found["difference"]["role"]) == (2, "assistant")
    assert "was not sent back" in found["difference"]["note"]


def test_another_namespace_of_the_same_caller(served: Served) -> None:
    messages = [said("user", facts("Whose"))]
    asked(served, messages)
    found = asked(served, messages, cache_salt="mine")
    assert found["causes"]["namespace"] == found["prompt_tokens"]
    assert found["difference"] is None


def test_a_namespace_of_a_caller_without_a_key_is_told_to_no_other(served: Served) -> None:
    messages = [said("user", facts("Secret"))]
    asked(served, messages, cache_salt="a secret")
    for salt in ("a guess", None):
        assert set(asked(served, messages, cache_salt=salt)["causes"]) == {"new"}


def test_evicted_pages(served: Served) -> None:
    messages = [said("user", facts("Evicted"))]
    asked(served, messages)
    served.http.delete("/cache")
    # Forgetting is a part of dropping the cache, so only other prompts can evict pages here.
    asked(served, messages)
    number = 0
    while asked(served, messages, "/cache/explain")["matched_tokens"] > 16:
        number += 1
        asked(served, [said("user", f"{number} is a number. " * 150)])
        assert number < 400, "nothing is evicted"
    found = asked(served, messages)
    assert found["causes"].get("evicted", 0) > 100, found


def test_the_explanation_of_a_stream_is_in_its_last_chunk(served: Served) -> None:
    stream: Any = served.client.chat.completions.create(
        model=served.model,
        messages=[said("user", facts("Streamed"))],
        max_tokens=4,
        stream=True,
        extra_headers={"x-explain-cache": "1"},
    )
    *chunks, last = list(stream)
    assert all("cache_explanation" not in chunk.model_extra for chunk in chunks)
    assert last.choices == []
    assert set(last.model_extra["cache_explanation"]["causes"]) == {"new"}


def test_the_causes_are_counted_by_tokens(served: Served) -> None:
    before = served.metrics()["arbora_prompt_tokens_missed_total"]
    found = asked(served, [said("user", facts("Counted"))])
    after = served.metrics()["arbora_prompt_tokens_missed_total"]
    assert after - before == found["prompt_tokens"] - found["matched_tokens"]


def test_a_prompt_is_explained_without_being_computed(served: Served) -> None:
    messages = [said("user", facts("Computed"))]
    before = served.metrics()["arbora_prompt_tokens_computed_total"]
    for _ in range(2):
        found = asked(served, messages, "/cache/explain")
        assert set(found["causes"]) == {"new"}
    assert served.metrics()["arbora_prompt_tokens_computed_total"] == before
    asked(served, messages)
    assert asked(served, messages, "/cache/explain")["matched_tokens"] == found["prompt_tokens"] - 1


def test_text_completions_are_explained(served: Served) -> None:
    prompt = facts("Once")
    first = served.http.post("/v1/completions", json={"prompt": prompt, "explain_cache": True}).json()
    assert set(first["cache_explanation"]["causes"]) == {"new"}
    again = served.http.post("/cache/explain", json={"prompt": prompt}).json()
    assert again["matched_tokens"] == again["prompt_tokens"] - 1


def test_several_prompts_are_not_explained_together(served: Served) -> None:
    refused = served.http.post("/v1/completions", json={"prompt": ["a", "b"], "explain_cache": True})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "explain_cache"


def test_a_template_that_renders_earlier_messages_in_another_way(tmp_path: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        said("user", facts("weather")),
        {"role": "assistant", "content": "I look it up.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": facts("rains")},
    ]
    with serve(write_forgetful_checkpoint(tmp_path)) as served:
        asked(served, messages, tools=TOOLS)
        more = [*messages, said("assistant", facts("rains")), said("user", "Where?")]
        found = asked(served, more, tools=TOOLS)
    assert found["causes"]["template"] > 100
    difference = found["difference"]
    assert (difference["part"], difference["index"], difference["role"]) == ("message", 2, "tool")
    assert "(a result)" in difference["prompt"] and "rains 0" in difference["earlier"]
