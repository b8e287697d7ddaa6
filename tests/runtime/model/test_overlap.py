"""The model process launches a step before it waits for the one before, and gives the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import logged_steps
import numpy as np
import pytest
from arbora.runtime.messages import (
    CacheDropped,
    DiscardPages,
    ForgetPages,
    LoadGrammar,
    Message,
    Row,
    SavePages,
    SlotSetup,
    StepMasks,
    StepPlan,
    StepResult,
)
from arbora.runtime.model.process import StepQueue, serve
from arbora.runtime.model.runner import Runner
from arbora.runtime.model.running_step import RunningStep
from arbora.runtime.processes.heartbeat import Heartbeat
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import bits
from logged_steps import Log
from step_driver import packed, unpacked
from triton_device import cache_as_on_a_gpu, triton_kernels  # noqa: F401

PROMPT = np.random.default_rng(2).integers(0, 256, 5).tolist()
PARAMS = (
    SamplingParams(max_tokens=64, temperature=1.0, seed=3, frequency_penalty=0.5),
    SamplingParams(max_tokens=64, temperature=0.0, logprobs=1),
)
PAGES = [packed(range(4 * slot, 4 * slot + 4)) for slot in range(3)]


class NoMessageError(Exception):
    pass


class Peer:
    """The scheduler's sockets: `script` says which messages come after each number of results."""

    def __init__(self, script: dict[int, list[Message]], events: list[str]) -> None:
        self.results: list[StepResult] = []
        self._script, self._events = script, events
        self._waiting: list[Message] = list(script.get(0, []))

    def receive(self, timeout_ms: int | None = None) -> Message | None:
        if self._waiting:
            return self._waiting.pop(0)
        if timeout_ms is None:
            raise NoMessageError
        return None

    def send(self, message: Message) -> None:
        assert isinstance(message, StepResult)
        self._events.append("send")
        self.results.append(message)
        self._waiting += self._script.get(len(self.results), [])


def served(runner: Runner, script: dict[int, list[Message]], events: list[str]) -> list[StepResult]:
    peer = Peer(script, events)
    with pytest.raises(NoMessageError):
        serve(runner, StepQueue(peer, Heartbeat()), peer)  # type: ignore[arg-type]
    return peer.results


def plans() -> list[StepPlan]:
    """Two prompts, rows in decode, and a third prompt beside them."""
    setups = [SlotSetup(slot, params) for slot, params in enumerate(PARAMS)]
    both = [
        Row(slot, 0, packed(PROMPT), new_pages=PAGES[slot], new_window_pages=[PAGES[slot]])
        for slot in range(2)
    ]
    late = Row(2, 0, packed(PROMPT[:3]), new_pages=PAGES[2], new_window_pages=[PAGES[2]])
    return [
        StepPlan(1, both, setups),
        *(StepPlan(n, [Row(0), Row(1)]) for n in (2, 3)),
        StepPlan(4, [Row(0), Row(1), late], [SlotSetup(2, PARAMS[0])]),
        StepPlan(5, [Row(0), Row(2)]),
    ]


def two_in_flight(steps: list[StepPlan]) -> dict[int, list[Message]]:
    """Sends the plans as the scheduler does: two at first, then one after each result."""
    return {0: list(steps[:2]), **{n: [step] for n, step in enumerate(steps[2:], 1)}}


class Sides:
    """The same steps on a device whose graphs are replayed and logged, and on the CPU."""

    def __init__(self, model: Path) -> None:
        self.log = Log()
        self.cpu = logged_steps.started(model, "cpu").runner
        self.device = logged_steps.with_graphs(model, self.log).runner

    def on_device(self, script: dict[int, list[Message]]) -> tuple[list[StepResult], list[str]]:
        self.log.events.clear()
        with triton_kernels(), self.log.attached():
            return served(self.device, script, self.log.events), self.log.events

    def on_cpu(self, script: dict[int, list[Message]]) -> tuple[list[StepResult], list[str]]:
        events: list[str] = []
        return served(self.cpu, script, events), events


@pytest.fixture(scope="module")
def sides(model: Path) -> Sides:
    return Sides(model)


def assert_same(got: list[StepResult], want: list[StepResult]) -> None:
    read: Callable[[StepResult], object] = lambda result: (  # noqa: E731
        result.step,
        unpacked(result.counts),
        unpacked(result.tokens),
        [(row.slot, row.logprobs.top_ids) for row in result.logprobs],
        result.errors,
    )
    assert [read(result) for result in got] == [read(result) for result in want]


