"""A model with an int8 KV cache: against transformers, its pages, and the settings that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from arbora.kernels.pages.cells import CellFormat
from arbora.runtime.model import devices
from arbora.runtime.model.devices import choose_device
from arbora.runtime.model.loading import load_model
from checkpoints import random_model, save_model
from step_driver import StepDriver, no_vocabulary, serve_config
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers_oracle import EVERY_LOGPROB, expected_logprobs, random_tokens

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def with_int8_cells(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: object,
    **kw: object,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """transformers' attention over keys and values after a round trip through int8 cells."""
    cells = CellFormat(torch.int8)
    key, value = (cells.decode(cells.encode(part), part.shape[-1], part.dtype) for part in (key, value))
    attend: Attention = sdpa_attention_forward
    return attend(module, query, key, value, *args, **kw)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return random_model("qwen3", num_hidden_layers=3)


@pytest.fixture(scope="module")
def directory(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(model, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("chunk", [150, 37, 1])
def test_it_is_the_model_of_transformers_with_int8_keys_and_values(
    model: PreTrainedModel, directory: Path, chunk: int
) -> None:
    tokens = random_tokens(150)
    plain = expected_logprobs(model, tokens)[:-1]
    AttentionInterface.register("int8_cells", with_int8_cells)
    model.set_attn_implementation("int8_cells")
    expected = expected_logprobs(model, tokens)[:-1]
    model.set_attn_implementation("sdpa")
    driver = StepDriver.load(directory, kv_dtype="int8")
    driver.start(0, EVERY_LOGPROB)
    got = driver.prompt_logprobs(0, tokens, chunk)
    # A value between two codes may be rounded either way, which is rare and shows in a few tokens.
    off, without = (got - expected).abs().median(), (got - plain).abs().median()
    assert off < 2.5e-5 and without > 20 * off
    assert (got - plain).abs().max() < 0.1


def test_a_page_takes_the_bytes_of_its_codes_and_scales(directory: Path) -> None:
    budget = 1 << 20
    pages, sizes = [], []
    for kv_dtype in ("auto", "int8"):
        config = serve_config(
            directory, dtype="bfloat16", kv_dtype=kv_dtype, kv_memory=budget, max_running=512
        )
        loaded = load_model(config, no_vocabulary)
        kvs = loaded.runner._kvs
        assert (
            sum(kv.numel() * kv.element_size() for kv in kvs)
            == loaded.ready.num_pages * loaded.ready.page_bytes
        )
        pages.append(loaded.ready.num_pages)
        sizes.append(loaded.ready.page_bytes)
    shape = kvs[0].shape
    head_dim = shape[4] - 4
    assert sizes[0] * (head_dim + 4) == sizes[1] * 2 * head_dim
    assert [budget // size for size in sizes] == pages


def test_pages_of_another_kv_dtype_are_not_restored(directory: Path, tmp_path: Path) -> None:
    def page_model(kv_dtype: str) -> bytes:
        config = serve_config(directory, kv_dtype=kv_dtype, disk_cache=tmp_path / "pages")
        return load_model(config, no_vocabulary).ready.page_model

    assert page_model("int8") != page_model("auto")
    assert page_model("int8") == page_model("int8")


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_gpu_takes_both_dtypes(directory: Path, kv_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = serve_config(directory, device="cuda", kv_dtype=kv_dtype)
    assert choose_device(config).type == "cuda"
    assert CellFormat(devices.kv_dtype(config, torch.bfloat16)).bytes(128) == 132
