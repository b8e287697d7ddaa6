"""Loading never holds the weights twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import loaded_memory
import pytest
import torch
from arbora.kernels.linear import half_cpu
from arbora.kernels.linear.onednn import onednn_multiplies
from arbora.runtime.byte_sizes import as_given, in_units
from arbora.runtime.config import ServeConfig
from arbora.runtime.errors import ConfigError
from arbora.runtime.model import memory_plan
from arbora.runtime.model.decoder_config import DecoderConfig, load_decoder_config
from arbora.runtime.model.devices import free_memory
from arbora.runtime.model.kv_pool import PoolLayout, default_budget, page_bytes
from arbora.runtime.model.weight_formats import TensorSpec, load_weight_formats
from arbora.runtime.model.weight_formats.loader import ProjectionLoader
from arbora.runtime.model.weights import expected_tensors
from checkpoints import edit_config, random_model, save_model
from safetensors.torch import save_file
from step_driver import StepDriver, serve_config

PROCESS = 2 << 20  # bytes: what any process allocates or frees beside
SHAPE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "vocab_size": 16_000}
HEAD = 16_000 * 512 * 2  # bytes
COPY = HEAD * (
    onednn_multiplies(torch.bfloat16) and not half_cpu.serves(torch.bfloat16)
)  # of a tied head, in a library's layout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_little_more_than_the_weights_with_a_tied_head_stored_once(tmp_path: Path) -> None:
    model = random_model("qwen2", tie_word_embeddings=True, **SHAPE).bfloat16()
    save_model(model, tmp_path)
    weights = (tmp_path / "model.safetensors").stat().st_size
    peak, after = loaded(tmp_path)
    assert weights - PROCESS <= after <= 1.1 * weights + COPY + PROCESS
    assert after <= peak <= 1.15 * weights + HEAD + PROCESS


@pytest.mark.skipif(not half_cpu.serves(torch.bfloat16), reason="oneDNN multiplies bfloat16")
def test_weights_that_are_stored_as_they_are_computed_are_packed_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(random_model("qwen3", tie_word_embeddings=True).bfloat16(), tmp_path)
    monkeypatch.setattr(ProjectionLoader, "load_weight", None)  # which copies them
    StepDriver.load(tmp_path, dtype="bfloat16")


CONFIGS: dict[str, tuple[float, dict[str, Any]]] = {
    "fp8": (8.25, {"weight_block_size": [128, 128]}),
    "gptq": (4.25, {"bits": 4, "group_size": 128, "desc_act": True}),
    "awq": (4.25, {"bits": 4, "group_size": 128}),
    "compressed-tensors": (
        8.125,
        {
            "format": "int-quantized",
            "config_groups": {
                "all": {
                    "targets": ["Linear", "Embedding"],
                    "weights": {"num_bits": 8, "strategy": "group", "group_size": 128},
                }
            },
        },
    ),
}
"""bits of a weight in memory, and the config; only the last one quantizes the embedding too"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", CONFIGS)
def test_a_quantized_checkpoint_takes_the_bytes_of_its_packed_or_expanded_weights(
    tmp_path: Path, method: str
) -> None:
    bits, settings = CONFIGS[method]
    model = random_model("qwen2", tie_word_embeddings=True, **SHAPE).bfloat16()
    save_model(model, tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": method, **settings})
    choose = load_weight_formats(tmp_path, frozenset()).choose
    expected = expected_tensors(load_decoder_config(tmp_path), choose)
    tensors = {name: random_tensor(spec) for name, spec in expected.items() if not spec.optional}
    save_file(tensors, tmp_path / "model.safetensors")
    peak, after = loaded(tmp_path)
    embedding = model.model.embed_tokens.weight.numel()
    layers = sum(each.numel() for each in model.model.layers.parameters())
    # A quantized embedding is stored once for the head and the rows.
    vocabulary = embedding * bits / 8 if method == "compressed-tensors" else 2 * embedding + COPY
    weights = layers * bits / 8 + vocabulary
    assert weights - PROCESS <= after <= peak <= 1.15 * weights + PROCESS


def random_tensor(spec: TensorSpec) -> torch.Tensor:
    """Random bits, within what a group's index and an FP8 value may be."""
    size = {"I32": 4, "I64": 8, "I8": 1, "F8_E4M3": 1}.get(spec.dtypes[0], 2)
    *rest, last = spec.shapes[0]
    if spec.dtypes == ("I32", "I64"):  # g_idx
        return torch.randperm(last).int() // 128
    raw = torch.randint(0, 100, (*rest, last * size), dtype=torch.uint8)
    dtypes = {"I32": torch.int32, "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn}
    return raw.view(dtypes.get(spec.dtypes[0], torch.bfloat16))


def loaded(model: Path) -> tuple[int, int]:
    """The bytes that loading takes: at the peak, at the end."""
    result = subprocess.run(
        [sys.executable, loaded_memory.__file__, str(model)],
        # A fixed threshold: glibc's own grows with use, and then it keeps up to 14 MB of freed tensors.
        env={**os.environ, "PYTHONSAFEPATH": "1", "MALLOC_MMAP_THRESHOLD_": "131072"},
        capture_output=True,
        text=True,
        check=True,
    )
    peak, after = map(int, result.stdout.split())
    return peak, after


def test_free_memory_is_at_most_the_machines() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free_memory(torch.device("cpu")) <= total


def test_the_host_tiers_memory_is_not_given_to_the_kv_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(random_model("qwen2"), tmp_path)
    shape = load_decoder_config(tmp_path)
    monkeypatch.setattr(memory_plan, "free_memory", lambda device: 4 << 30)

    def budget(**fields: object) -> int:
        config = serve_config(tmp_path, **{"kv_memory": None, **fields})
        return memory_plan._kv_budget(config, shape, torch.float32, torch.device("cpu"))

    assert budget() == int(0.4 * (4 << 30))
    assert budget(host_cache=3 << 30) == int(0.4 * (1 << 30))
    assert budget(disk_cache=tmp_path) == int(0.4 * (3 << 30))
    assert budget(host_cache=8 << 30, kv_memory=1 << 20) == 1 << 20
    with pytest.raises(ConfigError, match="--host-cache 8GiB: beside the model only"):
        budget(host_cache=8 << 30)


def plan_pages(config: ServeConfig, shape: DecoderConfig) -> int:
    layout = PoolLayout.of(shape.cache_spec, 16, torch.float32, shape.default_positions)
    return memory_plan.plan_pages(config, shape, torch.float32, torch.device("cpu"), 0, layout).num_pages


def test_a_kv_cache_that_the_machine_has_no_memory_for_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(random_model("qwen2"), tmp_path)
    shape = load_decoder_config(tmp_path)
    bytes_per_page = page_bytes(shape.cache_spec, 16, torch.float32)
    monkeypatch.setattr(memory_plan, "free_memory", lambda device: 100 * bytes_per_page)

    def pages(kv_pages: int, **fields: object) -> int:
        config = serve_config(tmp_path, kv_memory=kv_pages * bytes_per_page, max_running=10_000, **fields)
        return plan_pages(config, shape)

    assert pages(100) == 100
    with pytest.raises(ConfigError) as caught:
        pages(101)
    for words in (
        f"--kv-memory {as_given(101 * bytes_per_page)}: ",
        f"would take {in_units(101 * bytes_per_page, up=True)}, ",
        f"only {in_units(100 * bytes_per_page)} are free",
    ):
        assert words in str(caught.value)
    with pytest.raises(ConfigError, match="and --host-cache"):
        pages(60, host_cache=50 * bytes_per_page)


def test_unusable_memory_is_reported_with_the_flag_that_allows_more_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(random_model("qwen2", max_position_embeddings=256), tmp_path)
    shape = load_decoder_config(tmp_path)

    def pages(**fields: object) -> int:
        config = serve_config(tmp_path, max_running=2, **fields)
        return plan_pages(config, shape)

    taken = pages(kv_memory=1 << 30) * page_bytes(shape.cache_spec, 16, torch.float32)
    (told,) = caplog.messages
    for words in (
        "--kv-memory 1GiB: ",
        f"only {in_units(taken)} are used",
        "2 requests (--max-running) of 256 tokens can't fill more",
    ):
        assert words in told
    pages(kv_memory=taken)
    pages(kv_memory=None)
    assert caplog.messages == [told]


def test_memory_for_graphs_is_not_given_to_the_kv_cache(tmp_path: Path) -> None:
    save_model(random_model("qwen2"), tmp_path)
    shape = load_decoder_config(tmp_path)

    def budget(free: int, graphs: int) -> int:
        return default_budget(shape, torch.bfloat16, torch.device("cuda"), free, graphs)

    assert budget(4 << 30, 0) - budget(4 << 30, 100 << 20) == 100 << 20
    assert budget(1 << 20, 100 << 20) == 0
