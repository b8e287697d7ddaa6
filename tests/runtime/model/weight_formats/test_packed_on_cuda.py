"""Weights that stay packed on CUDA: their products and whole models, compared with expanded weights.

Needs no GPU: without one the kernels run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from arbora.kernels.linear import coded_product_cuda, find_packer
from arbora.kernels.linear.coded_product_cuda import CodedCudaProduct
from arbora.runtime.model import loading
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.weight_formats import (
    Checkpoint,
    Projection,
    ProjectionLoader,
    checkpoint_formats,
    packing,
)
from arbora.runtime.model.weights import layer_projections
from gguf import GGMLQuantizationType as Type
from gguf_models import one_type, write_gguf
from quantized_checkpoints import CASES, loader_of, write_quantized
from step_driver import StepDriver
from transformers_oracle import EVERY_LOGPROB, random_tokens
from triton_device import DEVICE, cache_as_on_a_gpu, triton_kernels  # noqa: F401

SCALE_ERROR = 2**-11
"""of a scale or offset, which are stored as float16"""
FP8_SCALE_ERROR = 2**-20
EXPANDED = {"gptq with uneven groups", "fp8 in blocks"}
"""cases whose groups of 40 inputs have no product on CUDA"""
ONE_PRODUCT = [
    "fp8 in blocks",
    "fp8 in blocks larger than a weight",
    "compressed-tensors fp8 in blocks",
    "compressed-tensors int8 with zero points",
    "compressed-tensors 4 bits per channel",
    "compressed-tensors mxfp4",
    "gptq with uneven groups",
    "gptq 8 bits",
    "awq of one group",
]
DOWN = "model.layers.0.mlp.down_proj"
WHOLE_MODELS = ["gptq ordered by activations", "compressed-tensors fp8 with a quantized head"]


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(packing, "find_packer", lambda shape, _: find_packer(shape, torch.device("cuda")))
    monkeypatch.setattr(loading, "warm_up", lambda *_: None)  # slow in the interpreter
    with triton_kernels():
        yield


def assert_product(directory: Path, down: Projection, exact: float, is_packed: bool) -> None:
    loader = loader_of(directory, device=DEVICE)
    x = torch.randn(1, down.inputs, device=DEVICE)
    weight, linear = loader.load_weight(down).double(), loader.load_linear(down)
    assert is_packed == isinstance(linear.product, CodedCudaProduct)
    # A weight may be the difference of a code's multiple and an offset sixteen times as large.
    bound = 16 * exact * (x.double().abs() @ weight.abs().amax(1).expand(down.inputs, -1)) + 1e-5
    assert ((linear(x).double() - x.double() @ weight.T).abs() <= bound).all()


@pytest.mark.parametrize("name", ONE_PRODUCT)
def test_products_are_those_of_the_expanded_weights(name: str, tmp_path: Path) -> None:
    write_quantized(CASES[name], tmp_path)
    exact = FP8_SCALE_ERROR if "fp8" in name else SCALE_ERROR
    down = layer_projections(load_decoder_config(tmp_path), 0).feed_forward[0].down
    assert_product(tmp_path, down, exact, name not in EXPANDED)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("compressed-tensors int8 with activations", True),
        ("compressed-tensors fp8 with activations", True),
        ("fp8 in blocks larger than a weight", True),
        ("compressed-tensors int8", False),
        ("compressed-tensors fp8 per channel", False),
    ],
)
def test_many_rows_are_rounded_if_the_checkpoint_has_rounded_activations(
    name: str, rounds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_quantized(CASES[name], tmp_path)
    monkeypatch.setattr(coded_product_cuda, "FEW_ROWS", 4)
    checkpoint = Checkpoint(tmp_path)
    choose = checkpoint_formats(tmp_path, checkpoint).choose
    loader = ProjectionLoader(checkpoint, choose, torch.float32, DEVICE, batch_invariant=False)
    down = layer_projections(load_decoder_config(tmp_path), 0).feed_forward[0].down
    x, linear = torch.randn(5, down.inputs, device=DEVICE), loader.load_linear(down)
    exact = x.double() @ loader.load_weight(down).double().T
    # Codes of 8 bits are off by about 0.6 % of the largest activations (int8) or 2.6 % of each (FP8).
    few, many = ((linear(x[:rows]) - exact[:rows]).norm() / exact[:rows].norm() for rows in (4, 5))
    assert few < 1e-3
    assert 2e-3 < many < 0.05 if rounds else many < 1e-3


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q6_K], ids=lambda kind: kind.name)
def test_gguf_weights_stay_packed(kind: Type, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "model.gguf", "llama", one_type(kind))
    outputs, inputs = model.get_submodule(DOWN).get_parameter("weight").shape
    assert_product(tmp_path, Projection(DOWN, outputs, inputs), SCALE_ERROR, True)


@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_a_whole_model_is_near_the_one_with_expanded_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_quantized(CASES[name], tmp_path)
    tokens = random_tokens(12)

    def logprobs() -> torch.Tensor:
        # For tensors in the interpreter, the model would be loaded with programs of the CPU's kernels.
        driver = StepDriver.load(tmp_path, device=DEVICE.type, enforce_eager=DEVICE.type == "cpu")
        driver.start(0, EVERY_LOGPROB)
        return driver.prompt_logprobs(0, tokens, 7)

    got = logprobs()
    monkeypatch.setattr(packing, "find_packer", lambda shape, device: None)
    expected = logprobs()
    assert (got - expected).abs().max() < 5e-3
