"""Steps with drafts on the CUDA path (interpreted without a GPU), against single tokens on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from arbora.kernels.common.drafts import Drafts
from arbora.kernels.sampling.batch import HostMask
from arbora.kernels.sampling.packed_results import PackedResults
from arbora.runtime.model import forward_graphs, sampling_graphs
from arbora.runtime.model.capture import Captures
from arbora.runtime.model.executor import EagerExecutor
from arbora.runtime.model.forward_graphs import ForwardGraphs
from arbora.runtime.model.input_batch import StepInputs
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.sampling_graphs import SamplingGraphs
from arbora.runtime.model.slot_states import SlotStates
from arbora.runtime.model.tiers import Restore
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import byte_vocabulary, nested
from drafted_steps import Guess, ScriptedDrafter, Token, decode, half_right, right, wrong
from recorded_launches import capture
from stack_automata import load_message
from step_driver import BIASED, FILTERED, GREEDY, PENALISED, StepDriver, device_of, packed, serve_config
from triton_device import DEVICE, cache_as_on_a_gpu, triton_kernels  # noqa: F401

SLOTS, TOKENS, DRAFTS = 4, 7, 2
PROMPT = np.random.default_rng(0).integers(0, 256, 5).tolist()
CONSTRAINED = SamplingParams(max_tokens=64, temperature=1.0, seed=4, logprobs=0)
EDITED = [CONSTRAINED, PENALISED, BIASED]
PLAIN = [FILTERED, SamplingParams(max_tokens=64, temperature=1.0, seed=3), GREEDY]


class Graphed(EagerExecutor):
    """Runs forward passes and sampling as recorded graphs, and counts the steps of both."""

    def __init__(self, driver: StepDriver) -> None:
        super().__init__(device_of(driver))
        self.replayed = [0, 0]
        device = self._device
        rows = SLOTS + device.states.max_drafts
        hidden = torch.zeros(rows, device.model.config.hidden_size, device=DEVICE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forward_graphs, "MAX_TOKENS", rows)
            for module in (forward_graphs, sampling_graphs):
                patch.setattr(module, "choose_sizes", lambda most: sorted({4, most}))
            self._sampling = SamplingGraphs(device.model, device.states, hidden, Captures(capture()))
            spec = device.model.config.cache_spec
            self._forward = ForwardGraphs(spec, hidden, device.tables, device.states)
            self._forward.capture(device.model, device.kvs, Captures(capture()))
        driver.runner._executor = self

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        hidden = self._forward.forward(inputs)
        self.replayed[0] += hidden is not None
        return super().run(inputs, restore) if hidden is None else hidden

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        results = self._sampling.sample(inputs, hidden, mask)
        self.replayed[1] += results is not None
        return super().sample(inputs, hidden, mask) if results is None else results


def start_driver(model: Path, device: str, kinds: list[SamplingParams], speculate: int) -> StepDriver:
    """A driver whose slots have sampled a token each."""
    sizes = {"page_size": 4, "max_model_len": 40, "max_running": SLOTS, "enforce_eager": True}
    config = serve_config(model, device=device, speculate=speculate, **sizes)
    loaded = load_model(config, byte_vocabulary)
    driver = StepDriver(loaded.runner, loaded.ready)
    driver.runner.load_grammar(load_message(1, nested()))
    for slot, params in enumerate(kinds):
        grammar = 1 if params is CONSTRAINED else None
        setup = {"prompt": packed(PROMPT), "banned_tokens": packed([7, 9]), "grammar": grammar}
        driver.start(slot, params, **setup)
        driver.run([driver.row(slot, PROMPT)])
    return driver


def without_logprobs(reply: dict[int, list[Token]]) -> dict[int, list[tuple[int, int]]]:
    return {slot: [(each.token, each.state) for each in tokens] for slot, tokens in reply.items()}


def check_same(model: Path, kinds: list[SamplingParams], guess: Guess, with_graphs: bool) -> list[int]:
    """How many steps of forward passes and of sampling were replayed."""
    slots = range(len(kinds))
    plain = start_driver(model, "cpu", kinds, 0)
    expected = decode(plain, slots, TOKENS)
    driver = start_driver(model, DEVICE.type, kinds, DRAFTS)
    script = {slot: [each.token for each in reply] for slot, reply in expected.items()}
    drafter = driver.runner._drafter = ScriptedDrafter(script, guess)
    replayed = [0, 0]
    with triton_kernels():
        if with_graphs:
            replayed = Graphed(driver).replayed
        found = decode(driver, slots, TOKENS, 1 + DRAFTS)
    assert without_logprobs(found) == without_logprobs(expected)
    assert (drafter.accepted == 0) == (guess is wrong)
    for slot in slots:
        for one, other in zip(found[slot], expected[slot], strict=True):
            mine, theirs = (np.frombuffer(each.logprob, np.float32) for each in (one, other))
            np.testing.assert_allclose(mine, theirs, atol=1e-4)
    drafted, undrafted = (each.runner._states for each in (driver, plain))
    assert drafted.sampling._numbers["position"].tolist() == undrafted.sampling._numbers["position"].tolist()
    assert drafted.sampling.last_tokens[:SLOTS].tolist() == undrafted.sampling.last_tokens[:SLOTS].tolist()
    assert drafted.registers.values.tolist() == undrafted.registers.values.tolist()
    ours = drafted.sampling.history.output_counts[: len(undrafted.sampling.history.output_counts)]
    entries = undrafted.sampling.history._entry_of_slot
    for slot, entry in entries.items():
        place = drafted.sampling.history._entry_of_slot[slot]
        assert ours[place].tolist() == undrafted.sampling.history.output_counts[entry].tolist()
    return replayed


@pytest.mark.parametrize("guess", [right, wrong, half_right])
@pytest.mark.parametrize("kinds", [EDITED, PLAIN], ids=["edited", "plain"])
def test_launched_steps_sample_the_same_with_drafts(
    model: Path, guess: Guess, kinds: list[SamplingParams]
) -> None:
    assert check_same(model, kinds, guess, with_graphs=False) == [0, 0]


@pytest.mark.parametrize("guess", [right, half_right])
@pytest.mark.parametrize("kinds", [EDITED, PLAIN], ids=["edited", "plain"])
def test_replayed_steps_sample_the_same_with_drafts(
    model: Path, guess: Guess, kinds: list[SamplingParams]
) -> None:
    forward, sampling = check_same(model, kinds, guess, with_graphs=True)
    assert forward == sampling >= 3


def test_drafts_that_the_grammar_forbids_are_rejected_on_the_device(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_all(states: SlotStates, drafts: Drafts) -> Drafts:
        return drafts

    monkeypatch.setattr(SlotStates, "cut_drafts", keep_all)  # the host does not know a GPU's states
    check_same(model, [CONSTRAINED], lambda tokens: [*tokens[:1], *[0] * len(tokens[1:])], with_graphs=True)
