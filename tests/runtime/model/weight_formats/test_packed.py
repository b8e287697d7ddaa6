"""Quantized checkpoints against transformers, and weights that stay packed against expanded weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from arbora.kernels.common.reused_memory import Blocks, ReusedMemory
from arbora.kernels.common.threads import recorded_calls
from arbora.kernels.linear import Linear, half_cpu
from arbora.kernels.linear.integer import IntegerCpuProduct
from arbora.runtime.errors import ConfigError
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.weight_formats import Projection
from arbora.runtime.model.weight_formats.expand import find_groups
from arbora.runtime.model.weight_formats.packing import find_packing
from arbora.runtime.model.weight_formats.weight_format import CodedRows, CodedWeight
from arbora.runtime.model.weights import layer_projections
from gguf import GGMLQuantizationType as Type
from gguf_models import one_type, q4_k_m, write_gguf
from quantized_checkpoints import CASES, Case, loader_of, write_quantized
from quantizers import int8_channel
from safetensors.torch import load_file, save_file
from step_driver import StepDriver
from transformers import PreTrainedModel
from transformers_oracle import EVERY_LOGPROB, assert_close, expected_greedy, expected_logprobs, random_tokens

CPU = torch.device("cpu")
SCALE_ERROR = 2**-11
"""of a scale or offset: products store float16"""
EXPANDED = {"gptq with uneven groups"}
"""beginnings of the names of cases without a product"""


Pair = tuple[PreTrainedModel, Path]
"""a model of transformers and the checkpoint whose quantized weights it has"""


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    return write_quantized(CASES[request.param], directory), directory


@pytest.fixture
def directory(pair: Pair) -> Path:
    return pair[1]


def joined(directory: Path) -> list[tuple[Projection, ...]]:
    config = load_decoder_config(directory)
    layers = [layer_projections(config, layer) for layer in range(len(config.layers))]
    of_layers = ((each.qkv, (each.output,), each.feed_forward[0]) for each in layers)
    return [run for qkv, output, (gate_up, down) in of_layers for run in (qkv, output, gate_up, (down,))]


def test_results_differ_from_the_expanded_weights_by_the_rounding_of_activations(directory: Path) -> None:
    loader = loader_of(directory)
    for projections in joined(directory):
        x = torch.randn(5, projections[0].inputs)
        x[:, 3] *= 20
        weight = loader.load_weight(*projections).double()
        bias = loader.load_bias(projections)
        expected = x.double() @ weight.T + (0 if bias is None else bias.double())
        # Half a step of the largest input of a row bounds each input's rounding.
        step = x.abs().amax(1, keepdim=True).double() / 127 / 2
        magnitudes = weight.abs().sum(1)
        bound = 1.01 * step * magnitudes + 2 * SCALE_ERROR * (x.abs().double() @ weight.abs().T)
        difference = (loader.load_linear(*projections)(x).double() - expected).abs()
        assert (difference <= bound + 1e-4).all(), projections[0].name


@pytest.mark.parametrize("name", [name for name in CASES if "fp8" in name])
def test_fp8_products_are_as_exact_as_float32(name: str, tmp_path: Path) -> None:
    write_quantized(CASES[name], tmp_path)
    loader = loader_of(tmp_path)
    for projections in joined(tmp_path):
        x = torch.randn(5, projections[0].inputs)
        weight = loader.load_weight(*projections).double()
        bound = x.double().abs() @ weight.abs().T * 2**-18
        difference = (loader.load_linear(*projections)(x).double() - x.double() @ weight.T).abs()
        assert (difference <= bound).all(), projections[0].name


def test_a_projection_with_nan_in_fp8_is_named(tmp_path: Path) -> None:
    write_quantized(CASES["fp8 per tensor"], tmp_path)
    path, name = tmp_path / "model.safetensors", "model.layers.0.self_attn.k_proj"
    tensors = load_file(path)
    tensors[f"{name}.weight"].view(torch.uint8)[3, 5] = 0xFF
    save_file(tensors, path)
    qkv = layer_projections(load_decoder_config(tmp_path), 0).qkv
    with pytest.raises(ConfigError, match=f"{path}: tensor {name}.weight has values that are NaN"):
        loader_of(tmp_path).load_linear(*qkv)


def test_every_format_with_a_product_stays_packed(directory: Path, request: pytest.FixtureRequest) -> None:
    case = next(name for name in CASES if directory.name.startswith(name.replace(" ", "-") + "0"))
    down = loader_of(directory)._find_packing(
        layer_projections(load_decoder_config(directory), 0).feed_forward[0].down
    )
    assert (down is None) == any(case.startswith(name) for name in EXPANDED), case


def test_the_stored_weights_are_the_checkpoints(directory: Path) -> None:
    loader = loader_of(directory)
    for projections in joined(directory):
        for projection in projections:
            expected = loader.load_weight(projection)
            got = loader.load_rows(projection)(torch.arange(projection.outputs, dtype=torch.int32))
            # Scales and offsets are rounded; an offset is at most as large as the group's range.
            bound = 2 * SCALE_ERROR * 2 * expected.abs().amax(1, keepdim=True)
            assert ((got - expected).abs() <= bound).all(), projection.name


def test_a_tied_embedding_is_stored_once_with_the_head(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "qwen3", one_type(Type.Q8_0), tie_word_embeddings=True)
    loader = loader_of(tmp_path)
    rows, head = loader.load_rows_and_head(Projection("model.embed_tokens", 300, 256, kind="Embedding"))
    assert isinstance(head.product, IntegerCpuProduct)
    assert isinstance(rows, partial) and rows.args[0] is head.product
    expected = loader.load_weight(Projection("model.embed_tokens", 300, 256))
    ids = torch.tensor([3, 299, 3], dtype=torch.int32)
    assert torch.equal(rows(ids), expected[[3, 299, 3]])
    half = loader_of(tmp_path, torch.bfloat16).load_rows(Projection("model.embed_tokens", 300, 256))
    assert torch.equal(half(ids), expected[[3, 299, 3]].bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_embedding_that_is_not_quantized_has_the_rows_of_its_tied_head(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    write_gguf(tmp_path / "model.gguf", "qwen3", one_type(Type.BF16), tie_word_embeddings=True)
    loader = loader_of(tmp_path, dtype)
    projection = Projection("model.embed_tokens", 300, 256, kind="Embedding")
    rows, head = loader.load_rows_and_head(projection)
    if half_cpu.serves(dtype):
        assert rows == head.stored_rows(), "a second copy of the weight"
    expected = loader.load_weight(projection)
    ids = torch.tensor([3, 299, 3], dtype=torch.int32)
    assert torch.equal(rows(ids), expected[[3, 299, 3]])
    x = torch.randn(2, 256).to(dtype)
    assert torch.equal(head(x), Linear.pack(expected, None)(x))


def test_projections_of_several_types_become_several_products_of_one_input(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama", q4_k_m)
    loader = loader_of(tmp_path)
    q, k, v = (
        Projection(f"model.layers.0.self_attn.{name}", outputs, 256)
        for name, outputs in (("q_proj", 256), ("k_proj", 128), ("v_proj", 128))
    )
    packings = [loader._find_packing(each) for each in (q, k, v)]
    assert packings[0] == packings[1] != packings[2]
    x = torch.randn(4, 256)
    whole = loader.load_linear(q, k, v)
    assert (whole.out_features, whole.in_features) == (512, 256)
    for rows in (x, x[:1], x.bfloat16()):
        assert torch.equal(
            whole(rows), torch.cat([loader.load_linear(each)(rows) for each in (q, k, v)], dim=1)
        )
    with recorded_calls() as calls, ReusedMemory(Blocks()):
        whole(x)
    assert len(calls) == 4, "two products, and a copy of each one's results"


def test_groups_of_unequal_sizes_have_no_product() -> None:
    def rows(piece: slice) -> CodedRows:
        raise AssertionError

    def packed(index: list[int]) -> bool:
        groups = find_groups(torch.tensor(index), 64, 16)
        return find_packing(CodedWeight(4, groups, 8, "scales", rows), 16, 64, CPU) is not None

    assert packed([3, 2, 1, 0] * 16)
    assert not packed([0] * 17 + [1] * 15 + [2] * 16 + [3] * 16)


@pytest.mark.parametrize(
    "case", ["compressed-tensors int8", "compressed-tensors 8 bits, packed", "gptq", "awq"]
)
def test_logprobs_stay_near_those_of_the_expanded_weights(tmp_path: Path, case: str) -> None:
    model = write_quantized(CASES[case], tmp_path)
    tokens = random_tokens(60)
    driver = StepDriver.load(tmp_path)
    driver.start(0, EVERY_LOGPROB)
    got, expected = driver.prompt_logprobs(0, tokens, 37), expected_logprobs(model, tokens)[:-1]
    divergence = (expected.exp() * (expected - got)).sum(1)
    assert 1e-7 < divergence.mean() < 3e-3, divergence.mean()


def test_a_rows_bits_do_not_depend_on_the_chunks_of_a_batch_invariant_model(tmp_path: Path) -> None:
    case = Case(CASES["compressed-tensors int8"].config, int8_channel())
    write_quantized(case, tmp_path)
    loader = loader_of(tmp_path, batch_invariant=True)
    x = torch.randn(70, 64)
    for projections in joined(tmp_path):
        if projections[0].inputs == 64:
            linear = loader.load_linear(*projections)
            assert torch.equal(linear(x), torch.cat([linear(x[:1]), linear(x[1:33]), linear(x[33:])]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_expanded_exactly(pair: Pair, dtype: torch.dtype) -> None:
    model, directory = pair
    reader, config = loader_of(directory, dtype), load_decoder_config(directory)
    for layer in range(len(config.layers)):
        for projection in layer_projections(config, layer).all():
            expected = model.get_submodule(projection.name).get_parameter("weight")
            assert torch.equal(reader.load_weight(projection), expected.to(dtype)), projection.name


@pytest.mark.usefixtures("expanded")
def test_a_prompt_has_the_same_logprobs(pair: Pair) -> None:
    model, directory = pair
    tokens = random_tokens(60)
    driver = StepDriver.load(directory)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, 37), expected_logprobs(model, tokens)[:-1])


@pytest.mark.parametrize("name", [name for name in CASES if "fp8" in name])
def test_packed_fp8_has_the_same_logprobs(name: str, tmp_path: Path) -> None:
    model, tokens = write_quantized(CASES[name], tmp_path), random_tokens(60)
    driver = StepDriver.load(tmp_path)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, 37), expected_logprobs(model, tokens)[:-1])


@pytest.mark.usefixtures("expanded")
def test_greedy_tokens_are_those_of_transformers(pair: Pair) -> None:
    model, directory = pair
    prompt = random_tokens(20, 1)
    driver = StepDriver.load(directory)
    driver.start(0)
    got = [driver.prefill(0, prompt)]
    got += [driver.decode([0])[0] for _ in range(15)]
    assert len(got) == 16
    assert got == expected_greedy(model, prompt, got)
