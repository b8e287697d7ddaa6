"""`arbora plan`: bytes equal those of real loading, and rates equal the roofline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from arbora.frontend.cli.main import main
from arbora.frontend.cli.plan.gpus import GPUS
from arbora.frontend.cli.plan.roofline import Rates, Work
from arbora.frontend.cli.plan.weights import (
    StoredFormat,
    float_weights,
    quantized_weights,
)
from arbora.frontend.model_files.model_source import find_model
from arbora.runtime.config import BUILTIN_MODEL, QuantizeMethod
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.kv_pool import allocate_pool
from arbora.runtime.model.weight_formats import (
    Checkpoint,
    ProjectionLoader,
    checkpoint_formats,
    load_weight_formats,
)
from arbora.runtime.model.weight_formats.quantized_checkpoint import write_quantized
from arbora.runtime.model.weights import load_weights, projections
from checkpoints import random_model, save_model
from fake_hub import MODEL, fake_hub
from gguf import GGMLQuantizationType as Type
from gguf_models import SHAPE, TypeOf, add_tensors, finish_file, one_type, q4_k_m, start_file
from gguf_vocabularies import add_byte_level
from huggingface_hub import constants
from tiny_checkpoint import write_tiny_checkpoint
from tiny_models import tiny_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["built-in", "tiny"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "built-in":
        return BUILTIN_MODEL
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["plan", "--json", *map(str, arguments)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_step_reads_only_the_experts_of_its_tokens(tmp_path: Path) -> None:
    config = load_decoder_config(save_model(random_model("qwen3_moe"), tmp_path))
    weights = float_weights(config, torch.float32)
    of_expert = 4 * 3 * 64 * 32
    assert weights.expert_bytes == config.layers[0].experts.count * of_expert * 3  # type: ignore[union-attr]
    work = Work(config, weights.step_bytes, weights.expert_bytes, 0)
    rates = Rates(bandwidth=1.0, operations=float("inf"))
    one_token = weights.step_bytes - weights.expert_bytes + 3 * 3 * of_expert  # 3 of 8 experts in 3 layers
    assert work.decode_tokens_per_s(rates, 1, 10) == pytest.approx(1 / one_token)
    assert work.decode_tokens_per_s(rates, 1000, 10) == pytest.approx(1000 / weights.step_bytes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_have_the_bytes_of_the_tensors_that_are_loaded(
    model: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[torch.Tensor] = []
    for name in ("load_weight", "load_vector"):
        read = getattr(ProjectionLoader, name)

        def noted(self: ProjectionLoader, *given: Any, read: Any = read) -> torch.Tensor:
            loaded.append(read(self, *given))
            return loaded[-1]

        monkeypatch.setattr(ProjectionLoader, name, noted)
    read_parts = ProjectionLoader._read_parts

    def noted_parts(self: ProjectionLoader, *given: Any) -> Sequence[torch.Tensor]:
        before = len(loaded)
        parts = read_parts(self, *given)
        loaded.extend(parts if len(loaded) == before else [])  # unless `load_weight` made them
        return parts

    monkeypatch.setattr(ProjectionLoader, "_read_parts", noted_parts)
    config, checkpoint, told = load_decoder_config(model), Checkpoint(model), list[str]()
    choose = load_weight_formats(model, checkpoint.names).choose
    load_weights(ProjectionLoader(checkpoint, choose, dtype, CPU, False), config, told.append)
    assert float_weights(config, dtype).bytes == sum(tensor.nbytes for tensor in loaded)
    assert told[-1] == f"loading weights: {len(config.layers)} of {len(config.layers)} layers"


@pytest.mark.parametrize("method", get_args(QuantizeMethod))
def test_quantized_weights_have_the_bytes_of_the_checkpoint_that_is_written(
    tmp_path: Path, method: QuantizeMethod
) -> None:
    model = write_tiny_checkpoint(tmp_path)
    config, target = load_decoder_config(model), tmp_path / "quantized"
    target.mkdir()
    matrices, told = list(projections(config)), list[str]()
    write_quantized(target, model, Checkpoint(model), matrices, method, told.append)
    assert told[0] == f"quantizing to {method}: 1 of {len(matrices)} matrices"
    assert told[-1] == f"quantizing to {method}: {len(matrices)} of {len(matrices)} matrices"
    written = Checkpoint(target)
    stored = sum(written.read(name).nbytes for name in written.names)
    planned = quantized_weights(config, method, torch.float32, CPU)
    assert (planned.bytes, planned.is_expanded) == (stored, False)
    assert StoredFormat.of(target).weights(config, torch.float32, CPU).bytes == stored


GGUF_FILES: dict[str, tuple[TypeOf, dict[str, Any]]] = {
    "Q4_K_M": (q4_k_m, {}),
    "Q8_0": (one_type(Type.Q8_0), {}),
    "Q4_1, tied": (one_type(Type.Q4_1), {"tie_word_embeddings": True}),
    "Q5_0": (one_type(Type.Q5_0), {}),
    "F16": (one_type(Type.F16), {}),
}


@pytest.mark.parametrize("kind", GGUF_FILES)
def test_a_gguf_file_has_the_bytes_of_the_products_that_are_loaded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_of, fields = GGUF_FILES[kind]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random = random_model("llama", **{**SHAPE, "vocab_size": 512, **fields})
    writer = start_file(tmp_path / "small.gguf", random)
    add_byte_level(writer, "gpt-2")
    add_tensors(writer, random, type_of)
    finish_file(writer)
    found = plan(capsys, tmp_path / "small.gguf", "--dtype", "bfloat16")["chosen"]
    assert not found["is_expanded"]
    model = find_model(str(tmp_path / "small.gguf"))
    assert found["weight_bytes"] == loaded_bytes(model, monkeypatch)


def loaded_bytes(model: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes of all products and vectors that loading the model makes."""
    made = list[Any]()
    for name in ("load_vector", "load_weight", "_pack"):
        read = getattr(ProjectionLoader, name)

        def noted(self: ProjectionLoader, *given: Any, read: Any = read) -> Any:
            made.append(read(self, *given))
            return made[-1]

        monkeypatch.setattr(ProjectionLoader, name, noted)
    config, checkpoint = load_decoder_config(model), Checkpoint(model)
    choose = checkpoint_formats(model, checkpoint).choose
    load_weights(ProjectionLoader(checkpoint, choose, torch.bfloat16, CPU, False), config)
    return sum(each.nbytes for each in made)


