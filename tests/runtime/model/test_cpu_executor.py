"""Steps run by recorded CPU programs against the same steps run kernel by kernel."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from arbora.kernels.common.drafts import Drafts
from arbora.kernels.pages.segments import gather_pages, set_pages
from arbora.kernels.sampling.batch import HostMask
from arbora.kernels.sampling.packed_results import PackedResults
from arbora.runtime.messages import DropGrammar, RowGroup, StepMasks, StepPlan, StepResult
from arbora.runtime.model import cpu_executor
from arbora.runtime.model.cpu_executor import CpuExecutor
from arbora.runtime.model.input_batch import StepInputs
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.tiers import Restore
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import bits, byte_vocabulary, nested
from checkpoints import WINDOWED, random_model, save_model
from quantized_checkpoints import CASES, write_quantized
from stack_automata import load_message
from step_driver import BIASED, FILTERED, GREEDY, PENALISED, StepDriver, packed, serve_config, unpacked

SLOTS, PAGE, CONTEXT = 6, 4, 128
PROMPTS = [np.random.default_rng(length).integers(0, 256, length).tolist() for length in (3, 40, 5, 21, 2, 9)]
REPORTED = msgspec.structs.replace(FILTERED, logprobs=3)
CONSTRAINED = SamplingParams(max_tokens=64, temperature=1.0, seed=4, logprobs=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    fields = {"plain": {}, "windowed": WINDOWED, "long window": {**WINDOWED, "sliding_window": 12}}
    qwen = {name: random_model("qwen3", **given) for name, given in fields.items()}
    chosen = {**qwen, **{family: random_model(family) for family in ("gemma2", "gemma3")}}
    return {name: save_model(model, tmp_path_factory.mktemp(name)) for name, model in chosen.items()}


@pytest.fixture(autouse=True)
def converted(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantized models run as programs on every processor."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "converted"))


class NotingExecutor:
    """Notes the steps whose program samples: "whole", or "next" if it continues the step before."""

    def __init__(self, executor: CpuExecutor, kinds: list[str]) -> None:
        self.executor, self._kinds = executor, kinds

    def build_inputs(self, plan: StepPlan, drafts: Drafts | None) -> StepInputs | None:
        inputs = self.executor.build_inputs(plan, drafts)
        self._kind = "whole" if self.executor._program is None else "next"
        return inputs

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        hidden = self.executor.run(inputs, restore)
        self._kinds += [] if self.executor._results is None else [self._kind]
        return hidden

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        return self.executor.sample(inputs, hidden, mask)


class Twins:
    """Runs the same steps kernel by kernel and as programs, and notes what ran as programs."""

    def __init__(self, model: Path, **fields: Any) -> None:
        self.kinds: list[str] = []
        self.eager, self.driver = (self._driver(model, eager, **fields) for eager in (True, False))
        executor = self.driver.runner._executor
        assert isinstance(executor, CpuExecutor)
        self.recorded = executor._recorded
        self.driver.runner._executor = NotingExecutor(executor, self.kinds)

    def _driver(self, model: Path, eager: bool, **fields: Any) -> StepDriver:
        sizes = {"page_size": PAGE, "max_model_len": CONTEXT, "max_running": SLOTS}
        given = {"dtype": "float32", "quantize": "int8", "enforce_eager": eager, **sizes, **fields}
        loaded = load_model(serve_config(model, **given), byte_vocabulary)
        for kv in loaded.runner._kvs:
            kv.zero_()  # the warm-up writes many tokens to one page, with several threads in any order
        return StepDriver(loaded.runner, loaded.ready)

    def load_grammar(self, number: int) -> None:
        for driver in (self.eager, self.driver):
            driver.runner.load_grammar(load_message(number, nested()))

    def drop_grammar(self, number: int) -> None:
        for driver in (self.eager, self.driver):
            driver.runner.drop_grammar(DropGrammar(number))

    def break_keys(self, slot: int) -> None:
        """Makes the logits of a slot's next tokens NaN."""
        for driver in (self.eager, self.driver):
            for kv in driver.runner._kvs:
                pages = torch.tensor(driver.pages[slot])
                set_pages(
                    kv, pages, torch.full_like(gather_pages(kv, pages, driver.ready.page_size), torch.nan)
                )

    def start(self, slot: int, params: SamplingParams = GREEDY, **setup: Any) -> None:
        for driver in (self.eager, self.driver):
            driver.start(slot, params, **setup)

    def share(self, slot: int, source: int, tokens: int) -> None:
        for driver in (self.eager, self.driver):
            driver.share(slot, source, tokens)

    def step(
        self,
        slots: Sequence[int],
        tokens: Sequence[int] = (),
        groups: Sequence[RowGroup] = (),
        masks: StepMasks | None = None,
        **fields: Any,
    ) -> StepResult:
        """Runs a step and checks that both give the same bits and leave the same state."""
        want, got = (
            driver.run([driver.row(slot, tokens, **fields) for slot in slots], groups, lambda: masks)
            for driver in (self.eager, self.driver)
        )
        assert without_times(got) == without_times(want)
        for one, other in zip(states_of(self.driver), states_of(self.eager), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        return got

    def decode(self, slots: Sequence[int], count: int) -> list[str]:
        """What ran as programs in `count` steps."""
        self.kinds.clear()
        for _ in range(count):
            self.step(slots)
        return self.kinds


def without_times(result: StepResult) -> StepResult:
    return msgspec.structs.replace(result, elapsed_ms=0.0, restored_ms=0.0)


def states_of(driver: StepDriver) -> list[torch.Tensor]:
    states = driver.runner._states
    history = states.sampling.history
    positions = torch.from_numpy(states.sampling._numbers["position"].copy())
    known = [states.sampling.last_tokens, states.registers.values, positions]
    return [*known, history.prompt_seen, history.output_counts, *driver.runner._kvs]


def with_prompts(twins: Twins, params: Sequence[SamplingParams]) -> Twins:
    for slot, (prompt, given) in enumerate(zip(PROMPTS, params, strict=False)):
        setup = {"prompt": packed(prompt), "banned_tokens": packed([7, 9])}
        twins.start(slot, given, **setup)
        twins.step([slot], prompt)
    return twins


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_of_all_kinds_give_the_same_bits(models: dict[str, Path], deterministic: bool) -> None:
    twins = Twins(models["plain"], deterministic=deterministic)
    twins.load_grammar(1)
    with_prompts(twins, [GREEDY, REPORTED, PENALISED, BIASED])
    twins.start(4, CONSTRAINED, grammar=1)
    twins.step([4], PROMPTS[4])
    twins.decode([0, 1, 2, 3, 4], 16)
    assert twins.kinds.count("next") > 5
    assert len(twins.kinds) == 16
    twins.load_grammar(2)  # moves the tables
    twins.start(5, CONSTRAINED, grammar=2, state=3)
    twins.step([5], PROMPTS[5])
    twins.decode([5, 4, 0], 6)
    assert len(twins.kinds) == 6


def test_steps_that_continue_need_no_new_inputs(models: dict[str, Path]) -> None:
    twins = with_prompts(Twins(models["plain"]), [GREEDY, REPORTED])
    kinds = twins.decode([0, 1], 30)
    assert kinds == ["whole", *["next"] * 29]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_rows_may_get_pages_before_they_write_to_them(models: dict[str, Path], ahead: int) -> None:
    twins = with_prompts(Twins(models["plain"]), [GREEDY, REPORTED])
    for driver in (twins.eager, twins.driver):
        for slot in (0, 1):
            driver._give(slot, [driver._free.pop() for _ in range(ahead)])
    twins.decode([0, 1], 24)
    assert twins.kinds.count("next") > 10


def test_a_given_token_is_not_the_input_of_the_next_step(models: dict[str, Path]) -> None:
    twins = with_prompts(Twins(models["plain"]), [GREEDY, REPORTED])
    for samples in (1, 1, 0, 1, 0):
        for slots in ([0, 1], [0]):
            twins.step(slots, [7], samples=samples)
            twins.step(slots)
            twins.step(slots)


def test_rows_that_are_changed_between_steps_are_not_continued(models: dict[str, Path]) -> None:
    twins = with_prompts(Twins(models["plain"]), [GREEDY] * 4)
    twins.decode([0, 1], 3)
    twins.start(1, PENALISED, prompt=packed(PROMPTS[2]))
    twins.step([1], PROMPTS[2])
    for slots in ([0, 1], [1, 0], [0, 1], [0], [0], [0, 2], [0], [0, 1, 2, 3], [0, 1, 2, 3]):
        twins.step(slots)
    twins.step([0], [5, 6, 7])
    twins.step([0, 1])
    twins.step([0, 1])


def test_grouped_rows_and_random_steps_give_the_same_bits(models: dict[str, Path]) -> None:
    twins = Twins(models["plain"])
    for slot, params in enumerate([GREEDY, REPORTED, BIASED, PENALISED]):
        twins.start(slot, params, prompt=packed(PROMPTS[1]))
        if slot:
            twins.share(slot, 0, 4 * PAGE)
        twins.step([slot], PROMPTS[1])
    groups = [RowGroup(first_row=0, rows=3, shared_tokens=3 * PAGE)]
    for _ in range(6):
        twins.step([0, 1, 2], groups=groups)
    assert "next" in twins.kinds
    chosen = random.Random(1)
    for _ in range(25):
        slots = chosen.sample(range(4), chosen.randint(1, 4))
        twins.step(slots, [7] * chosen.choice([0, 0, 0, 2]))


@pytest.mark.parametrize("name", ["windowed", "gemma2", "gemma3"])
def test_steps_of_models_with_windows_continue(name: str, models: dict[str, Path]) -> None:
    twins = with_prompts(Twins(models[name]), [GREEDY, REPORTED])
    assert twins.decode([0, 1], 10) == ["whole", *["next"] * 9]


def test_rows_continue_when_a_window_begins_to_hide_keys(models: dict[str, Path]) -> None:
    twins = with_prompts(Twins(models["long window"], page_size=16), [GREEDY])
    # The last two steps have 13 and 14 keys, and the window is 12.
    assert twins.decode([0], 11) == ["whole", *["next"] * 10]


def test_rows_with_masks_of_the_host_are_sampled_after_the_forward_pass(models: dict[str, Path]) -> None:
    twins = with_prompts(Twins(models["plain"]), [GREEDY, REPORTED])
    masks = StepMasks(0, packed([0]), bits([5]))
    for _ in range(3):
        twins.step([0, 1])
    twins.kinds.clear()
    for _ in range(3):
        result = twins.step([0], masks=masks, host_mask=True)
        assert unpacked(result.tokens) == [5]
    assert twins.kinds == []
    twins.step([0, 1])
    twins.step([0, 1])
    assert twins.kinds == ["whole", "next"]


def test_a_row_without_an_allowed_token_is_reported_as_before(models: dict[str, Path]) -> None:
    twins = Twins(models["plain"])
    nothing = SamplingParams(
        max_tokens=9, temperature=1.0, logprobs=2, logit_bias=dict.fromkeys(range(300), -float("inf"))
    )
    with_prompts(twins, [GREEDY, nothing])
    for _ in range(4):
        result = twins.step([0, 1])
    assert [error.kind for error in result.errors] == ["nothing_allowed"]


def test_a_row_whose_logits_are_not_numbers_is_reported_and_the_others_go_on(models: dict[str, Path]) -> None:
    broken, unbroken = (with_prompts(Twins(models["plain"]), [GREEDY, REPORTED, FILTERED]) for _ in range(2))
    for twins in (broken, unbroken):
        twins.decode([0, 1, 2], 3)
    broken.break_keys(1)
    broken.kinds.clear()
    for _ in range(2):
        result, expected = (twins.step([0, 1, 2]) for twins in (broken, unbroken))
        assert [(error.slot, error.kind) for error in result.errors] == [(1, "not_a_number")]
        assert unpacked(result.tokens)[::2] == unpacked(expected.tokens)[::2]
    assert broken.kinds == ["next", "next"]
    assert unpacked(broken.step([0, 2]).tokens) == unpacked(unbroken.step([0, 2]).tokens)


def test_results_may_be_read_after_the_next_step_has_run(models: dict[str, Path]) -> None:
    twins = with_prompts(Twins(models["plain"]), [GREEDY, REPORTED])
    twins.decode([0, 1], 2)
    eager, driver = twins.eager, twins.driver
    wanted = [eager.run([eager.row(slot) for slot in (0, 1)]) for _ in range(2)]
    steps = [
        driver.runner.start(StepPlan(each.step, [driver.row(slot) for slot in (0, 1)])) for each in wanted
    ]
    got = [driver.runner.finish(step) for step in steps]
    assert [without_times(each) for each in got] == [without_times(each) for each in wanted]
    assert twins.kinds[-2:] == ["next", "next"]


def test_grammars_may_be_dropped_and_loaded_between_steps_that_continue(models: dict[str, Path]) -> None:
    twins = Twins(models["plain"])
    twins.load_grammar(1)
    twins.load_grammar(2)
    twins.start(0, CONSTRAINED, grammar=1)
    twins.start(1, CONSTRAINED, grammar=2)
    twins.step([0], PROMPTS[0])
    twins.step([1], PROMPTS[1])
    twins.decode([0, 1], 2)
    twins.decode([0], 3)
    twins.drop_grammar(2)
    twins.step([0])
    twins.load_grammar(3)
    assert twins.decode([0], 4).count("next") >= 2
    twins.start(1, CONSTRAINED, grammar=3)
    twins.step([1], PROMPTS[1])
    twins.decode([0, 1], 4)


def test_steps_with_many_logits_sample_kernel_by_kernel(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_executor, "MAX_LOGITS", 0)
    twins = with_prompts(Twins(models["plain"]), [GREEDY])
    assert twins.decode([0], 4) == []


def test_a_head_that_needs_pytorch_follows_a_replayed_forward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_quantized(CASES["gptq ordered by activations"], tmp_path)
    twins = Twins(tmp_path, quantize=None)
    replayed: list[int] = []
    forward = twins.recorded.forward

    def noted(inputs: StepInputs) -> torch.Tensor | None:
        hidden = forward(inputs)
        replayed.append(0 if hidden is None else len(hidden))
        return hidden

    monkeypatch.setattr(twins.recorded, "forward", noted)
    with_prompts(twins, [GREEDY, REPORTED])
    replayed.clear()
    assert twins.decode([0, 1], 4) == []
    assert replayed == [2, 2, 2, 2]
