"""A model that two ranks compute gives the tokens of one that a single process computes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from arbora.frontend.model_files.gguf.config import model_config
from arbora.runtime.errors import ConfigError
from arbora.runtime.gguf_file import GgufFile
from arbora.runtime.messages import StepMasks, StepResult
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.feed_forward import stack_experts
from arbora.runtime.model.ranks import (
    ONE_RANK,
    Rank,
    RanksDifferError,
    agree_on_masks,
    agree_on_result,
    check_gpus,
    find_least,
)
from arbora.runtime.model.weight_formats.cutting import cut_inputs, cut_outputs
from arbora.runtime.model.weight_formats.expand import scale_codes
from arbora.runtime.model.weight_formats.weight_format import CodedWeight
from arbora.runtime.model.weights import check_tensors, layer_projections, projections
from checkpoints import WINDOWED, random_model, save_model
from gguf_models import q4_k_m, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as some
from quantized_checkpoints import CASES, loader_of, write_quantized
from ranked_model import load_ranks
from served_model import ServedModel
from step_driver import StepDriver, serve_config
from tiny_models import tiny_config, tiny_model
from transformers_oracle import EVERY_LOGPROB

PROMPTS = [np.random.default_rng(length).integers(10, 120, length).tolist() for length in (3, 40, 90, 21)]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 5, "top_k": 20},
    {"temperature": 1.2, "seed": 9, "frequency_penalty": 0.8},
    {"temperature": 0.8, "seed": 2, "logit_bias": {120: 3.0}},
]
TWO: dict[str, Any] = {"num_hidden_layers": 2}
FIRST = Rank(0, 2)


def replies(server: ServedModel, prefix: str = "") -> list[list[int]]:
    """The tokens of all prompts, which run at the same time."""
    for number, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLING, strict=True)):
        server.submit(f"{prefix}{number}", prompt, 24, **sampling)
    server.run()
    return [server.tokens(f"{prefix}{number}") for number in range(len(PROMPTS))]


def assert_same(model: Path, **fields: Any) -> None:
    """Asserts that two ranks sample the tokens of one process, also when the prompts are cached."""
    one, two = ServedModel(model, **fields), ServedModel(model, tp=2, **fields)
    expected = replies(one)
    assert replies(two) == expected
    assert replies(two, "again") == expected and two.cached_tokens > 100


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {},
    "qwen3": {**WINDOWED, "num_attention_heads": 4, "num_key_value_heads": 1},
    "gemma2": TWO,
    "gemma3": {"tie_word_embeddings": True},
    "mixtral": TWO,
    "gpt_oss": {},
}
"""a family for each way to divide: KV heads, of which `qwen3` has fewer than ranks; biases; windows; a tied
head; experts; sinks"""


@pytest.mark.parametrize("family", FAMILIES)
def test_families_give_the_tokens_of_one_rank(family: str, tmp_path: Path) -> None:
    assert_same(save_model(random_model(family, **FAMILIES[family]), tmp_path))


@pytest.mark.parametrize("model_type", ["gemma", "granite", "phi3", "smollm3"])
def test_further_families_give_the_tokens_of_one_rank(model_type: str, tmp_path: Path) -> None:
    """Of Phi-3 one matrix has the queries, keys and values, and one gates and inner numbers."""
    tiny_model(tiny_config(model_type)).save_pretrained(tmp_path)
    assert_same(tmp_path)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_quantized_weights_give_the_tokens_of_one_rank(
    quantize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = save_model(
        random_model("llama", **TWO, hidden_size=256, intermediate_size=768), tmp_path / "model"
    )
    assert_same(model, quantize=quantize)


@pytest.mark.parametrize(
    ("family", "fields"), [("llama", {}), ("mixtral", {}), ("llama", {"quantize": "int8"})], ids=str
)
def test_a_process_group_gives_the_tokens_of_one_rank(
    family: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shape = {"hidden_size": 256, "intermediate_size": 768} if fields else FAMILIES[family]
    model = save_model(random_model(family, **{**TWO, **shape}), tmp_path / "model")
    assert_same(model, in_process_group=True, **fields)


@pytest.mark.parametrize("fields", [{"kv_dtype": "int8"}, {"deterministic": True}], ids=str)
def test_options_of_the_cache_and_of_sums_change_nothing(fields: dict[str, Any], tmp_path: Path) -> None:
    assert_same(save_model(random_model("llama", **TWO), tmp_path), **fields)


def write_gguf_model(directory: Path, **fields: Any) -> None:
    file = directory / "model.gguf"
    write_gguf(file, "llama", q4_k_m, **fields)
    (directory / "config.json").write_text(json.dumps(model_config(GgufFile(file))))


def test_a_gguf_file_gives_the_tokens_of_one_rank(tmp_path: Path) -> None:
    write_gguf_model(tmp_path, intermediate_size=1024)
    assert_same(tmp_path)


def test_drafts_give_the_tokens_of_one_rank(tmp_path: Path) -> None:
    """The second replies are predicted, with errors: drafts are accepted and rejected on both ranks."""
    model = save_model(random_model("llama", **TWO), tmp_path)
    one, two = ServedModel(model, speculate="off"), ServedModel(model, tp=2, speculate="auto")
    expected = replies(one)
    assert replies(two) == expected
    for number, (prompt, reply) in enumerate(zip(PROMPTS, expected, strict=True)):
        wrong = [token if at % 9 else token % 50 + 10 for at, token in enumerate(reply, 1)]
        two.submit(f"p{number}", prompt, 24, prediction=wrong, **SAMPLING[number])
    two.run()
    assert [two.tokens(f"p{number}") for number in range(len(PROMPTS))] == expected


def test_log_probabilities_in_chunks_are_those_of_one_rank(tmp_path: Path) -> None:
    model = save_model(random_model("llama"), tmp_path)
    tables = []
    for ranks in (1, 2):
        driver = StepDriver(*load_ranks(serve_config(model, tp=ranks)))
        driver.start(0, EVERY_LOGPROB)
        tables.append(driver.prompt_logprobs(0, PROMPTS[2], chunk=40 - 17 * ranks))
    expected, found = tables
    assert torch.allclose(found, expected, atol=1e-4)


def test_bfloat16_steps_agree_between_ranks(tmp_path: Path) -> None:
    """`RankedRunner` compares the tokens of both ranks after each step."""
    model = save_model(random_model("llama", **TWO), tmp_path)
    assert all(len(reply) == 24 for reply in replies(ServedModel(model, tp=2, dtype="bfloat16")))


def test_heads_that_ranks_can_not_divide_are_refused(tmp_path: Path) -> None:
    config = load_decoder_config(save_model(random_model("llama", **TWO), tmp_path))
    message = "--tp 3: the model has 4 query heads and 2 KV heads, .* Use 1 or 2 or 4"
    with pytest.raises(ConfigError, match=message):
        config.take_part(Rank(0, 3))
    assert [config.take_part(Rank(0, 4)).layers[0].kv_heads for _ in range(4)] == [1, 1, 1, 1]


FORMATS = (
    "fp8 in blocks",
    "fp8 per tensor",
    "compressed-tensors fp8 per channel",
    "compressed-tensors int8 with zero points",
    "compressed-tensors 4 bits with zero points",
    "compressed-tensors mxfp4",
    "gptq",
    "gptq with uneven groups",
    "gptq ordered by activations",
    "awq",
    "Q4_K_M",
)


@pytest.mark.parametrize("name", FORMATS)
def test_any_outputs_and_inputs_are_cut_out_of_every_format(name: str, tmp_path: Path) -> None:
    if name in CASES:
        write_quantized(CASES[name], tmp_path)
    else:
        write_gguf_model(tmp_path)
    loader, random = loader_of(tmp_path), np.random.default_rng(0)
    for projection in layer_projections(load_decoder_config(tmp_path), 0).all():
        weight = loader._read_whole(projection)
        assert isinstance(weight, CodedWeight)
        whole = expand(weight, projection.outputs)
        for _ in range(3):
            begin, end = sorted(random.choice(projection.outputs + 1, 2, replace=False).tolist())
            part = cut_outputs(weight, [range(begin, end), range(3)], projection.outputs)
            expected = torch.cat([whole[begin:end], whole[:3]])
            assert torch.equal(expand(part, len(expected)), expected)
            begin, end = sorted(random.choice(projection.inputs + 1, 2, replace=False).tolist())
            part = cut_inputs(weight, range(begin, end), projection.inputs)
            assert torch.equal(expand(part, projection.outputs), whole[:, begin:end])


def test_codes_whose_groups_ranks_can_not_divide_are_refused(tmp_path: Path) -> None:
    write_quantized(CASES["gptq ordered by activations"], tmp_path)
    loader = replace(loader_of(tmp_path), ranks=FakeRanks([]))
    output = layer_projections(load_decoder_config(tmp_path), 0).output
    with pytest.raises(ConfigError, match=r"--tp 2: model.layers.0.self_attn.o_proj has groups .*act-order"):
        loader.load_linear(output)


def expand(weight: torch.Tensor | CodedWeight, outputs: int) -> torch.Tensor:
    assert isinstance(weight, CodedWeight)
    return torch.cat(
        [
            scale_codes(weight.rows(slice(begin, min(begin + 128, outputs))), weight.groups.index)
            for begin in range(0, outputs, 128)
        ]
    )


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_in_one_tensor_are_cut_as_those_of_a_cpu(family: str, tmp_path: Path) -> None:
    """GPUs have them in one tensor."""
    config = load_decoder_config(save_model(random_model(family, **FAMILIES[family]), tmp_path))
    whole = loader_of(tmp_path)
    check_tensors(whole.checkpoint, config, whole.choose)
    experts = layer_projections(config, 0).feed_forward
    for number in range(2):
        loader = replace(whole, ranks=FakeRanks([], Rank(number, 2)))
        for matrices in ([each.gate_up for each in experts], [(each.down,) for each in experts]):
            weights, biases = stack_experts(loader, matrices)
            for expert, of_expert in enumerate(matrices):
                product, bias = loader.load_linear(*of_expert), None if biases is None else biases[expert]
                x = torch.randn(5, product.in_features)
                assert torch.allclose(F.linear(x, weights[expert], bias), product(x), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_divide_all_matrices_but_the_embedding(family: str, tmp_path: Path) -> None:
    """So a rank may choose its GPU's kernels by their time: all ranks get the same sums of the results."""
    config = load_decoder_config(save_model(random_model(family, **FAMILIES[family]), tmp_path))
    assert {each.name for each in projections(config) if each.split is None} == {"model.embed_tokens"}


