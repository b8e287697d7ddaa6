"""The same conversation in each API: the same causes of cache misses, and the same counts of tokens."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from explained import SYSTEM, TOOLS, facts, said, write_forgetful_checkpoint
from served import Served, eventually, serve, write_served_checkpoint

PAGE_TOKENS = 16


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Served]:
    with serve(write_served_checkpoint(tmp_path_factory.mktemp("model")), "--data-dir", str(data)) as server:
        yield server


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(write_forgetful_checkpoint(tmp_path_factory.mktemp("model"))) as server:
        yield server


def chat(system: str, question: str, tools: Any) -> Any:
    messages = [said("system", system), said("user", question)]
    return {"messages": messages, "tools": tools, "max_tokens": 4}


def response(system: str, question: str, tools: Any) -> Any:
    flat = [{"type": "function", **tool["function"]} for tool in tools or ()]
    body = {"instructions": system, "input": question, "tools": flat}
    return {**body, "max_output_tokens": 4, "store": False}


def anthropic_message(system: str, question: str, tools: Any) -> Any:
    own = [
        {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
        for each in (tool["function"] for tool in tools or ())
    ]
    return {"system": system, "messages": [said("user", question)], "tools": own, "max_tokens": 4}


def ollama_chat(system: str, question: str, tools: Any) -> Any:
    messages = [said("system", system), said("user", question)]
    return {"messages": messages, "tools": tools, "stream": False, "options": {"num_predict": 4}}


def ollama_prompt(system: str, question: str, tools: Any) -> Any:
    return {"system": system, "prompt": question, "stream": False, "options": {"num_predict": 4}}


def native(system: str, question: str, tools: Any) -> Any:
    return {"messages": [said("system", system), said("user", question)], "max_tokens": 4}


BODIES: dict[str, Callable[[str, str, Any], Any]] = {
    "/v1/chat/completions": chat,
    "/v1/responses": response,
    "/v1/messages": anthropic_message,
    "/api/chat": ollama_chat,
    "/api/generate": ollama_prompt,
    "/generate": native,
}
"""the same conversation in the form of each API"""


def explained(served: Served, path: str, system: str, question: str, tools: Any = None) -> Any:
    """The explanation of a conversation, sent to this path in the form of its API."""
    answer = served.http.post(path, json={**BODIES[path](system, question, tools), "explain_cache": True})
    assert answer.status_code == 200, answer.text
    explanation = answer.json()["cache_explanation"]
    assert explanation["matched_tokens"] + sum(explanation["causes"].values()) == explanation["prompt_tokens"]
    return explanation


@pytest.mark.parametrize("path", sorted(BODIES))
def test_a_changed_system_prompt_is_named_in_every_api(served: Served, path: str) -> None:
    question = facts(path)
    explained(served, path, f"Be kind. {SYSTEM}", question)
    found = explained(served, path, f"Be rude. {SYSTEM}", question)
    assert found["causes"]["system"] > 100
    difference = found["difference"]
    assert difference["part"] == "system"
    assert "rude" in difference["prompt"] and "kind" in difference["earlier"]


@pytest.mark.parametrize("path", sorted(BODIES.keys() - {"/generate", "/api/generate"}))
def test_tools_in_another_order_are_named_in_every_api(served: Served, path: str) -> None:
    system = f"{path} {SYSTEM}"
    explained(served, path, system, "How high is Oslo?", TOOLS)
    found = explained(served, path, system, "How high is Oslo?", TOOLS[::-1])
    assert found["causes"]["tools"] > 100
    assert (found["difference"]["part"], found["difference"]["role"]) == ("tool", None)
    assert "another order" in found["difference"]["note"]


@pytest.mark.parametrize(
    ("path", "stream"), [(path, stream) for path in sorted(BODIES) for stream in (False, True)]
)
def test_the_header_asks_for_an_explanation_in_every_api(served: Served, path: str, stream: bool) -> None:
    body = {**BODIES[path](SYSTEM, facts(f"{path} {stream}"), None), "stream": stream}
    for headers in ({"x-explain-cache": "1"}, {}):
        answer = served.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        events = [line for line in answer.text.splitlines() if "{" in line]
        told = [index for index, line in enumerate(events) if '"cache_explanation":{' in line]
        follow = int(stream and path == "/v1/messages")  # message_stop
        assert told == ([len(events) - 1 - follow] if headers else [])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"])
def test_every_api_counts_the_same_tokens_as_written(served: Served, path: str) -> None:
    body = {**BODIES[path](SYSTEM, "How high is Oslo?", None), "cache_salt": f"written {path}"}
    first, second = (counts(served.http.post(path, json=body).json()["usage"]) for _ in range(2))
    assert first == (first[0], 0, first[0]), "the tree keeps a last page that is not full, too"
    assert first[0] % PAGE_TOKENS
    assert second == (first[0], first[0] - 1, 0)


def counts(usage: Any) -> tuple[int, int, int]:
    """The prompt's tokens, and how many of them were found in the cache and left there."""
    if "cache_creation_input_tokens" in usage:
        found, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        return usage["input_tokens"] + found + written, found, written
    if "written_tokens" in usage:
        return usage["prompt_tokens"], usage["cached_tokens"], usage["written_tokens"]
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    total = usage.get("prompt_tokens") or usage["input_tokens"]
    return total, details["cached_tokens"], details["cache_write_tokens"]


