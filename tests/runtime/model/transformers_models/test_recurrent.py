"""Models with recurrent layers, served with their scheduler: replies, and what a next turn finds cached."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from arbora.runtime.messages import StepMasks, StepResult
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.transformers_models.architecture import TransformersArchitecture
from fake_model import EOS, FakeModel
from scheduler_bench import SchedulerBench
from served_model import ServedModel
from step_driver import no_vocabulary, refusal, serve_config
from tiny_models import VOCABULARY, tiny_config, tiny_model
from transformers import PreTrainedModel
from transformers_oracle import expected_greedy

KINDS = {
    "gated delta nets and experts": "qwen3_next",
    "short convolutions": "lfm2",
    "Mamba-2": "granitemoehybrid",
    "Mamba-2 beside attention": "falcon_h1",
    "Mamba-1, whose chunks are computed by token": "jamba",
    "no attention": "mamba2",
}
GENERATOR = torch.Generator().manual_seed(3)


def words(count: int) -> list[int]:
    return torch.randint(3, VOCABULARY, (count,), generator=GENERATOR).tolist()


class LoadedModel(FakeModel):
    """Runs the scheduler's plans with a loaded model."""

    def __init__(self, directory: Path, **fields: object) -> None:
        loaded = load_model(serve_config(directory, page_size=4, max_running=4, **fields), no_vocabulary)
        self.ready = loaded.ready
        self._runner = loaded.runner
        super().__init__(self.ready.num_pages, 4)

    def run_step(self) -> StepResult:
        plan = self.plans.pop(0)
        self._in_flight.end(plan.step)
        return self._runner.run(plan, self._masks)

    def _masks(self) -> StepMasks | None:
        raise AssertionError("no masks were announced")


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedModel:
    model: PreTrainedModel = tiny_model(tiny_config(request.param))
    model.save_pretrained(tmp_path)
    return model


def open_bench(directory: Path) -> SchedulerBench:
    model = LoadedModel(directory)
    ready = model.ready
    bench = SchedulerBench(ready.num_pages, 4, ready.slots, states=ready.states)
    bench.model = model
    return bench


def check_greedy(reference: PreTrainedModel, prompt: list[int], output: list[int]) -> None:
    assert output == expected_greedy(reference, prompt, output)


def test_turns_of_conversations_beside_each_other(reference: PreTrainedModel, tmp_path: Path) -> None:
    bench = open_bench(tmp_path)
    system = words(13)
    chats = [[*system, *words(4)] for _ in range(3)]
    lengths = [0] * 3
    for turn in range(4):
        for number, tokens in enumerate(chats):
            bench.submit(f"{number} {turn}", tokens, 9, temperature=0.0)
        bench.run()
        for number, tokens in enumerate(chats):
            name = f"{number} {turn}"
            check_greedy(reference, tokens, bench.tokens(name))
            if turn:
                assert bench.cached(name) == lengths[number]
            chats[number] = [*tokens, *bench.tokens(name), *words(3)]
            lengths[number] = len(chats[number]) - 3 - (bench.tokens(name)[-1] != EOS)
    bench.submit("new", [*system, *words(5)], 5, temperature=0.0)
    bench.run()
    assert bench.cached("new") in (12, 13)


@pytest.mark.parametrize(
    ("model_type", "ignores"), [("falcon_mamba", True), ("jamba", True), ("mamba2", False), ("lfm2", False)]
)
def test_chunks_are_computed_by_token_if_the_layers_code_ignores_their_state(
    model_type: str, ignores: bool, tmp_path: Path
) -> None:
    tiny_config(model_type).save_pretrained(tmp_path)
    calls = TransformersArchitecture.open(tmp_path).config.state_calls
    assert calls and all(call.by_token == ignores for call in calls)


def test_a_page_store_is_refused_before_weights_are_read_if_there_are_no_pages(tmp_path: Path) -> None:
    tiny_config("mamba2").save_pretrained(tmp_path)
    assert refusal(tmp_path, host_cache=1 << 20).startswith("--host-cache: all layers of this model are")


def test_a_host_cache_that_holds_no_state_is_refused(tmp_path: Path) -> None:
    tiny_model(tiny_config("qwen3_next")).save_pretrained(tmp_path)
    told = refusal(tmp_path, host_cache=10 << 10)
    assert "--host-cache 10KiB: a page and the state or windows before its end take" in told


def test_states_take_at_most_half_of_the_memory(tmp_path: Path) -> None:
    tiny_model(tiny_config("qwen3_next")).save_pretrained(tmp_path)
    ready = load_model(serve_config(tmp_path, kv_memory=1 << 18, max_running=256), no_vocabulary).ready
    assert ready.slots == (1 << 18) // 4 // ready.state_bytes
    assert "the recurrent states of one request take" in refusal(tmp_path, kv_memory=1 << 10)


def test_the_log_does_not_ask_for_kernels_that_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: PreTrainedModel = tiny_model(tiny_config("lfm2"))
    model.save_pretrained(tmp_path)
    library = logging.getLogger("transformers.integrations.hub_kernels")
    told: list[str] = []
    monkeypatch.setattr(library, "handle", lambda record: told.append(record.getMessage()))
    library.setLevel(logging.NOTSET)
    type(library).warning_once.cache_clear()  # type: ignore[attr-defined]
    open_bench(tmp_path)
    assert told == []


def test_the_log_says_that_recurrent_layers_allow_no_drafts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_model(tiny_config("qwen3_next")).save_pretrained(tmp_path)
    served = ServedModel(tmp_path, max_running=2, max_model_len=64, speculate=4)
    assert served.ready.max_sampled == 1
    assert "--speculate 4 has no effect: the states of the model's recurrent layers" in caplog.text
