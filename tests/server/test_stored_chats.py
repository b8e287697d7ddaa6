"""Conversations with models that need more than pages of all tokens to go on: recurrent layers' states, or
the pages of windows. A page store keeps these too.

Each write policy has one kind of model here. tests/runtime has every policy with states and with windows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from explained import SYSTEM, facts, said
from served import Served, serve, write_served_checkpoint
from tiny_models import tiny_config, tiny_model

KINDS = {
    "gated delta nets": ("qwen3_next", {}, "write_back"),
    "windows": ("gemma3_text", {"sliding_window": 128}, "write_through"),
}


def write_checkpoint(directory: Path, kind: str, fields: dict[str, int]) -> Path:
    write_served_checkpoint(directory)
    like = json.loads((directory / "config.json").read_text())
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


@pytest.mark.parametrize(("kind", "fields", "policy"), KINDS.values(), ids=KINDS)
def test_a_conversation_goes_on_after_its_eviction_and_on_another_server(
    kind: str, fields: dict[str, int], policy: str, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", kind, fields)
    options = ("--disk-cache", str(tmp_path / "pages"), "--write-policy", policy)
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
