"""Requests that leave out sampling fields, to a model that recommends some."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served import Served, serve, write_served_checkpoint

MESSAGES: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A random model that recommends the temperature 0."""
    model = write_served_checkpoint(tmp_path_factory.mktemp("model"))
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0, "top_p": 0.9}))
    with serve(model) as served:
        yield served


def reply(served: Served, seed: int, **fields: Any) -> str:
    chat = served.client.chat.completions.create(
        model=served.model,
        messages=MESSAGES,
        max_tokens=12,
        seed=seed,
        extra_body={"ignore_eos": True},
        **fields,
    )
    text: str = chat.choices[0].message.content
    return text


def test_an_absent_temperature_is_the_recommended_one(greedy: Served) -> None:
    assert len({reply(greedy, seed) for seed in range(4)} | {reply(greedy, 9, temperature=0)}) == 1


def test_a_request_may_ask_for_another_temperature(greedy: Served) -> None:
    assert len({reply(greedy, seed, temperature=1) for seed in range(4)}) > 1


def test_a_response_says_with_which_values_it_was_sampled(greedy: Served) -> None:
    absent = greedy.client.responses.create(model=greedy.model, input="Hello", max_output_tokens=16)
    given = greedy.client.responses.create(
        model=greedy.model, input="Hello", max_output_tokens=16, temperature=0.5, top_p=1
    )
    assert (absent.temperature, absent.top_p) == (0, 0.9)
    assert (given.temperature, given.top_p) == (0.5, 1)
