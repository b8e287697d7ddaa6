"""Models that pool: each vector equals that of transformers for the input alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arbora.runtime.errors import ConfigError
from arbora.runtime.model.pooling_config import read_pooling
from tiny_encoders import VOCABULARY, PoolingRunner, pooled, tiny_encoder, write_modules
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, PreTrainedModel

RANDOM = np.random.default_rng(0)
INPUTS = [RANDOM.integers(4, VOCABULARY, size).tolist() for size in (7, 40, 1, 7, 7, 23, 40)]
FLAT = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert", "gemma3_text")
PADDED = ("mpnet", "deberta-v2", "megatron-bert")
DECODERS = ("qwen3", "llama", "gemma2")


def save(model: PreTrainedModel, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


def assert_near(found: Any, expected: Any) -> None:
    assert np.abs(found - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(kind, ("mean_tokens", "cls_token")[at % 2]) for at, kind in enumerate(FLAT + PADDED)],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_an_encoder_pools_as_its_modules_say(
    tmp_path: Path, kind: str, mode: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model = tiny_encoder(kind)
    save(model, tmp_path)
    write_modules(tmp_path, mode)
    runner = PoolingRunner(tmp_path)
    assert runner.loaded.runner._model._is_flat == (kind in FLAT)  # type: ignore[attr-defined]
    assert runner.loaded.runner._model._parts == threads  # type: ignore[attr-defined]
    assert_near(runner.run(INPUTS), pooled(model, INPUTS, mode))
    assert_near(runner.run(INPUTS[:2]), pooled(model, INPUTS[:2], mode))
    pooling = runner.loaded.ready.pooling
    assert pooling is not None and pooling.is_normalized and pooling.takes_whole and not pooling.reads_cache


@pytest.mark.parametrize(
    ("kind", "mode", "cached"),
    [
        *((kind, "lasttoken", True) for kind in DECODERS),
        ("qwen3", "mean_tokens", False),
        ("llama", "max_tokens", False),
        ("gemma2", "cls_token", False),
    ],
)
def test_a_decoder_pools_over_all_chunks_of_an_input(
    tmp_path: Path, kind: str, mode: str, cached: bool
) -> None:
    model = tiny_encoder(kind)
    save(model, tmp_path)
    write_modules(tmp_path, mode)
    runner = PoolingRunner(tmp_path)
    expected = pooled(model, INPUTS, mode)
    assert_near(runner.run(INPUTS), expected)
    assert_near(runner.run(INPUTS, chunk=9), expected)
    pooling = runner.loaded.ready.pooling
    assert pooling is not None and pooling.reads_cache == cached and not pooling.takes_whole


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_a_model_that_pools_has_no_adapters(tmp_path: Path, kind: str) -> None:
    save(tiny_encoder(kind), tmp_path)
    write_modules(tmp_path, "mean_tokens")
    with pytest.raises(ConfigError, match=r"--max-loras: the model pools"):
        PoolingRunner(tmp_path, max_loras=1)


def test_the_log_says_that_a_model_that_pools_makes_no_drafts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tiny_encoder("qwen3"), tmp_path)
    write_modules(tmp_path, "mean_tokens")
    PoolingRunner(tmp_path, speculate=4)
    assert "--speculate 4 has no effect: the model generates no tokens." in caplog.text


def test_an_encoder_without_modules_pools_by_the_mean(tmp_path: Path) -> None:
    model = tiny_encoder("bert", AutoModelForMaskedLM)
    save(model, tmp_path)
    assert_near(PoolingRunner(tmp_path).run(INPUTS), pooled(model.base_model, INPUTS, "mean_tokens"))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("bert", {"num_labels": 1}),
        ("bert", {"num_labels": 3}),
        ("roberta", {"num_labels": 2}),
        ("distilbert", {"num_labels": 2}),
        ("modernbert", {"num_labels": 3, "classifier_pooling": "mean"}),
        ("deberta-v2", {"num_labels": 2}),
        ("qwen3", {"num_labels": 3}),
    ],
)
def test_classifiers_give_the_logits_of_their_heads(
    tmp_path: Path, kind: str, fields: dict[str, Any]
) -> None:
    model = tiny_encoder(kind, AutoModelForSequenceClassification, **fields)
    save(model, tmp_path)
    runner = PoolingRunner(tmp_path)
    with torch.inference_mode():
        expected = [model(input_ids=torch.tensor([tokens])).logits[0].numpy() for tokens in INPUTS]
    assert_near(runner.run(INPUTS), np.stack(expected))
    pooling = runner.loaded.ready.pooling
    assert pooling is not None and len(pooling.labels) == fields["num_labels"]
    assert pooling.activation == ("sigmoid" if fields["num_labels"] == 1 else "softmax")


def test_an_encoder_tells_the_texts_of_a_pair_apart(tmp_path: Path) -> None:
    model = tiny_encoder("bert", AutoModelForSequenceClassification, num_labels=1)
    save(model, tmp_path)
    seconds = [3, 11, 0, 2, 0, 5, 39]
    found = PoolingRunner(tmp_path).run(INPUTS, seconds=seconds)
    for tokens, second, logits in zip(INPUTS, seconds, found, strict=True):
        types = torch.arange(len(tokens))[None] >= (second or len(tokens))
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([tokens]), token_type_ids=types.long()).logits[0].numpy()
        assert_near(logits, expected)


def test_linear_layers_after_pooling_are_applied(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = tiny_encoder("bert")
    save(model, tmp_path)
    write_modules(tmp_path, "mean_tokens", dense=8)
    (tmp_path / "2_Dense").mkdir()
    weight, bias = torch.randn(8, 32), torch.randn(8)
    save_file({"linear.weight": weight, "linear.bias": bias}, tmp_path / "2_Dense" / "model.safetensors")
    (tmp_path / "2_Dense" / "config.json").write_text('{"in_features": 32, "out_features": 8, "bias": true}')
    expected = torch.from_numpy(pooled(model, INPUTS, "mean_tokens")) @ weight.T + bias
    runner = PoolingRunner(tmp_path)
    assert_near(runner.run(INPUTS), torch.tanh(expected).numpy())
    assert runner.loaded.ready.pooling is not None and runner.loaded.ready.pooling.size == 8


def test_a_generating_model_pools_only_if_asked(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny_encoder("qwen3", AutoModelForCausalLM)
    save(model, tmp_path)
    assert read_pooling(tmp_path, "auto") is None
    runner = PoolingRunner(tmp_path, runner="pooling")
    assert_near(runner.run(INPUTS, 9), pooled(model.base_model, INPUTS, "lasttoken"))


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("mean_sqrt_len_tokens", "pooling by pooling_mode_mean_sqrt_len_tokens is not supported"),
        ("", "by None"),
    ],
)
def test_another_way_of_pooling_is_refused(tmp_path: Path, mode: str, problem: str) -> None:
    save(tiny_encoder("bert"), tmp_path)
    write_modules(tmp_path, mode)
    if mode:
        (tmp_path / "1_Pooling" / "config.json").write_text(
            f'{{"pooling_mode_{mode}": true}}'.replace("mode_mode", "mode")
        )
    with pytest.raises(ConfigError, match=problem):
        read_pooling(tmp_path, "auto")


@pytest.mark.parametrize(
    "options",
    [{"disk_cache": Path("/tmp")}, {"deterministic": True}, {"model_impl": "native"}],
)
def test_options_that_an_encoder_can_t_honour_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    save(tiny_encoder("bert"), tmp_path)
    with pytest.raises(ConfigError):
        PoolingRunner(tmp_path, **options)
