"""Workloads: traces in Mooncake's format, and generated conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arbora.frontend.fleet.workload import make_conversations, read_trace
from arbora.runtime.errors import ConfigError

LINE = {"timestamp": 500, "input_length": 600, "output_length": 3, "hash_ids": [7, 9]}


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trace_is_read_and_hastened(tmp_path: Path) -> None:
    (arrival,) = read_trace(write(tmp_path / "trace.jsonl", LINE), speed=2.0)
    assert (arrival.at, arrival.length, arrival.output) == (0.25, 600, 3)
    prompt = np.frombuffer(arrival.make_prompt(), np.int32)
    assert prompt.tolist() == [7] * 512 + [9] * 88


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"timestamp": -1}, "line 2: timestamp -1 is negative"),
        ({"timestamp": 1}, "line 2: timestamp 1 is before"),
        ({"input_length": 0}, "line 2: input_length is 0"),
        ({"output_length": -2}, "line 2: output_length is -2"),
        ({"hash_ids": [1]}, "line 2: hash_ids has 1 blocks"),
        ({"hash_ids": [1, -5]}, "line 2: hash_ids has -5"),
        ({"hash_ids": "x"}, 'line 2: hash_ids is "x", but must be a list. Each line is'),
        ({"hash_ids": [1, 0.5]}, r"line 2: hash_ids\[1\] is 0.5, but must be an integer"),
        ({"input_length": None}, "line 2: input_length is null, but must be an integer"),
    ],
)
def test_a_bad_line_is_refused_with_its_field(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = write(tmp_path / "trace.jsonl", LINE, {**LINE, **change})
    with pytest.raises(ConfigError, match=told):
        read_trace(path)


def test_a_trace_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="no requests"):
        read_trace(write(tmp_path / "trace.jsonl"))


@pytest.mark.parametrize("rate", [1.0, 100.0, 1000.0])
def test_generated_conversations_come_at_their_rate_from_the_start(rate: float) -> None:
    times = [arrival.at for arrival in make_conversations(rate, requests=2000)]
    assert 1000 / times[999] == pytest.approx(rate, rel=0.15)
    assert 1000 / (times[1999] - times[999]) == pytest.approx(rate, rel=0.15)


def test_generated_conversations_end_before_the_context_does() -> None:
    arrivals = make_conversations(10.0, requests=2000, context=4096)
    assert max(arrival.length + arrival.output for arrival in arrivals) <= 4096
    assert max(arrival.length for arrival in arrivals) > 3000


def test_generated_conversations_grow_and_can_be_repeated() -> None:
    arrivals = make_conversations(rate=10.0, requests=400)
    assert arrivals == make_conversations(rate=10.0, requests=400)
    assert [arrival.at for arrival in arrivals] == sorted(arrival.at for arrival in arrivals)
    prefixes = {tuple(arrival.blocks) for arrival in arrivals}
    grown = [
        each
        for each in arrivals
        if any(tuple(each.blocks[:end]) in prefixes for end in range(17, len(each.blocks)))
    ]
    assert len(grown) > 100
