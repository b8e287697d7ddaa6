"""Adapters of a whole server: pages, changes while requests run, and restarts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import arbora
import pytest
from lora import merge, save_adapter
from processes import children_of, command_line
from transformers import AutoModelForCausalLM, PreTrainedModel

PROMPT = "the cat sat on the mat and the dog sat on the log. " * 3
GREEDY: Any = {"max_tokens": 12, "temperature": 0.0}
OPTIONS: Any = {"device": "cpu", "kv_memory": "4MiB", "debug": "invariants"}


@pytest.fixture(scope="module")
def base(model: str) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model)
    return loaded


@pytest.fixture(scope="module")
def adapters(base: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("adapters")
    return [save_adapter(directory / name, base, seed, size=1.0) for seed, name in enumerate("abcd")]


@pytest.fixture(scope="module")
def merged(
    base: PreTrainedModel, adapters: list[Path], tmp_path_factory: pytest.TempPathFactory, model: str
) -> list[str]:
    """The replies of the models with merged weights."""
    replies = []
    for path in adapters:
        directory = tmp_path_factory.mktemp("merged")
        for file in Path(model).iterdir():
            (directory / file.name).write_bytes(file.read_bytes())
        merge(base, path).save_pretrained(directory)
        (directory / "config.json").write_bytes((Path(model) / "config.json").read_bytes())
        with arbora.Engine(str(directory), **OPTIONS) as engine:
            replies.append(engine.generate(PROMPT, **GREEDY).text)
    return replies


@pytest.fixture(scope="module")
def engine(model: str, adapters: list[Path]) -> Iterator[arbora.Engine]:
    loras = {path.name: str(path) for path in adapters[:2]}
    with arbora.Engine(model, lora=loras, max_loras=3, **OPTIONS) as engine:
        yield engine


def reply(engine: arbora.Engine, name: str | None = None) -> tuple[str, int]:
    """The text, and the number of cached tokens."""
    options = {**GREEDY, "model": name} if name else GREEDY
    completion = engine.generate(PROMPT, **options)
    return completion.text, completion.usage.cached_tokens


def test_no_page_is_shared_between_adapters_and_each_finds_its_own(
    engine: arbora.Engine, merged: list[str]
) -> None:
    first = [reply(engine, name) for name in (None, "a", "b")]
    again = [reply(engine, name) for name in (None, "a", "b")]
    assert [text for text, _ in first] == [text for text, _ in again]
    assert [text for text, _ in first[1:]] == merged[:2] and len({text for text, _ in first}) == 3
    assert [cached for _, cached in first] == [0, 0, 0]
    assert all(cached > 0 for _, cached in again)


def test_requests_of_several_adapters_run_side_by_side(engine: arbora.Engine, merged: list[str]) -> None:
    names = [None, "a", "b"] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        texts = list(pool.map(lambda name: reply(engine, name)[0], names))
    assert texts == [reply(engine)[0], *merged[:2]] * 4


def test_an_adapter_that_changes_finds_no_old_pages(
    engine: arbora.Engine, adapters: list[Path], merged: list[str]
) -> None:
    engine.load_adapter("mine", str(adapters[2]))
    assert reply(engine, "mine") == (merged[2], 0)
    with pytest.raises(arbora.RequestError, match="already loaded"):
        engine.load_adapter("mine", str(adapters[3]))
    engine.unload_adapter("mine")
    with pytest.raises(arbora.RequestError, match=r"'mine' does not exist.*'a' and 'b'"):
        reply(engine, "mine")
    engine.load_adapter("mine", str(adapters[3]))
    assert reply(engine, "mine") == (merged[3], 0)
    engine.unload_adapter("mine")
    engine.load_adapter("mine", str(adapters[2]))
    text, cached = reply(engine, "mine")
    assert text == merged[2] and cached > 0
    engine.unload_adapter("mine")


def test_adapters_come_and_go_while_requests_run(
    engine: arbora.Engine, adapters: list[Path], merged: list[str]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(reply, engine, "ab"[at % 2]) for at in range(24)]
        for at in range(4):
            engine.load_adapter("moving", str(adapters[2 + at % 2]))
            moving = pool.submit(reply, engine, "moving")
            assert moving.result()[0] == merged[2 + at % 2]
            engine.unload_adapter("moving")
        assert [each.result()[0] for each in running] == merged[:2] * 12


def test_a_restarted_model_process_has_the_adapters_that_were_loaded(
    model: str, adapters: list[Path], merged: list[str]
) -> None:
    others = children_of(os.getpid())
    loras = {"a": str(adapters[0]), "gone": str(adapters[1])}
    with arbora.Engine(model, lora=loras, max_loras=3, **OPTIONS) as engine:
        engine.unload_adapter("gone")
        engine.load_adapter("more", str(adapters[2]))
        own = children_of(os.getpid()) - others
        (victim,) = [pid for pid in own if "arbora.runtime.model.process" in command_line(pid)]
        os.kill(victim, signal.SIGKILL)
        assert [reply(engine, name)[0] for name in ("more", "a")] == [merged[2], merged[0]]
        with pytest.raises(arbora.RequestError, match="'gone' does not exist"):
            reply(engine, "gone")


def test_an_adapter_that_can_not_be_used_is_refused_at_the_start(model: str, tmp_path: Path) -> None:
    with pytest.raises(arbora.ConfigError, match=r"lora bad=.*adapter_config.json: can't be read"):
        arbora.Engine(model, lora={"bad": str(tmp_path)}, **OPTIONS)
    with pytest.raises(arbora.ConfigError, match="two models or adapters of this name"):
        arbora.Engine(model, lora={Path(model).name: str(tmp_path)}, **OPTIONS)