@settings(max_examples=200, deadline=None)
@given(size=some.integers(1, 20_000), ranks=some.integers(1, 8), head=some.sampled_from([1, 64]))
def test_ranks_divide_all_numbers_in_order_and_nearly_equally(size: int, ranks: int, head: int) -> None:
    parts = [Rank(number, ranks).take(size, head) for number in range(ranks)]
    if size >= ranks:
        assert [number for part in parts for number in part] == list(range(size * head))
        assert max(map(len, parts)) <= 1.5 * min(map(len, parts)) + head
    else:
        assert all(len(part) == head for part in parts)


class FakeRanks:
    """The other ranks' values are given."""

    def __init__(self, other: Sequence[float], rank: Rank = FIRST) -> None:
        self._other, self.rank = list(other), rank

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values), self._other]

    def sum_in_place(self, x: torch.Tensor) -> None:
        raise AssertionError

    def join_columns(self, part: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        raise AssertionError


def result(tokens: list[int], milliseconds: float) -> StepResult:
    packed = np.array(tokens, np.int32).tobytes()
    return StepResult(7, b"", packed, b"", milliseconds)


def test_different_tokens_end_the_step_with_an_error() -> None:
    with pytest.raises(RanksDifferError, match="rank 1 has sampled other tokens than rank 0 in step 7"):
        agree_on_result(FakeRanks([1.0, 3.0]), result([5], 3.0))
    agree_on_result(ONE_RANK, result([5], 3.0))


def test_masks_that_are_late_on_one_rank_are_late_on_all() -> None:
    masks = StepMasks(1, b"", b"")
    assert agree_on_masks(FakeRanks([1.0]), masks) is masks
    assert agree_on_masks(FakeRanks([0.0]), masks) is None
    assert agree_on_masks(FakeRanks([1.0]), None) is None
    assert agree_on_masks(ONE_RANK, masks) is masks


def test_ranks_need_gpus_of_one_kind() -> None:
    name = "NVIDIA H200"
    check_gpus(FakeRanks([zlib.crc32(name.encode())]), name)
    check_gpus(ONE_RANK, name)
    with pytest.raises(
        ConfigError, match="--tp 2: the ranks have different GPUs; that of rank 0 is NVIDIA H200"
    ):
        check_gpus(FakeRanks([7.0]), name)


def test_the_smallest_pool_counts() -> None:
    assert find_least(FakeRanks([90, 256]), (100, 200)) == [90, 200]
