"""What a step that replays graphs asks of the device: a change that adds a copy, a launch or a wait fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import logged_steps
import numpy as np
import pytest
from arbora.runtime.messages import Row, RowGroup, StepMasks
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import bits, nested
from logged_steps import Log
from stack_automata import load_message
from step_driver import StepDriver, packed
from triton_device import cache_as_on_a_gpu, triton_kernels  # noqa: F401

PROMPT = np.random.default_rng(1).integers(0, 256, 5).tolist()
SAMPLED = SamplingParams(max_tokens=64, temperature=1.0, seed=3, top_k=20)
EDITED = SamplingParams(max_tokens=64, temperature=1.0, seed=9, frequency_penalty=0.8, logit_bias={3: 4.0})
REPORTED = SamplingParams(max_tokens=64, temperature=0.0, logprobs=2)
LEAST = {"copy": 2, "graph": 2, "read": 1, "wait": 1}
"""inputs and sampling's parameters; forward pass and sampling; results"""
WITH_EDITS = {**LEAST, "copy": 3}
WITH_MASKS = {**LEAST, "copy": 4}


class Steps:
    """Counts the events of each step on a device where every kind of row has started."""

    def __init__(self, driver: StepDriver, log: Log) -> None:
        self.driver, self._log = driver, log
        self.driver.runner.load_grammar(load_message(4, nested()))
        for slot, params in enumerate((SAMPLED, SAMPLED, EDITED, REPORTED)):
            self.driver.start(slot, params, grammar=4 if slot == 1 else None)
            if slot == 1:
                self.driver.share(slot, 0, 4)
            self.driver.run([self.driver.row(slot, PROMPT)])

    def count(self, rows: Sequence[Row], groups: Sequence[RowGroup] = (), **masks: StepMasks) -> Counter[str]:
        self._log.events.clear()
        with self._log.attached():
            self.driver.run(rows, groups, lambda: masks.get("masks"))
        return Counter(self._log.events)


@pytest.fixture(scope="module")
def steps(model: Path) -> Iterator[Steps]:
    log = Log()
    driver = logged_steps.with_graphs(model, log)
    with triton_kernels():
        yield Steps(driver, log)


@pytest.fixture
def driver(steps: Steps) -> StepDriver:
    return steps.driver


def test_a_decode_step_has_two_copies_two_graphs_and_one_wait(steps: Steps, driver: StepDriver) -> None:
    assert steps.count([driver.row(0)]) == LEAST
    assert steps.count([driver.row(0), driver.row(1)], [RowGroup(0, 2, 4)]) == LEAST


def test_a_step_with_a_chunk_costs_no_more(steps: Steps, driver: StepDriver) -> None:
    assert steps.count([driver.row(1), driver.row(0, [1, 2, 3])]) == LEAST
    assert steps.count([driver.row(1), driver.row(0, [1, 2, 3], samples=0)]) == LEAST


def test_edits_and_logprobs_of_any_row_cost_one_copy_more(steps: Steps, driver: StepDriver) -> None:
    assert steps.count([driver.row(slot) for slot in (0, 1, 2)]) == WITH_EDITS
    assert steps.count([driver.row(slot) for slot in (0, 1, 2, 3)]) == WITH_EDITS
    assert steps.count([driver.row(3)]) == WITH_EDITS


def test_masks_of_the_host_cost_the_copy_of_their_bits(steps: Steps, driver: StepDriver) -> None:
    rows = [driver.row(0, host_mask=True), driver.row(1)]
    assert steps.count(rows, masks=StepMasks(1, packed([0]), bits([201, 202]))) == WITH_MASKS


def test_a_step_that_samples_nothing_waits_once_and_has_one_graph(steps: Steps, driver: StepDriver) -> None:
    expected = {"copy": 1, "graph": 1, "read": 1, "wait": 1}
    assert steps.count([driver.row(0, [4, 5], samples=0)]) == expected