def test_a_prompt_is_explained_in_the_form_of_responses(served: Served, data: Path) -> None:
    body = BODIES["/v1/responses"](SYSTEM, facts("Input"), TOOLS)
    assert explained(served, "/v1/responses", SYSTEM, facts("Input"), TOOLS)["causes"]["new"] > 100
    number = number_stored(data)
    for form in (body, {**body, "background": True, "store": True}):
        again = served.http.post("/cache/explain", json=form).json()
        assert again["matched_tokens"] >= again["prompt_tokens"] - 1
    assert number_stored(data) == number
    reply = served.http.post("/v1/responses", json={**body, "store": True, "temperature": 0}).json()
    assert reply["output"], "a sampled reply may be empty, and then the next turn has no message of it"
    more = {**body, "input": "And now?", "previous_response_id": reply["id"]}
    assert number_stored(data) == number + 1
    next_turn = served.http.post("/cache/explain", json=more).json()
    assert next_turn["matched_tokens"] >= reply["usage"]["input_tokens"]


def number_stored(data: Path) -> int:
    path = data / "responses.sqlite"
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((number,),) = connection.execute("SELECT count(*) FROM records")
    return int(number)


def test_the_ids_of_a_prompt_are_explained(served: Served) -> None:
    ids = list(range(60, 100))
    body = {"prompt_token_ids": ids, "max_tokens": 4, "explain_cache": True}
    assert served.http.post("/generate", json=body).json()["cache_explanation"]["causes"] == {"new": 40}
    again = served.http.post("/cache/explain", json={"prompt_token_ids": ids}).json()
    assert again["matched_tokens"] >= 39


def test_a_response_in_the_background_keeps_its_explanation(served: Served) -> None:
    body = {"input": facts("Background"), "max_output_tokens": 4, "background": True, "explain_cache": True}
    response = served.http.post("/v1/responses", json=body).json()
    assert "cache_explanation" not in response
    assert set(ended(served, response["id"])["cache_explanation"]["causes"]) == {"new"}


@pytest.mark.parametrize("background", [False, True])
def test_a_stored_explanation_has_no_text_of_the_earlier_prompt(served: Served, background: bool) -> None:
    body = {**response(f"Be kind. {SYSTEM}", facts(f"Stored {background}"), None), "explain_cache": True}
    served.http.post("/v1/responses", json=body)
    more = {"instructions": f"Be rude. {SYSTEM}", "store": True, "stream": True, "background": background}
    answer = served.http.post("/v1/responses", json={**body, **more})
    told = json.loads(answer.text.rpartition("data: ")[2])["response"]
    stored = ended(served, told["id"])["cache_explanation"]
    texts = [told["cache_explanation"]["difference"].pop(name) for name in ("prompt", "earlier")]
    assert all(texts) or background
    assert [stored["difference"].pop(name) for name in ("prompt", "earlier")] == ["", ""]
    assert stored == told["cache_explanation"]
    if background:
        events = served.http.get(f"/v1/responses/{told['id']}?stream=true").text
        assert events == answer.text and '"earlier":""' in events


def ended(served: Served, id: str) -> Any:
    """The stored response."""
    eventually(lambda: status_of(served, id)["status"] not in ("queued", "in_progress"))
    return status_of(served, id)


def status_of(served: Served, id: str) -> Any:
    return served.http.get(f"/v1/responses/{id}").json()


def answered_call(path: str) -> tuple[Any, Any]:
    """The body of a conversation in which a tool has answered, and that of its next turn."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {}}}
    if path == "/api/chat":
        messages = [
            said("user", facts("weather")),
            {"role": "assistant", "content": "I look it up.", "tool_calls": [call]},
            {"role": "tool", "tool_name": "weather", "content": facts("rains")},
        ]
        body = {"tools": TOOLS, "stream": False, "options": {"num_predict": 4}}
        more = [*messages, said("assistant", facts("rains")), said("user", "Where?")]
        return {**body, "messages": messages}, {**body, "messages": more}
    items = [
        said("user", facts("weather")),
        said("assistant", "I look it up."),
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": facts("rains")},
    ]
    body = {**response("", "", TOOLS), "instructions": None}
    more = [*items, said("assistant", facts("rains")), said("user", "Where?")]
    return {**body, "input": items}, {**body, "input": more}


@pytest.mark.parametrize("path", ["/v1/responses", "/api/chat"])
def test_the_template_is_named_in_other_apis(forgetful: Served, path: str) -> None:
    forgetful.http.delete("/cache")
    first, second = answered_call(path)
    forgetful.http.post(path, json=first)
    found = forgetful.http.post(path, json={**second, "explain_cache": True}).json()["cache_explanation"]
    assert found["causes"]["template"] > 100
    difference = found["difference"]
    assert (difference["part"], difference["index"], difference["role"]) == ("message", 2, "tool")
