"""Conversations with models that need more than pages of all tokens to go on: recurrent layers' states, or
the pages of windows. A page store keeps these too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from explained import SYSTEM, facts, said
from served import Served, serve, write_served_checkpoint
from tiny_models import tiny_config, tiny_model

KINDS = {
    "gated delta nets": ("qwen3_next", {}),
    "short convolutions": ("lfm2", {}),
    "windows": ("gemma3_text", {"sliding_window": 128}),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS), scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_served_checkpoint(tmp_path_factory.mktemp("model"))
    like = json.loads((directory / "config.json").read_text())
    kind, fields = request.param
    config = tiny_config(kind)
    for name, value in {**fields, "vocab_size": like["vocab_size"], "max_position_embeddings": 4096}.items():
        setattr(config, name, value)
    tiny_model(config).save_pretrained(directory)
    return directory


def ask(server: Served, messages: list[Any]) -> Any:
    body = {"messages": messages, "max_tokens": 40, "temperature": 0}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("policy", ["write_back", "write_through"])
def test_a_conversation_goes_on_after_its_eviction_and_on_another_server(
    checkpoint: Path, policy: str, tmp_path: Path
) -> None:
    options = ("--disk-cache", str(tmp_path), "--write-policy", policy)
    exact = ("--dtype", "float32")
    small = (*exact, "--kv-memory", "4MiB", "--max-model-len", "2048", "--max-running", "1")
    messages: list[Any] = [said("system", SYSTEM), said("user", facts("Turn 1"))]
    with serve(checkpoint, *options, *small) as server:
        first = ask(server, messages)
        messages += [said("assistant", "So it is."), said("user", facts("Turn 2"))]
        for number in range(6):
            ask(server, [said("user", facts(f"Another conversation, {number}"))])
        second = ask(server, messages)
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= first["usage"]["prompt_tokens"] // 16 * 16
        assert server.metrics()["arbora_pages_restored_total"] > 0
    with serve(checkpoint, *options, *exact) as server:
        again = ask(server, messages)
        assert again["choices"] == second["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= cached
        assert server.http.delete("/cache").status_code == 200
        alone = ask(server, messages)
    assert alone["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert alone["choices"][0]["message"] == second["choices"][0]["message"]
