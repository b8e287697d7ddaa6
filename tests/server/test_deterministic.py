"""A deterministic server in bfloat16: a mixed load in any order, cached, restored and after a restart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from arbora import Engine
from arbora.frontend.engine.completion import Completion

sys.path.append(str(Path(__file__).parents[2] / "bench" / "lib"))
from mixed_load import Answer, Ask, differing, mixed_load, replay, shuffled

COUNT = 48
ALONE = 12
IN_FLIGHT = 12
LOAD = mixed_load(COUNT)
HELLO = [{"role": "user", "content": "Hello there."}]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 20, "ignore_eos": True}
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "deterministic": True,
    "debug": "invariants",
    "max_running": 8,
    "max_model_len": 1500,
    "kv_memory": "512KiB",
    "host_cache": "8MiB",
    "write_policy": "write_through",
}
"""Memory for a few requests at a time, so that pages are restored from lower tiers."""


class Observed(NamedTuple):
    """`turns` are replies to one conversation, whose first reply only the first server gave."""

    runs: list[list[Answer]]
    alone: list[Answer]
    turns: list[Completion]


@pytest.fixture(scope="module")
def observed(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    outside = [Ask(ask.messages, ask.prompt, ask.sampling | {"cache_prompt": False}) for ask in LOAD[:ALONE]]
    options = {**OPTIONS, "disk_cache": str(tmp_path_factory.mktemp("pages"))}
    with Engine(str(served_model), **options) as first:
        runs = [replay(first, LOAD, shuffled(COUNT, order), IN_FLIGHT) for order in (1, 2)]
        alone = replay(first, outside, range(ALONE), 1)
        said = first.chat(HELLO, **SAMPLED).text
        conversation = [
            *HELLO,
            {"role": "assistant", "content": said},
            {"role": "user", "content": "And then?"},
        ]
        turns = [first.chat(conversation, **SAMPLED)]
    with Engine(str(served_model), **options) as second:
        runs.append(replay(second, LOAD, shuffled(COUNT, 3), IN_FLIGHT))
        turns.append(second.chat(conversation, **SAMPLED))
    return Observed(runs, alone, turns)


@pytest.mark.parametrize("later", [1, 2], ids=["cached", "after a restart"])
def test_a_mixed_load_has_the_same_tokens_in_any_order(observed: Observed, later: int) -> None:
    first, again = observed.runs[0], observed.runs[later]
    assert sum(len(answer.tokens) for answer in first) > COUNT * 10
    numbers = differing(first, again)
    assert not numbers, [(LOAD[number], first[number], again[number]) for number in numbers[:1]]


def test_a_request_alone_and_uncached_gets_the_same_text_as_in_a_batch(observed: Observed) -> None:
    assert not differing(observed.runs[0][:ALONE], observed.alone)


def test_a_next_turn_has_the_same_tokens_where_the_server_gave_the_reply_before_it(
    observed: Observed,
) -> None:
    """Sampled tokens often differ from the tokenizer's for the same text; a restart forgets them."""
    knows, knows_not = observed.turns
    assert knows.usage.prompt_tokens == knows_not.usage.prompt_tokens
    assert knows.tokens == knows_not.tokens
