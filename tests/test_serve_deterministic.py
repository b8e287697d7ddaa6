"""A deterministic server in bfloat16: a mixed load in any order, cached, restored and after a restart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from arbora import Engine

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from mixed_load import Answer, Ask, differing, mixed_load, replay, shuffled

COUNT = 48
ALONE = 18
IN_FLIGHT = 12
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "max_running": 8, "check_invariants": True}


def test_a_mixed_load_has_the_same_tokens_in_any_order_and_after_a_restart(
    served_model: Path, tmp_path: Path
) -> None:
    """With memory for a few requests at a time, so that pages come back from lower tiers."""
    load = mixed_load(COUNT)
    tiers = {"host_cache": "8MiB", "disk_cache": str(tmp_path), "write_policy": "write_through"}
    small: dict[str, Any] = {**OPTIONS, **tiers, "kv_memory": "512KiB", "max_model_len": 1500}
    runs: list[list[Answer]] = []
    for orders in ((1, 2), (3,)):
        with Engine(str(served_model), deterministic=True, **small) as engine:
            runs += [replay(engine, load, shuffled(COUNT, order), IN_FLIGHT) for order in orders]
    assert sum(len(answer.tokens) for answer in runs[0]) > COUNT * 10
    for later in runs[1:]:
        numbers = differing(runs[0], later)
        assert not numbers, [(load[number], runs[0][number], later[number]) for number in numbers[:1]]


def test_a_request_alone_and_uncached_says_what_it_says_in_a_crowd(served_model: Path) -> None:
    load = mixed_load(ALONE, seed=1)
    outside = [Ask(ask.messages, ask.prompt, ask.sampling | {"cache_prompt": False}) for ask in load]
    with Engine(str(served_model), deterministic=True, kv_memory="8MiB", **OPTIONS) as engine:
        crowd = replay(engine, load, shuffled(ALONE, 1), IN_FLIGHT)
        alone = replay(engine, outside, range(ALONE), 1)
    assert not differing(crowd, alone)


def test_a_next_turn_has_the_same_tokens_whether_or_not_the_server_gave_the_reply_before_it(
    served_model: Path,
) -> None:
    """What was sampled is often not what the tokenizer makes of its text, and is forgotten at a restart."""
    asked = {"temperature": 1.0, "seed": 3, "max_tokens": 20, "ignore_eos": True}
    messages = [{"role": "user", "content": "Hello there."}]
    turns = []
    for remembers in (True, False):
        with Engine(str(served_model), deterministic=True, kv_memory="8MiB", **OPTIONS) as engine:
            if remembers:
                text = engine.chat(messages, **asked).text
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
            turns.append(engine.chat(messages, **asked))
    assert turns[0].usage.prompt_tokens == turns[1].usage.prompt_tokens
    assert turns[0].tokens == turns[1].tokens
