"""Forward passes replayed as CPU programs against the same steps run kernel by kernel."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from arbora.kernels.linear import half_cpu
from arbora.runtime.messages import DropAdapter, ReadAdapter, RowGroup
from arbora.runtime.model import recorded_steps
from arbora.runtime.model.cpu_executor import CpuExecutor
from arbora.runtime.model.executor import EagerExecutor
from arbora.runtime.model.input_batch import StepInputs
from arbora.runtime.model.recorded_steps import RecordedSteps
from arbora.runtime.model.tiers import Restore
from checkpoints import WINDOWED, random_model, save_model
from lora import save_adapter
from quantized_checkpoints import CASES, write_quantized
from step_driver import StepDriver, device_of

SLOTS, PAGE, CONTEXT = 5, 4, 160
PROMPTS = [np.random.default_rng(length).integers(0, 256, length).tolist() for length in (3, 134, 5, 99, 2)]
SHARED = 8
GROUPS = [RowGroup(first_row=1, rows=2, shared_tokens=tokens) for tokens in (PAGE, SHARED)]
STEPS = [5, 1, 4, 5, 3, 3, 2]
TWICE = [*STEPS, *STEPS]
"""the rows of the steps of `replayed`"""


def of_bfloat16() -> list[int]:
    """Rows of the steps that `replayed` runs in bfloat16, unless products need oneDNN."""
    return TWICE if half_cpu.serves(torch.bfloat16) else []


class Compared(EagerExecutor):
    """Runs each forward pass both ways, and notes how many rows were replayed."""

    def __init__(self, driver: StepDriver, batch_invariant: bool) -> None:
        super().__init__(device_of(driver))
        self.replayed: list[int] = []
        self.seen: list[tuple[int, int]] = []
        self._model, self._kvs = self._device.model, self._device.kvs
        self.recorded = RecordedSteps(self._device, batch_invariant)
        driver.runner._executor = self

    @property
    def programs(self) -> list[tuple[int, int | None, bool, bool]]:
        """The sizes of the steps whose programs are kept."""
        return list(self.recorded._recorded)

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        batch = inputs.on_device
        self.seen.append((batch.size, -1 if batch.outputs is None else len(batch.outputs)))
        before = [kv.clone() for kv in self._kvs]
        hidden = self.recorded.forward(inputs)
        if hidden is None:
            return super().run(inputs, restore)
        self.replayed.append(batch.size)
        hidden, written = hidden.clone(), [kv.clone() for kv in self._kvs]
        for kv, old in zip(self._kvs, before, strict=True):
            kv.copy_(old)
        assert torch.equal(hidden, self._model.forward(batch, self._kvs))
        assert all(torch.equal(one, other) for one, other in zip(written, self._kvs, strict=True))
        return hidden


def started(model: Path, **fields: object) -> StepDriver:
    sizes = {"page_size": PAGE, "max_model_len": CONTEXT, "max_running": SLOTS, "enforce_eager": True}
    driver = StepDriver.load(model, **{"dtype": "bfloat16", **sizes, **fields})
    for slot, prompt in enumerate(PROMPTS):
        driver.start(slot)
        if slot == 2:
            driver.share(slot, 1, SHARED)
        driver.run([driver.row(slot, prompt)])
    return driver


def replayed(driver: StepDriver, batch_invariant: bool = False) -> list[int]:
    """Rows of the steps that were replayed."""
    compared = Compared(driver, batch_invariant)
    for _ in range(2):
        for slots in ([0, 1, 2, 3, 4], [3], [0, 2, 3, 4], [4, 3, 2, 1, 0]):
            driver.run([driver.row(slot) for slot in slots])
        for slots, groups in (([0, 1, 2], GROUPS), ([0, 1, 2], []), ([1, 2], [])):
            driver.run([driver.row(slot) for slot in slots], groups)
    return compared.replayed


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_replayed_steps_give_the_same_bits_as_kernels_run_one_by_one(
    model: Path, deterministic: bool, kv_dtype: str
) -> None:
    driver = started(model, deterministic=deterministic, kv_dtype=kv_dtype)
    assert replayed(driver, deterministic) == of_bfloat16()


@pytest.mark.parametrize("dtype, quantize", [("bfloat16", "int4"), ("float32", "int8"), ("float32", "fp8")])
def test_steps_of_quantized_models_are_replayed_on_every_processor(
    model: Path, dtype: str, quantize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert replayed(started(model, dtype=dtype, quantize=quantize)) == TWICE


def test_rows_of_adapters_are_replayed_in_programs_that_outlive_the_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base = random_model("qwen3", num_hidden_layers=2)
    model, paths = save_model(base, tmp_path / "model"), [tmp_path / name for name in "abc"]
    loras = tuple((path.name, save_adapter(path, base, seed)) for seed, path in enumerate(paths))
    driver = StepDriver.load(model, quantize="int8", enforce_eager=True, loras=loras[:2])
    for slot, adapter in enumerate([0, None, 1]):
        driver.start(slot, adapter=adapter)
        driver.run([driver.row(slot, PROMPTS[0])])
    compared = Compared(driver, False)
    for _ in range(2):
        driver.run([driver.row(slot) for slot in (0, 1, 2)])
        driver.run([driver.row(2, [3, 4]), driver.row(0, [5], samples=0)])
        driver.run([driver.row(1)])
        driver.runner.drop_adapter(DropAdapter(1))
        assert not driver.runner.read_adapter(ReadAdapter(1, str(paths[2]), "third")).error
    assert compared.replayed == [3, 3, 1] * 2
    assert [size[-1] for size in compared.programs] == [True, True, False]


def test_steps_of_fp8_models_in_bfloat16_are_replayed_like_those_of_unquantized_ones(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert replayed(started(model, dtype="bfloat16", quantize="fp8")) == TWICE


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral", "qwen3_moe"])
def test_steps_of_models_with_experts_are_replayed(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_model(random_model(family), tmp_path)
    assert replayed(started(tmp_path, quantize="int4")) == TWICE


def test_steps_of_a_model_with_columns_in_another_order_are_replayed(tmp_path: Path) -> None:
    fields = {name: value for name, value in WINDOWED.items() if name != "num_hidden_layers"}
    write_quantized(CASES["gptq ordered by activations"], tmp_path, **fields)
    assert replayed(started(tmp_path, dtype="float32")) == TWICE


@pytest.mark.parametrize("deterministic", [False, True])
def test_steps_of_random_rows_and_chunks_are_replayed(model: Path, deterministic: bool) -> None:
    driver, chosen = started(model, max_model_len=256, deterministic=deterministic), random.Random(0)
    compared = Compared(driver, deterministic)
    for _ in range(40):
        slots = chosen.sample(range(SLOTS), chosen.randint(1, SLOTS))
        chunks = [[7, 8, 9] if chosen.random() < 0.3 else [] for _ in slots]
        driver.run(
            [
                driver.row(slot, chunk, samples=int(not chunk or chosen.random() < 0.5))
                for slot, chunk in zip(slots, chunks, strict=True)
            ]
        )
    sizes = Counter(compared.seen)
    assert len(compared.replayed) == (40 if of_bfloat16() else 0)
    assert max(sizes.values()) > 3 and min(sizes.values()) == 1


@pytest.mark.parametrize("layers", [1, WINDOWED["num_hidden_layers"]])
def test_steps_with_few_or_no_output_tokens_are_replayed(layers: int, tmp_path: Path) -> None:
    driver = started(save_model(random_model("qwen3", num_hidden_layers=layers), tmp_path))
    compared = Compared(driver, batch_invariant=False)
    for sampled in (0, 1, 0, 1):
        driver.run([driver.row(0, [5, 6], samples=0), driver.row(1, [7], samples=sampled)])
    assert compared.replayed == ([3] * 4 if of_bfloat16() else [])


def test_long_steps_are_not_replayed_and_few_programs_are_kept(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_steps, "MAX_TOKENS", 4)
    monkeypatch.setattr(recorded_steps, "MAX_PROGRAMS", 2)
    driver = started(model)
    compared = Compared(driver, batch_invariant=False)
    for rows in (5, 1, 2, 1, 3, 2):
        driver.run([driver.row(slot) for slot in range(rows)])
    assert compared.replayed == ([1, 2, 1, 3, 2] if of_bfloat16() else [])
    assert [size[0] for size in compared.programs] == ([3, 2] if of_bfloat16() else [])


def test_models_that_need_operations_of_pytorch_run_kernel_by_kernel(model: Path) -> None:
    driver = started(model, dtype="float32")
    compared = Compared(driver, batch_invariant=False)
    for _ in range(3):
        driver.run([driver.row(0)])
    assert compared.replayed == []


@pytest.mark.skipif(not half_cpu.serves(torch.float16), reason="oneDNN multiplies float16")
def test_steps_of_few_and_many_tokens_are_replayed_in_float16(model: Path) -> None:
    driver = started(model, dtype="float16")
    compared = Compared(driver, batch_invariant=False)
    for tokens in (5, 40, 5, 40, 1):
        driver.run([driver.row(0, [7] * tokens)])
    assert compared.replayed == [5, 40, 5, 40, 1]


def test_steps_of_few_output_tokens_are_replayed_if_the_head_needs_pytorch_for_more(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    driver = started(model, dtype="float32", quantize="int8")
    recorded = Compared(driver, batch_invariant=False).recorded
    loaded: list[tuple[int, bool]] = []

    def head(hidden: torch.Tensor) -> None:
        if len(hidden) > 1:
            hidden.sum()

    class Loading(EagerExecutor):
        def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
            loaded.append((inputs.size, recorded.load(inputs, head) is not None))
            assert recorded.forward(inputs) is not None
            return super().run(inputs, restore)

    driver.runner._executor = Loading(device_of(driver))
    for _ in range(2):
        driver.run([driver.row(0), driver.row(1)])
        driver.run([driver.row(0, [7, 8, 9])])
    assert loaded == [(2, False), (3, True), (2, False), (3, True)]


def test_programs_are_used_unless_eager_steps_are_asked_for(model: Path) -> None:
    for eager in (False, True):
        runner = StepDriver.load(model, dtype="bfloat16", enforce_eager=eager).runner
        assert isinstance(runner._executor, EagerExecutor if eager else CpuExecutor)