def test_the_kv_cache_has_the_bytes_of_the_tensors_that_are_allocated(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, dtype, flag in (("bfloat16", torch.bfloat16, "auto"), ("float32", torch.int8, "int8")):
        found = plan(capsys, model, "--dtype", name, "--kv-dtype", flag)
        spec = load_decoder_config(model).cache_spec
        pages = allocate_pool(spec, [3] * spec.layers, found["page_size"], dtype, CPU)
        assert 3 * found["page_bytes"] == sum(tensor.nbytes for tensor in pages)
        assert found["kv_bytes_per_token"] * found["page_size"] == found["page_bytes"]


def test_what_fits_adds_up(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, model, "--memory", "1GiB", "--context", 100, "--dtype", "bfloat16")
    chosen = found["chosen"]
    assert chosen["kv_bytes"] == chosen["pages"] * found["page_bytes"]
    assert chosen["requests"] == chosen["pages"] // 7  # 100 tokens take 7 pages of 16
    assert chosen["weight_bytes"] + chosen["kv_bytes"] <= 1 << 30
    nothing = plan(capsys, model, "--memory", "1MiB", "--context", 100)["chosen"]
    assert (nothing["pages"], nothing["requests"]) == (0, 0)
    most = plan(capsys, model, "--memory", "100GiB", "--context", 100)["chosen"]
    assert (most["pages"], most["requests"]) == (7 * 256, 256)  # as a server without --max-running takes


def test_rates_are_the_larger_of_bytes_and_operations(tmp_path: Path) -> None:
    config = load_decoder_config(write_tiny_checkpoint(tmp_path))
    matrices = sum(each.outputs * each.inputs for each in projections(config) if "layers" in each.name)
    head = config.vocab_size * config.hidden_size
    work = Work(config, step_bytes=1000, expert_bytes=0, token_bytes=10)
    slow_memory, slow_product = Rates(1e3, 1e30), Rates(1e30, 1e6)
    assert work.decode_tokens_per_s(slow_memory, 4, 50) == pytest.approx(4 / ((1000 + 4 * 10 * 50) / 1e3))
    spec = config.cache_spec
    attention = 4 * spec.heads * spec.head_dim * spec.layers
    operations = 2 * (matrices + head) + attention * 50
    assert work.decode_tokens_per_s(slow_product, 4, 50) == pytest.approx(1e6 / operations)
    operations = 3 * 2 * matrices + 2 * head + attention * (1 + 2 + 3)
    assert work.prefill_tokens_per_s(slow_product, 3) == pytest.approx(3 / (operations / 1e6))


def test_costs_follow_from_the_price(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--gpu", "H100-SXM", "--context", "256", "--price-per-hour", "3.6")
    assert [speed["batch"] for speed in found["decode"]] == [1, 8, 64]
    for speed in found["decode"]:
        assert speed["cost_per_million"] == pytest.approx(1e6 * 3.6 / 3600 / speed["tokens_per_s"])
    assert found["source"] == GPUS["h100-sxm"].source and found["prefill_tokens_per_s"] > 0


def test_the_tables_and_the_plot_show_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu", "l4", "--price-per-hour", "0.8", "--context", "512"]) == 0
    said = capsys.readouterr().out
    assert "requests of 512 tokens" in said and "decode, batch 64" in said and "(estimates)" in said
    assert "cost of 1M tokens" in said and "currency of --price-per-hour" in said and "e-0" not in said
    assert "  256 ████" in said and "NVIDIA L4 data sheet" in said
    assert "The device has no product" not in said  # the GPU has one for each format


def test_the_tables_have_no_costs_without_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu", "l4"]) == 0
    said = capsys.readouterr().out
    assert "tokens/s" in said and "cost of" not in said


def test_the_built_in_model_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    named = plan(capsys, "arbora-builtin", "--memory", "1GiB")
    assert named == plan(capsys, "--memory", "1GiB") and named["model"] == "arbora-builtin"


def test_a_model_on_the_hub_needs_only_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_checkpoint(tmp_path)
    with fake_hub({"config.json": (model / "config.json").read_bytes()}) as hub:
        use_hub(monkeypatch, hub.url, tmp_path)
        found = plan(capsys, MODEL, "--memory", "8GiB")
    assert found["chosen"] == plan(capsys, model, "--memory", "8GiB")["chosen"]
    assert plan(capsys, MODEL, "--memory", "8GiB") == found, "the cache has the config"


def test_a_model_on_the_hub_without_a_config_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_hub({"README.md": b"nothing"}) as hub:
        use_hub(monkeypatch, hub.url, tmp_path)
        assert main(["plan", MODEL]) == 2
    assert f"MODEL {MODEL}: it has no config.json on the hub." in capsys.readouterr().err


def test_a_model_that_transformers_computes_is_served_but_not_estimated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_config("lfm2").save_pretrained(tmp_path)
    assert main(["plan", str(tmp_path)]) == 2
    refusal = capsys.readouterr().err
    assert "it is served, by the code of transformers, but not estimated" in refusal
    assert "not supported" not in refusal


def test_a_hub_that_cannot_be_reached_is_tried_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_hub(monkeypatch, "http://127.0.0.1:1", tmp_path)
    assert main(["plan", MODEL]) == 2
    assert f"MODEL {MODEL}: there is no such directory, no copy in the hub's cache" in capsys.readouterr().err
    assert not any("Retrying" in record.getMessage() for record in caplog.records)


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--gpu", "h100-sxn"), "this GPU is not in the table. Did you mean h100-sxm? It has a10,"),
        (("--gpu", "H100"), "this GPU is not in the table. Did you mean h100-pcie or h100-sxm? It has a10,"),
        (("--memory", "big"), "--memory big: expected a size such as 4GiB"),
        (("--memory", "24"), "--memory 24: this is 24 bytes. Did you mean 24GiB?"),
        (("--context", "9999999"), "--context 9999999: the model's positions allow 1 to "),
        (("--context", "99K"), "--context 99K: the model's positions allow 1 to "),
        (("--quantize", "int2"), "--quantize int2: expected one of int8, int4, fp8."),
        (("--price-per-hour", "-1", "--gpu", "l4"), "--price-per-hour -1: expected a price"),
        (("--price-per-hour", "1"), "Name a GPU with --gpu, or give --fleet and --steps."),
        (("/no/where",), "MODEL /no/where: there is no such directory"),
    ],
)
def test_a_wrong_option_is_named(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], expected: str
) -> None:
    assert main(["plan", *options]) == 2
    assert expected in capsys.readouterr().err


def test_a_quantized_checkpoint_is_not_quantized_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_checkpoint(tmp_path)
    target = tmp_path / "q"
    target.mkdir()
    config = load_decoder_config(model)
    write_quantized(target, model, Checkpoint(model), list(projections(config)), "int8")
    (target / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    assert main(["plan", str(target), "--quantize", "int4"]) == 2
    assert "--quantize int4: the model is quantized already" in capsys.readouterr().err


def test_a_directory_needs_only_its_configuration(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    memory = ("--memory", "8GiB")
    assert plan(capsys, tmp_path, *memory)["chosen"] == plan(capsys, model, *memory)["chosen"]
