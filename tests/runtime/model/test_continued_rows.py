"""Steps that change the inputs of the step before, against the same steps with new inputs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.kernels.common.drafts import Drafts
from arbora.kernels.sampling.batch import HostMask
from arbora.kernels.sampling.packed_results import PackedResults
from arbora.runtime.messages import RowGroup, StepPlan
from arbora.runtime.model.cpu_executor import CpuExecutor
from arbora.runtime.model.input_batch import StepInputs
from arbora.runtime.model.tiers import Restore
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import nested
from checkpoints import WINDOWED, random_model, save_model
from drafted_steps import (
    CONSTRAINED,
    KINDS,
    PAGE,
    PROMPTS,
    Guess,
    Token,
    decode,
    draft,
    half_right,
    right,
    start_driver,
    start_slot,
    state_of,
    wrong,
)
from lora import save_adapter
from stack_automata import load_message
from step_driver import FILTERED, GREEDY, PENALISED, StepDriver, packed

TOKENS, DRAFTS = 30, 7
GROUPS = [RowGroup(first_row=0, rows=3, shared_tokens=5 * PAGE)]
guesses = pytest.mark.parametrize("guess", [right, wrong, half_right])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    fields = {"plain": {}, "windowed": WINDOWED, "long window": {**WINDOWED, "sliding_window": 12}}
    chosen = {name: random_model("qwen3", **given) for name, given in fields.items()}
    chosen["gemma3"] = random_model("gemma3")
    return {name: save_model(model, tmp_path_factory.mktemp(name)) for name, model in chosen.items()}


@pytest.fixture(autouse=True)
def converted(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantized models run as programs on every processor."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "converted"))


class NotingExecutor:
    """Notes the numbers of tokens of steps with new inputs, and of those that continue. With `is_anew` every
    step has new inputs."""

    def __init__(self, driver: StepDriver, is_anew: bool) -> None:
        executor = driver.runner._executor
        assert isinstance(executor, CpuExecutor)
        self._executor, self._is_anew = executor, is_anew
        self.new: list[int] = []
        self.continued: list[int] = []
        driver.runner._executor = self

    def build_inputs(self, plan: StepPlan, drafts: Drafts | None) -> StepInputs | None:
        if self._is_anew:
            self._executor._rows = None
        inputs = self._executor.build_inputs(plan, drafts)
        if inputs is not None:
            (self.new if self._executor._program is None else self.continued).append(inputs.size)
        return inputs

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        return self._executor.run(inputs, restore)

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        return self._executor.sample(inputs, hidden, mask)


def start_quantized(
    model: Path, kinds: Sequence[SamplingParams], speculate: int, **fields: Any
) -> StepDriver:
    driver = start_driver(model, kinds, speculate, quantize="int8", **fields)
    for kv in driver.runner._kvs:
        assert not kv.isnan().any()
    return driver


class Twins:
    """Two drivers that draft the same; one of them builds all inputs anew."""

    def __init__(self, model: Path, kinds: Sequence[SamplingParams], **fields: Any) -> None:
        self.drivers = [start_quantized(model, kinds, DRAFTS, **fields) for _ in range(2)]
        anew, self.executor = (NotingExecutor(driver, not at) for at, driver in enumerate(self.drivers))
        self._anew = anew

    def draft(self, replies: dict[int, list[Token]], guess: Guess) -> None:
        for driver in self.drivers:
            draft(driver, replies, guess)

    def decode(
        self,
        slots: Sequence[int],
        tokens: int = TOKENS,
        samples: int = 1 + DRAFTS,
        groups: Sequence[RowGroup] = (),
    ) -> dict[int, list[Token]]:
        """Decodes, and checks that both give the same tokens and leave the same state and keys."""
        want, got = (decode(driver, slots, tokens, samples, groups) for driver in self.drivers)
        assert got == want
        anew, continued = (state_of(driver, len(PROMPTS)) for driver in self.drivers)
        for one, other in zip(continued, anew, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert not self._anew.continued
        return got


@guesses
def test_rows_of_all_kinds_continue_with_drafts(models: dict[str, Path], guess: Guess) -> None:
    slots = range(len(KINDS))
    expected = decode(start_quantized(models["plain"], KINDS, 0), slots, TOKENS)
    twins = Twins(models["plain"], KINDS)
    twins.draft(expected, guess)
    assert twins.decode(slots) == expected
    least = 12 if guess is wrong else 4 if guess is half_right else 1
    assert len(twins.executor.continued) >= least


def test_steps_with_and_without_drafts_continue_one_another_over_several_pages(
    models: dict[str, Path],
) -> None:
    kinds = KINDS[:3]
    expected = decode(start_quantized(models["plain"], kinds, 0), range(3), 60)
    twins = Twins(models["plain"], kinds)
    twins.draft(expected, right)
    done = 0
    for samples in (1, 1, 8, 1, 8, 1, 2, 8, 1, 2, 1, 8):
        found = twins.decode(range(3), samples, samples)
        assert found == {slot: reply[done : done + samples] for slot, reply in expected.items()}
        done += samples
    assert twins.executor.new[-3:] == [3, 24, 6]
    assert twins.executor.continued == [3, 3, 24, 3, 24, 3, 6, 3, 24]


def test_any_numbers_of_drafts_continue_once_their_size_is_recorded(models: dict[str, Path]) -> None:
    expected = decode(start_quantized(models["plain"], KINDS[:4], 0), range(4), 60)
    twins = Twins(models["plain"], KINDS[:4])
    for driver in twins.drivers:
        draft(driver, expected, RandomGuess(3))
    assert twins.decode(range(4), 60, 4) == expected
    of_all_rows = [size for size in twins.executor.new if size >= 4]
    assert len(of_all_rows) <= 2 + len(set(of_all_rows))
    assert len(twins.executor.continued) >= 10


def test_rows_come_and_go_between_steps_with_drafts(models: dict[str, Path]) -> None:
    slots, chosen = range(4), random.Random(1)
    expected = decode(start_quantized(models["plain"], KINDS[:4], 0), slots, 40)
    twins = Twins(models["plain"], KINDS[:4])
    twins.draft(expected, half_right)
    done = dict.fromkeys(slots, 0)
    for _ in range(12):
        some, count = chosen.sample(slots, chosen.randint(1, 4)), chosen.randint(1, 3)
        for slot, sampled in twins.decode(some, count, 4).items():
            assert sampled == expected[slot][done[slot] : done[slot] + len(sampled)]
            done[slot] += len(sampled)
    assert twins.executor.continued
    for driver in twins.drivers:
        start_slot(driver, 1, PENALISED, PROMPTS[3])
    assert len(twins.decode([0, 1, 2], 8, 4)[1]) >= 8


@guesses
@pytest.mark.parametrize("name", ["windowed", "long window", "gemma3"])
def test_rows_continue_while_windows_begin_to_hide_keys(
    models: dict[str, Path], name: str, guess: Guess
) -> None:
    expected = decode(start_quantized(models[name], KINDS[:3], 0), range(3), TOKENS)
    twins = Twins(models[name], KINDS[:3])
    twins.draft(expected, guess)
    assert twins.decode(range(3)) == expected
    assert twins.executor.continued or guess is right


def in_group(driver: StepDriver) -> StepDriver:
    """Three slots whose prompts begin on the same pages."""
    for slot, params in enumerate([GREEDY, FILTERED, PENALISED]):
        driver.start(slot, params, prompt=packed(PROMPTS[1]))
        if slot:
            driver.share(slot, 0, 5 * PAGE)
        driver.run([driver.row(slot, [*PROMPTS[1][driver.lengths[slot] :], slot])])
    return driver


@guesses
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["plain", "long window"])
def test_rows_that_share_a_prefix_continue(
    models: dict[str, Path], guess: Guess, deterministic: bool, name: str
) -> None:
    plain = in_group(start_quantized(models[name], [], 0, deterministic=deterministic))
    expected = decode(plain, range(3), TOKENS, groups=GROUPS)
    twins = Twins(models[name], [], deterministic=deterministic)
    for driver in twins.drivers:
        in_group(driver)
    twins.draft(expected, guess)
    found = twins.decode(range(3), groups=GROUPS)
    assert found == expected or not deterministic
    assert twins.executor.continued or guess is right


@guesses
def test_rows_of_adapters_continue(tmp_path: Path, guess: Guess) -> None:
    base = random_model("qwen3", num_hidden_layers=2)
    model = save_model(base, tmp_path / "model")
    loras = tuple((name, save_adapter(tmp_path / name, base, seed)) for seed, name in enumerate("ab"))
    fields = {"loras": loras, "setups": {0: {"adapter": 1}, 2: {"adapter": 0}}}
    expected = decode(start_quantized(model, KINDS[:3], 0, **fields), range(3), TOKENS)
    without = decode(start_quantized(model, KINDS[:3], 0), range(3), TOKENS)
    assert [expected[slot] == without[slot] for slot in range(3)] == [False, True, False]
    twins = Twins(model, KINDS[:3], **fields)
    twins.draft(expected, guess)
    assert twins.decode(range(3)) == expected
    assert twins.executor.continued or guess is right


def test_stop_ids_are_banned_up_to_the_minimal_length_in_steps_that_continue(
    models: dict[str, Path],
) -> None:
    likely = {7: 50.0}
    kinds = [
        SamplingParams(max_tokens=64, temperature=0.0, min_tokens=least, logit_bias=likely)
        for least in (12, 5, 0)
    ]
    expected = decode(start_quantized(models["plain"], kinds, 0), range(3), TOKENS)
    firsts = [[each.token for each in expected[slot]].index(7) for slot in range(3)]
    assert firsts == [11, 4, 0]
    twins = Twins(models["plain"], kinds)
    for driver in twins.drivers:
        draft(driver, expected, RandomGuess(4))
    assert twins.decode(range(3), samples=3) == expected
    assert len(twins.executor.continued) >= 5


def test_grammars_that_are_loaded_between_steps_give_new_inputs(models: dict[str, Path]) -> None:
    kinds = [CONSTRAINED, GREEDY]
    expected = decode(start_quantized(models["plain"], kinds, 0), range(2), TOKENS)
    twins = Twins(models["plain"], kinds)
    twins.draft(expected, half_right)
    found = twins.decode(range(2), 8, 3)
    for driver in twins.drivers:
        driver.runner.load_grammar(load_message(2, nested()))
    new = len(twins.executor.new)
    later = twins.decode(range(2), 8, 3)
    assert len(twins.executor.new) > new
    for slot in range(2):
        assert [*found[slot], *later[slot]] == expected[slot][: len(found[slot]) + len(later[slot])]


class RandomGuess:
    """Drafts any number of right tokens, or some of them and others."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, tokens: list[int]) -> list[int]:
        guess = [token if self._random.random() < 0.8 else 11 for token in tokens]
        return guess[: self._random.randint(0, len(guess))]
