"""A server that has another one compute its prompts answers as it would alone, whatever that one does."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from open_requests import Asking
from served import Served, eventually, serve

PAGE = 16
STORY = "The fox and the crow met by the river, and this is what they said to each other. "
ROOMY = ("--kv-memory", "64MiB")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        yield f"ipc://{directory}/prefill"


@pytest.fixture(scope="module")
def prefill(roomy_model: Path, address: str) -> Iterator[Served]:
    with serve(roomy_model, *ROOMY, "--prefill-at", address) as server:
        yield server


@pytest.fixture(scope="module")
def decode(roomy_model: Path, address: str, prefill: Served) -> Iterator[Served]:
    with serve(roomy_model, *ROOMY, "--prefill-from", address) as server:
        eventually(lambda: "is connected and computes prompts" in "".join(server.log))
        yield server


def complete(server: Served, prompt: str, **fields: Any) -> tuple[str, int, int]:
    """The reply, and how many of how many prompt tokens were cached."""
    answer = server.client.completions.create(model=server.model, prompt=prompt, max_tokens=24, **fields)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    return answer.choices[0].text, cached or 0, answer.usage.prompt_tokens


def ask_chat(server: Served, messages: Any) -> Asking:
    return Asking(server, messages=messages, max_tokens=24, temperature=0, ignore_eos=True)


def text_of(answer: httpx.Response | None) -> str:
    assert answer is not None
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def count(server: Served, name: str) -> int:
    return int(server.metrics()[f"arbora_prefill_pages_{name}_total"])


def whole_pages(tokens: int) -> int:
    return (tokens - 1) // PAGE * PAGE


def test_replies_are_the_same_and_a_next_turn_fetches_only_what_is_new(
    prefill: Served, decode: Served
) -> None:
    first, second = STORY * 60, STORY * 120
    text, cached, tokens = complete(decode, first, temperature=0)
    assert tokens > 1000
    assert cached == whole_pages(tokens) == count(decode, "received") * PAGE
    assert complete(prefill, first, temperature=0)[0] == text
    longer, cached, more = complete(decode, second, temperature=0)
    assert cached == whole_pages(more)
    assert count(decode, "received") * PAGE == whole_pages(more)
    assert complete(prefill, second, temperature=0)[0] == longer
    sampled = [
        complete(server, f"Again: {first}", temperature=1, seed=7, extra_body={"cache_salt": "a"})
        for server in (decode, prefill)
    ]
    assert sampled[0][0] == sampled[1][0]
    eventually(lambda: decode.is_quiet and prefill.is_quiet)
    assert count(prefill, "sent") == count(decode, "received")


def test_a_short_prompt_is_computed_at_once(decode: Served) -> None:
    before = count(decode, "received")
    assert complete(decode, "A short one: " + STORY * 3, temperature=0)[1] == 0
    assert count(decode, "received") == before


def test_a_prompt_that_opted_out_stays_here(decode: Served) -> None:
    before = count(decode, "received")
    private = complete(decode, "Private: " + STORY * 60, temperature=0, extra_body={"cache_prompt": False})
    assert private[1] == 0
    assert count(decode, "received") == before


def test_when_the_other_server_is_killed_prompts_are_computed_here(prefill: Served, decode: Served) -> None:
    chats: list[Any] = [[{"role": "user", "content": f"{number}: {STORY * 150}"}] for number in range(3)]
    usual = [ask_chat(prefill, messages).end() for messages in chats]
    assert prefill.http.delete("/cache").status_code == 200
    for messages, alone in zip(chats, usual, strict=True):
        asked = ask_chat(decode, messages)
        eventually(lambda asked=asked: prefill.running > 0 or asked.answer is not None)  # type: ignore[misc]
        os.kill(prefill.children["model"], signal.SIGKILL)
        assert text_of(asked.end()) == text_of(alone)
        eventually(lambda: decode.is_quiet)
        eventually(lambda: prefill.is_healthy)
    before = count(decode, "received")

    def is_asked_again() -> bool:
        complete(decode, f"{secrets.token_hex()} " + STORY * 60, temperature=0)
        return count(decode, "received") > before

    eventually(is_asked_again)


def test_when_the_decode_server_leaves_nothing_is_held_there(
    prefill: Served, roomy_model: Path, address: str
) -> None:
    with serve(roomy_model, *ROOMY, "--prefill-from", address) as server:
        eventually(lambda: "is connected and computes prompts" in "".join(server.log))
        asked = ask_chat(server, [{"role": "user", "content": "Leaving: " + STORY * 150}])
        eventually(lambda: prefill.running > 0 or asked.answer is not None)
        server.process.send_signal(signal.SIGKILL)
        asked.end()
    eventually(lambda: prefill.is_quiet)
