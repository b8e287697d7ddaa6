"""A server whose model runs as two ranks answers as one with a single process, and outlives a dead rank. The
ranks exchange tensors in shared memory, or as those on GPUs do, but by gloo."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import process_group_server
import pytest
from processes import children_of, command_line, is_alive
from served import Served, eventually, serve, write_served_checkpoint

REQUESTS: list[Any] = [
    {"prompt": "Once upon a time", "max_tokens": 40},
    {"prompt": "The river runs past the mill. " * 12, "max_tokens": 30, "temperature": 1.0, "seed": 7},
    {"prompt": "The river runs past the mill. " * 12 + "And", "max_tokens": 30, "frequency_penalty": 0.5},
    {"prompt": "A number: ", "max_tokens": 20, "structured_outputs": {"regex": "[0-9]{3}-[a-z]{2,5}"}},
    {
        "prompt": "A word: ",
        "max_tokens": 20,
        "structured_outputs": {"grammar": 'start: "yes" | "no" | /[x-z]+/'},
    },
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["in shared memory", "in a process group"])
def server(model: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Its model runs as two ranks."""
    in_group = request.param == "in a process group"
    program = (process_group_server.__file__,) if in_group else ("-m", "arbora")
    debug = "invariants,eager" if in_group else "invariants"
    with serve(model, "--tp", "2", "--debug", debug, program=program) as made:
        yield made


@pytest.fixture(scope="module")
def answers(model: Path) -> list[str]:
    """Those of a single process."""
    with serve(model) as single:
        return [complete(single, each) for each in REQUESTS]


def complete(server: Served, fields: Any) -> str:
    answer = server.http.post("/v1/completions", json={"temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def find_ranks(server: Served) -> list[int]:
    """The process ids of the ranks, in the order of their start."""
    programs = ("runtime.model.process", "process_group_model.py")
    commands = {pid: " ".join(command_line(pid)) for pid in children_of(server.process.pid)}
    return sorted(pid for pid, command in commands.items() if any(each in command for each in programs))


def test_two_ranks_answer_as_one_process(server: Served, answers: list[str]) -> None:
    assert len(find_ranks(server)) == 2
    assert [complete(server, each) for each in REQUESTS] == answers
    assert [complete(server, each) for each in REQUESTS] == answers, "the cache changes nothing"


def test_when_a_rank_dies_all_start_again_and_answer_the_same(server: Served, answers: list[str]) -> None:
    first, second = find_ranks(server)
    os.kill(second, signal.SIGKILL)
    eventually(lambda: not is_alive(first) and not is_alive(second))
    eventually(lambda: server.is_healthy and len(find_ranks(server)) == 2)
    assert [complete(server, each) for each in REQUESTS] == answers
    assert any("starting it again" in line for line in server.log)


def test_replicas_of_ranks_make_the_vectors_of_one_process(model: Path) -> None:
    texts = ["the river", "a mill that stands by a river " * 9, "bread"] * 4
    vectors = []
    for options in ((), ("--replicas", "2", "--tp", "2")):
        with serve(model, "--runner", "pooling", *options) as server:
            answer = server.http.post("/v1/embeddings", json={"input": texts})
            assert answer.status_code == 200, answer.text
            vectors.append(np.array([each["embedding"] for each in answer.json()["data"]]))
            if options:
                assert len(find_ranks(server)) == 4
    expected, found = vectors
    assert np.allclose(found, expected, atol=1e-5)
