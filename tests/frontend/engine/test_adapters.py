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
from transformers_oracle import expected_greedy

PROMPT = "the cat sat on the mat and the dog sat on the log. " * 3
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
def merged(base: PreTrainedModel, adapters: list[Path]) -> list[PreTrainedModel]:
    return [merge(base, path) for path in adapters]


@pytest.fixture(scope="module")
def engine(model: str, adapters: list[Path]) -> Iterator[arbora.Engine]:
    loras = {path.name: str(path) for path in adapters[:2]}
    with arbora.Engine(model, lora=loras, max_loras=3, **OPTIONS) as engine:
        yield engine


def reply(engine: arbora.Engine, name: str | None = None) -> arbora.Completion:
    chosen = arbora.Sampling(model=name) if name else arbora.Sampling()
    return engine.generate(PROMPT, chosen, max_tokens=12, temperature=0.0)


def is_reply_of(model: PreTrainedModel, completion: arbora.Completion) -> bool:
    """Whether the tokens are the most probable ones of a model."""
    tokens = list(completion.choices[0].tokens)
    return expected_greedy(model, list(completion.prompt_tokens), tokens) == tokens


def test_no_page_is_shared_between_adapters_and_each_finds_its_own(
    engine: arbora.Engine, base: PreTrainedModel, merged: list[PreTrainedModel]
) -> None:
    models = {None: base, "a": merged[0], "b": merged[1]}
    first = [reply(engine, name) for name in models]
    again = [reply(engine, name) for name in models]
    for replies in (first, again):
        assert all(map(is_reply_of, models.values(), replies))
    assert len({each.text for each in first}) == 3
    assert [each.usage.cached_tokens for each in first] == [0, 0, 0]
    assert all(each.usage.cached_tokens > 0 for each in again)


def test_requests_of_several_adapters_run_side_by_side(
    engine: arbora.Engine, base: PreTrainedModel, merged: list[PreTrainedModel]
) -> None:
    names = [None, "a", "b"] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        replies = list(pool.map(lambda name: reply(engine, name), names))
    assert all(map(is_reply_of, [base, *merged[:2]] * 4, replies))


def test_an_adapter_that_changes_finds_no_old_pages(
    engine: arbora.Engine, adapters: list[Path], merged: list[PreTrainedModel]
) -> None:
    cached = []
    for number in (2, 3, 2):
        engine.load_adapter("mine", str(adapters[number]))
        with pytest.raises(arbora.RequestError, match="already loaded"):
            engine.load_adapter("mine", str(adapters[0]))
        completion = reply(engine, "mine")
        assert is_reply_of(merged[number], completion)
        cached.append(completion.usage.cached_tokens)
        engine.unload_adapter("mine")
        with pytest.raises(arbora.RequestError, match=r"'mine' does not exist.*'a' and 'b'"):
            reply(engine, "mine")
    assert cached[:2] == [0, 0] and cached[2] > 0


def test_adapters_come_and_go_while_requests_run(
    engine: arbora.Engine, adapters: list[Path], merged: list[PreTrainedModel]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(reply, engine, "ab"[at % 2]) for at in range(24)]
        for at in range(4):
            engine.load_adapter("moving", str(adapters[2 + at % 2]))
            moving = pool.submit(reply, engine, "moving")
            assert is_reply_of(merged[2 + at % 2], moving.result())
            engine.unload_adapter("moving")
        assert all(is_reply_of(merged[at % 2], each.result()) for at, each in enumerate(running))


def test_a_restarted_model_process_has_the_adapters_that_were_loaded(
    model: str, adapters: list[Path], merged: list[PreTrainedModel]
) -> None:
    others = children_of(os.getpid())
    loras = {"a": str(adapters[0]), "gone": str(adapters[1])}
    with arbora.Engine(model, lora=loras, max_loras=3, **OPTIONS) as engine:
        engine.unload_adapter("gone")
        engine.load_adapter("more", str(adapters[2]))
        own = children_of(os.getpid()) - others
        (victim,) = [pid for pid in own if "arbora.runtime.model.process" in command_line(pid)]
        os.kill(victim, signal.SIGKILL)
        assert is_reply_of(merged[2], reply(engine, "more")) and is_reply_of(merged[0], reply(engine, "a"))
        with pytest.raises(arbora.RequestError, match="'gone' does not exist"):
            reply(engine, "gone")


def test_scripts_written_for_vllm_choose_adapters(
    model: str, base: PreTrainedModel, adapters: list[Path], merged: list[PreTrainedModel]
) -> None:
    llm = arbora.LLM(model, enable_lora=True, max_lora_rank=8, **OPTIONS)
    sampling = arbora.SamplingParams(temperature=0.0, max_tokens=8)
    wanted = arbora.LoRARequest("first", 1, str(adapters[0]))
    for _ in range(2):
        outputs = llm.generate([PROMPT, PROMPT], sampling, use_tqdm=False, lora_request=[None, wanted])
        for source, output in zip((base, merged[0]), outputs, strict=True):
            tokens = list(output.outputs[0].token_ids)
            assert expected_greedy(source, list(output.prompt_token_ids), tokens) == tokens
    llm.engine.close()


def test_an_adapter_that_can_not_be_used_is_refused_at_the_start(model: str, tmp_path: Path) -> None:
    with pytest.raises(arbora.ConfigError, match=r"lora bad=.*adapter_config.json: can't be read"):
        arbora.Engine(model, lora={"bad": str(tmp_path)}, **OPTIONS)
    with pytest.raises(arbora.ConfigError, match="two models or adapters of this name"):
        arbora.Engine(model, lora={Path(model).name: str(tmp_path)}, **OPTIONS)
