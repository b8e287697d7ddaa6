"""Prefixes that outlive the KV cache and the server: same text, not computed again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora import Engine
from arbora.runtime.messages import RestoredPages, SavedPages, StepPlan
from arbora.runtime.model.tiers.fetches import _Fetch
from safetensors.torch import load_file, save_file
from served import Served, eventually, serve
from step_driver import StepDriver, packed

STORY = "The fox and the crow met by the river, and this is what they said to each other. " * 6
PAGE = 16


def ask(server: Served, text: str = STORY, **fields: Any) -> tuple[str, int, int]:
    """The reply, and how many of how many prompt tokens were cached."""
    answer = server.client.completions.create(
        model=server.model, prompt=text, max_tokens=24, temperature=0, **fields
    )
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    return answer.choices[0].text, cached or 0, answer.usage.prompt_tokens


def whole_pages(tokens: int) -> int:
    return (tokens - 1) // PAGE * PAGE


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_prefix_outlives_the_server_but_not_a_change_of_model(
    served_model: Path, tmp_path: Path, ranks: str
) -> None:
    disk = ("--disk-cache", str(tmp_path / "pages"), "--tp", ranks)
    with serve(served_model, *disk) as server:
        text, cached, tokens = ask(server)
        assert cached == 0
    with serve(served_model, *disk) as server:
        assert ask(server) == (text, whole_pages(tokens), tokens)
        pages = whole_pages(tokens) / PAGE
        eventually(lambda: server.metrics()["arbora_pages_restored_total"] == pages)
        eventually(lambda: server.metrics()["arbora_disk_cache_hits_total"] == pages)
        eventually(lambda: server.is_quiet)
        assert server.http.delete("/cache").json()["tiers"]["disk"] >= pages
        eventually(lambda: server.metrics()["arbora_disk_cache_pages"] == 0)
        assert ask(server) == (text, 0, tokens)
    changed = shutil.copytree(served_model, tmp_path / "changed")
    weights = load_file(changed / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].flip(0).contiguous()
    save_file(weights, changed / "model.safetensors")
    with serve(changed, *disk) as server:
        other, cached, _ = ask(server)
        assert cached == 0
        assert other != text


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_evicted_pages_are_restored_from_memory_and_after_a_crash_from_disk(
    served_model: Path, tmp_path: Path, ranks: str
) -> None:
    small = ("--disk-cache", str(tmp_path), "--max-model-len", "512", "--max-running", "1", "--tp", ranks)
    with serve(served_model, *small) as server:
        text, _, tokens = ask(server)
        for number in range(8):
            ask(server, f"{number} {STORY}")
        assert ask(server) == (text, whole_pages(tokens), tokens)
        eventually(lambda: server.metrics()["arbora_host_cache_hits_total"] > 0)
        for number in range(8):
            ask(server, f"{number} {STORY}")
        eventually(lambda: server.metrics()["arbora_disk_cache_pages"] >= whole_pages(tokens) / PAGE)
        os.kill(server.children["model"], signal.SIGKILL)
        eventually(lambda: not server.is_healthy)
        eventually(lambda: server.is_healthy)
        assert ask(server) == (text, whole_pages(tokens), tokens)


def test_the_tree_says_in_which_tiers_evicted_pages_are(served_model: Path, tmp_path: Path) -> None:
    def stored() -> dict[str, int]:
        """Pages of all evicted nodes, when the server rests and the page store has answered in time."""
        found: list[dict[str, int] | None] = []

        def is_answered() -> bool:
            nodes = server.http.get("/cache/tree").json()["nodes"]
            evicted = [node for node in nodes if node["parent"] is not None and not node["pages"]]
            found[:] = [node["stored"] for node in evicted]
            return None not in found

        eventually(lambda: server.is_quiet)
        eventually(is_answered)
        return {name: sum(each[name] for each in found if each) for name in ("pages", "host", "disk")}

    small = ("--disk-cache", str(tmp_path), "--max-model-len", "512", "--max-running", "1")
    with serve(served_model, *small) as server:
        for number in range(3):
            ask(server, f"{number} {STORY}")
        evicted = stored()
        assert evicted["pages"] > 0
        assert evicted == {**evicted, "host": evicted["pages"], "disk": 0}
    with serve(served_model, *small, "--host-cache", "256KB") as server:
        for number in range(6):
            ask(server, f"{number} {STORY}")
        evicted = stored()
        assert evicted["host"] > 0 and evicted["disk"] > 0
        lost = evicted["pages"] - evicted["host"] - evicted["disk"]
        assert 0 <= lost <= server.metrics()["arbora_pages_lost_total"]
        os.kill(server.children["model"], signal.SIGKILL)
        eventually(lambda: not server.is_healthy)
        eventually(lambda: server.is_healthy)
        assert server.http.get("/cache/tree").json()["nodes"] == []


def test_with_write_through_a_killed_server_leaves_its_pages(served_model: Path, tmp_path: Path) -> None:
    disk = ("--disk-cache", str(tmp_path), "--write-policy", "write_through")
    with serve(served_model, *disk) as server:
        text, cached, tokens = ask(server, extra_body={"ignore_eos": True})
        assert cached == 0
        eventually(lambda: server.metrics()["arbora_disk_cache_pages"] == (tokens + 23) // PAGE)
        for pid in (server.process.pid, *server.children.values()):
            with contextlib.suppress(ProcessLookupError):  # it has ended with its parent
                os.kill(pid, signal.SIGKILL)
    with serve(served_model, *disk) as server:
        again = ask(server, extra_body={"ignore_eos": True})
        assert again == (text, whole_pages(tokens), tokens)


def test_an_engine_finds_the_pages_of_the_one_before_with_its_kv_dtype(
    served_model: Path, tmp_path: Path
) -> None:
    """The third engine restores the pages that the first one stored, and the fourth those of the second."""
    replies: dict[str, list[Any]] = {"int8": [], "auto": []}
    for kv_dtype in ("int8", "auto") * 2:
        options: Any = {"dtype": "float32", "kv_dtype": kv_dtype, "disk_cache": str(tmp_path)}
        with Engine(str(served_model), **options) as engine:
            replies[kv_dtype].append(engine.generate(STORY, max_tokens=24, temperature=0))
    for first, again in replies.values():
        assert first.text == again.text
        assert first.usage.cached_tokens == 0
        assert again.usage.cached_tokens == whole_pages(again.usage.prompt_tokens)


def test_the_runner_saves_before_it_overwrites_and_restores_before_it_reads(served_model: Path) -> None:
    driver = StepDriver.load(served_model, host_cache=16 << 20, page_size=4)
    mover = driver.runner.mover
    assert mover is not None
    prompt = [5, 17, 3, 250, 44, 80, 12, 9]
    driver.start(0)
    expected = driver.prefill(0, prompt)
    keys = b"a" * 16 + b"b" * 16
    own = driver.pages[0][:2]
    driver.start(1)
    overwriting = driver.row(1, [1, 2, 3, 4, 5, 6, 7, 8])
    overwriting.new_pages = packed(own)
    plan = StepPlan(100, [overwriting], saves=[SavedPages("", keys, packed(own))], setups=driver._setups)
    driver._setups = []
    driver.runner.run(plan, lambda: None)
    entries = [mover._store.pool.hold(key) for key in (keys[:16], keys[16:])]
    assert all(entries)
    held = [entry for entry in entries if entry is not None]
    mover._store._fetches._ready[7] = _Fetch(7, "", [entry.key for entry in held], entries=held)
    driver.start(2)
    driver.lengths[2] = 7
    driver._give(2, [driver._free.pop(), driver._free.pop()])
    row = driver.row(2, prompt[7:])
    first, second = ([RestoredPages(7, at, packed(driver.pages[2][at : at + 1]))] for at in range(2))
    assert driver.runner.run(StepPlan(101, [], restores=first), lambda: None).restored_ms > 0
    plan = StepPlan(102, [row], restores=second, fetches_over=[7], setups=driver._setups)
    result = driver.runner.run(plan, lambda: None)
    assert result.tokens == packed([expected])
    assert torch.is_inference_mode_enabled() is False
