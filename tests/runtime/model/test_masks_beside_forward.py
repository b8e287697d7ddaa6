"""The automata's masks are written beside the forward pass, and are those that the CPU samples with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import logged_steps
import numpy as np
import pytest
import torch
from arbora.kernels.automaton import pool as automaton_pool
from arbora.runtime.messages import DropGrammar, StepMasks, StepResult
from arbora.runtime.model.forward_graphs import SideStream
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import bits, nested
from checkpoints import WINDOWED, random_model, save_model
from logged_steps import MAX_TOKENS, Log
from stack_automata import load_message
from step_driver import StepDriver, packed, unpacked
from triton_device import DEVICE, cache_as_on_a_gpu, triton_kernels  # noqa: F401

T = TypeVar("T")
PROMPT = np.random.default_rng(3).integers(0, 256, 4).tolist()
LONG = np.random.default_rng(4).integers(0, 256, MAX_TOKENS + 1).tolist()
PARAMS = [SamplingParams(max_tokens=64, temperature=1.0, seed=seed) for seed in range(4)]
MANY_LOGPROBS = SamplingParams(max_tokens=64, temperature=1.0, seed=9, logprobs=21)
MASK_KERNELS = ["copy_kernel", "flip_kernel", "decide_kernel"]


class Twins:
    """Runs the same steps with replayed graphs and on the CPU; both must give the same tokens and states."""

    def __init__(self, model: Path) -> None:
        self.log = Log()
        self.expected, self.replayed = (
            logged_steps.started(model, "cpu"),
            logged_steps.with_graphs(model, self.log),
        )
        self._lengths = [0] * logged_steps.SLOTS

    def _both(self, work: Callable[[StepDriver], T]) -> tuple[T, T]:
        """What `work` returns on the CPU and with replayed graphs."""
        expected = work(self.expected)
        with triton_kernels():
            return expected, work(self.replayed)

    def load(self, grammar: int) -> None:
        self._both(lambda driver: driver.runner.load_grammar(load_message(grammar, nested())))

    def drop(self, grammar: int) -> None:
        self._both(lambda driver: driver.runner.drop_grammar(DropGrammar(grammar)))

    def start(
        self, slot: int, grammar: int | None, params: SamplingParams | None = None, state: int = 0
    ) -> None:
        self._both(lambda driver: driver.start(slot, params or PARAMS[slot], grammar=grammar, state=state))

    def step(self, *rows: tuple[int, list[int]], samples: int = 1, masked: int | None = None) -> list[int]:
        """rows: each slot with its tokens (none: the token that it sampled last). Returns the states."""
        both = self._both(lambda driver: self._run(driver, rows, samples, masked))
        want, got = ((unpacked(r.counts), unpacked(r.tokens), unpacked(r.states), r.errors) for r in both)
        assert got == want
        return got[2]

    def _run(
        self, driver: StepDriver, rows: tuple[tuple[int, list[int]], ...], samples: int, masked: int | None
    ) -> StepResult:
        made = [driver.row(slot, tokens, samples=samples, host_mask=slot == masked) for slot, tokens in rows]
        return driver.run(made, masks=lambda: StepMasks(0, packed([masked or 0]), bits([201, 202])))


@pytest.fixture
def twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Twins:
    for name in ("STATES", "ENTRIES", "ACTIONS", "RETURNS", "LISTS", "LIST_TOKENS", "MASKS", "GRAMMARS"):
        monkeypatch.setattr(automaton_pool, f"FIRST_{name}", 1)  # so that tables move with each grammar
    return Twins(save_model(random_model("qwen3", **{**WINDOWED, "num_hidden_layers": 2}), tmp_path))


def test_masks_follow_the_rows_of_any_steps(twins: Twins) -> None:
    if DEVICE.type == "cpu":  # the interpreter knows the kernels of each graph
        kernels = [[name for name in graph if name in MASK_KERNELS] for graph in twins.log.graphs]
        masking = ["process_kernel" not in graph for graph in twins.log.graphs]
        assert kernels == [MASK_KERNELS if forward else [] for forward in masking]
        assert {True, False} == set(masking)
    twins.start(0, None)
    twins.step((0, PROMPT))
    twins.load(1)
    twins.start(1, 1)
    twins.step((0, [9]), (1, PROMPT[:2]), samples=0)  # two chunks
    assert twins.step((0, []), (1, PROMPT[2:]))[1] >= 0
    twins.load(2)
    twins.start(2, 2, MANY_LOGPROBS)
    twins.step((1, []), (0, []))
    twins.step((1, []), (2, PROMPT))  # sampled kernel by kernel
    twins.step((2, []), (1, []))
    twins.start(3, 1)
    twins.step((1, []), (3, LONG))  # a forward pass without a graph
    twins.step((3, []), (0, []), (1, []))
    twins.step((0, []), (3, []), masked=0)
    state = twins.step((3, []))[0]
    twins.drop(2)
    twins.load(3)
    twins.start(2, None)  # another request in the slot
    twins.start(1, 3, state=state)  # resumes in the middle of a grammar
    assert twins.step((3, []), (2, PROMPT), (1, PROMPT))[1] < 0
    twins.step((1, []), (2, []), (3, []))


class FakeStream:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.device, self._events = name, torch.device("cuda"), events

    def wait_stream(self, other: FakeStream) -> None:
        self._events.append(f"{self.name} waits for {other.name}")


def test_a_side_stream_begins_after_the_current_one_which_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = list[str]()
    current = FakeStream("current", events)

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    fake = SimpleNamespace(
        Stream=lambda device: FakeStream("side", events), current_stream=lambda device: current, stream=on
    )
    monkeypatch.setattr(torch, "cuda", fake)
    with SideStream(torch.device("cuda")).beside(lambda: events.append("masks")):
        events.append("forward")
    assert events == [
        "side waits for current",
        "on side",
        "masks",
        "off side",
        "forward",
        "current waits for side",
    ]
