"""Conversations with a model that has recurrent layers: each turn starts where the last reply ended.

Its layers are short convolutions. test_stored_chats.py has a conversation with gated delta nets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from explained import SYSTEM, facts, said
from served import Served, serve, write_served_checkpoint
from tiny_models import tiny_config, tiny_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_served_checkpoint(tmp_path_factory.mktemp("model"))
    like = json.loads((directory / "config.json").read_text())
    config = tiny_config("lfm2")
    config.vocab_size, config.max_position_embeddings = like["vocab_size"], 4096
    tiny_model(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Served]:
    with serve(checkpoint, "--kv-memory", "32MiB") as running:
        yield running


def ask(server: Served, messages: list[Any]) -> Any:
    body = {"messages": messages, "max_tokens": 40, "temperature": 0}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_eight_turns_find_nearly_all_that_was_computed(server: Served) -> None:
    messages: list[Any] = [said("system", SYSTEM)]
    known = found = before = 0
    for turn in range(8):
        messages.append(said("user", facts(f"Turn {turn}")))
        answer = ask(server, messages)
        reply = answer["choices"][0]["message"]["content"]
        again = ask(server, messages)  # starts at another checkpoint
        assert again["choices"][0]["message"]["content"] == reply
        known, found = known + before, found + answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        before = answer["usage"]["total_tokens"]
        messages.append(said("assistant", reply))
    assert found >= 0.97 * known


def test_an_explanation_names_a_missing_checkpoint(server: Served) -> None:
    shared = facts("shared by two questions")
    for question, lacks_one in ((facts("of the first alone"), False), ("Another one", True)):
        messages = [said("user", shared + question)]
        answer = server.http.post("/cache/explain", json={"messages": messages}).json()
        assert (answer["causes"].get("checkpoint", 0) > 50) == lacks_one
        ask(server, messages)