def test_the_next_step_is_launched_before_the_tokens_of_the_last_are_awaited(sides: Sides) -> None:
    script = two_in_flight(plans())
    results, events = sides.on_device(script)
    assert [result.step for result in results] == [1, 2, 3, 4, 5]
    reads = [at for at, event in enumerate(events) if event == "read"]
    waits = [at for at, event in enumerate(events) if event == "wait"]
    assert len(reads) == len(waits) == 5
    for step in range(4):
        assert reads[step + 1] < waits[step], events
    assert events.index("send") > reads[1]
    assert_same(results, sides.on_cpu(script)[0])


def test_a_step_without_a_successor_is_finished_when_the_device_is_done(sides: Sides) -> None:
    steps = plans()
    script: dict[int, list[Message]] = {0: [steps[0]], 1: [steps[1]]}
    results, events = sides.on_device(script)
    assert [result.step for result in results] == [1, 2]
    assert [event for event in events if event in ("read", "wait", "send")] == ["read", "wait", "send"] * 2


def test_masks_are_awaited_after_the_result_on_which_they_depend_is_sent(sides: Sides) -> None:
    first, *_ = plans()
    masked = StepPlan(2, [Row(0, host_mask=True), Row(1)])
    masks = StepMasks(2, packed([0]), bits([201]))
    script: dict[int, list[Message]] = {
        0: [first, masked],
        1: [masks, StepPlan(3, [Row(0), Row(1)])],
    }
    results, events = sides.on_device(script)
    assert unpacked(results[1].tokens)[0] == 201
    graphs = [at for at, event in enumerate(events) if event == "graph"]
    # Both graphs of the first step and the second forward pass come before the first result.
    assert graphs[2] < events.index("send") < graphs[3]
    assert_same(results, sides.on_cpu(script)[0])


def test_a_cpu_sends_each_result_before_the_next_step_starts(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    start = Runner.start

    def logged(runner: Runner, plan: StepPlan) -> RunningStep:
        events.append("start")
        return start(runner, plan)

    monkeypatch.setattr(Runner, "start", logged)
    served(sides.cpu, two_in_flight(plans()), events)
    assert events == ["start", "send"] * 5


class SlowDevice:
    """A runner whose steps and saves are ready when it is asked the third time, and that notes calls."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self._asked = 0
        self.is_saving = False
        self.mover = self
        self.starts_alone = False

    def start(self, plan: StepPlan) -> SlowDevice:
        self._events.append("start")
        self._asked, self.is_saving = 0, False
        return self

    def sample(self, step: object, masks: object) -> None:
        pass

    def ready(self) -> bool:
        self._asked += 1
        return self._asked > 2

    def finish(self, step: object) -> StepResult:
        self._events.append("finish")
        return StepResult(1, b"", b"", b"", 0.0)

    def handle(self, message: Message) -> None:
        self.is_saving = isinstance(message, SavePages)
        self._events.append("save" if self.is_saving else "forget")
        self._asked = 0

    def saves_copied(self) -> bool:
        return self.ready()

    def publish_saves(self) -> None:
        self._events.append("publish")
        self.is_saving = False

    def load_grammar(self, message: Message) -> None:
        self._events.append("load")


def served_slowly(script: dict[int, list[Message]], starts_alone: bool = False) -> list[str]:
    events: list[str] = []
    device = SlowDevice(events)
    device.starts_alone = starts_alone
    served(device, script, events)  # type: ignore[arg-type]
    return events


def test_a_step_that_starts_alone_does_so_when_the_result_of_the_last_one_is_sent() -> None:
    script: dict[int, list[Message]] = {0: [StepPlan(1, []), StepPlan(2, [])]}
    assert served_slowly(script, starts_alone=True) == ["start", "finish", "send", "start", "finish", "send"]
    assert served_slowly(script) == ["start", "start", "finish", "send", "finish", "send"]


def test_a_running_step_ends_before_a_grammar_is_loaded() -> None:
    script: dict[int, list[Message]] = {0: [StepPlan(1, []), LoadGrammar(1, b"")]}
    assert served_slowly(script) == ["start", "finish", "send", "load"]


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (SavePages([]), "save"),
        (ForgetPages("", None, 0, CacheDropped(0, 0, 0)), "forget"),
        (DiscardPages("", b""), "forget"),
    ],
)
def test_a_step_is_launched_before_the_last_ends_even_if_pages_are_saved_or_forgotten_between(
    message: Message, event: str
) -> None:
    script: dict[int, list[Message]] = {0: [StepPlan(1, []), message, StepPlan(2, [])]}
    assert served_slowly(script) == ["start", event, "start", "finish", "send", "finish", "send"]


def test_pages_saved_while_no_step_runs_are_published_once_they_are_copied() -> None:
    assert served_slowly({0: [SavePages([])]}) == ["save", "publish"]
    script: dict[int, list[Message]] = {0: [StepPlan(1, []), SavePages([])]}
    assert served_slowly(script) == ["start", "save", "finish", "send", "publish"]
