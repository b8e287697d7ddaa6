"""OpenAI's client asks the built-in model for responses, on a server with all its processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arbora
import openai
import pytest
from codex import APPLY_PATCH, HEADERS, PATCH_GRAMMAR, first_turn
from llguidance import LLMatcher
from llguidance_bytes import TOKENIZER
from served import Served, eventually, serve

BUILTIN = Path(arbora.__file__).parent / "runtime/model/builtin"
GREEDY: Any = {"temperature": 0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = str(tmp_path_factory.mktemp("data"))
    with serve(BUILTIN, "--kv-memory", "64MiB", "--data-dir", data) as server:
        yield server


def test_the_next_turn_finds_all_of_the_last_one_in_the_cache(served: Served) -> None:
    responses = served.client.responses
    first = responses.create(
        model=served.model, input="Hello! My name is Ada.", instructions="Be brief.", **GREEDY
    )
    assert first.status == "completed"
    second = responses.create(
        model=served.model,
        input="What is my name?",
        instructions="Be brief.",
        previous_response_id=first.id,
        **GREEDY,
    )
    assert first.usage is not None
    assert second.usage is not None
    earlier = (
        first.usage.input_tokens + first.usage.output_tokens - 1
    )  # without the stop token, which has no KV
    assert second.usage.input_tokens_details.cached_tokens >= earlier


def test_a_patch_matches_the_grammar_of_codex(served: Served) -> None:
    response = served.client.responses.create(
        model=served.model,
        input="Add a file a.txt that says hello.",
        tools=[APPLY_PATCH],
        tool_choice={"type": "custom", "name": "apply_patch"},
        max_output_tokens=60,
        extra_body={"seed": 1},
    )
    (call,) = response.output
    assert call.type == "custom_tool_call"
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(PATCH_GRAMMAR))
    tokens = list(call.input.encode())
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting() == (response.status == "completed")


def test_an_input_matches_its_pattern(served: Served) -> None:
    definition = r'"[a-z]{3}"\\\n[0-9]{2}'
    format: Any = {"type": "grammar", "syntax": "regex", "definition": definition}
    response = served.client.responses.create(
        model=served.model,
        input="Call it.",
        tools=[{"type": "custom", "name": "code", "format": format}],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (call,) = response.output
    assert call.type == "custom_tool_call"
    text = call.input
    assert (text[0], text[4:7], len(text)) == ('"', '"\\\n', 9)


def test_codex_gets_its_first_turn(served: Served) -> None:
    request = {**first_turn(served.model), "max_output_tokens": 40}
    answer = served.http.post("/v1/responses", json=request, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    assert "event: response.created" in answer.text
    assert (
        answer.text.count("event: response.completed") + answer.text.count("event: response.incomplete") == 1
    )


def test_a_restart_fails_what_it_interrupts(tmp_path: Path) -> None:
    flags = ("--kv-memory", "64MiB", "--data-dir", str(tmp_path))
    with serve(BUILTIN, *flags) as server:
        queued = server.client.responses.create(
            model=server.model, input="Tell a long story.", background=True, extra_body={"ignore_eos": True}
        )
        eventually(lambda: server.running > 0)
        for pid in server.children.values():
            os.kill(pid, signal.SIGKILL)
        server.process.kill()
        server.process.wait()
    with serve(BUILTIN, *flags) as server:
        found = server.client.responses.retrieve(queued.id)
        assert found.status == "failed"
        assert found.error is not None
        done = server.client.responses.create(model=server.model, input="Hello", background=True, **GREEDY)

        def has_ended() -> bool:
            return server.client.responses.retrieve(done.id).status == "completed"

        eventually(has_ended)
        with pytest.raises(openai.BadRequestError):
            server.client.responses.create(model=server.model, input="x", previous_response_id=queued.id)
