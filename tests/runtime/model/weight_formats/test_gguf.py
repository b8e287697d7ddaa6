"""GGUF files against transformers with the weights that the library `gguf` reads from them, in float32."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from arbora.frontend.model_files.gguf.config import model_config
from arbora.runtime.errors import ConfigError
from arbora.runtime.gguf_file import GgufFile
from arbora.runtime.model.weight_formats.expand import expand_into
from arbora.runtime.model.weight_formats.gguf_blocks import BLOCK_TYPES, BlockFormat
from arbora.runtime.model.weight_formats.head_order import HeadOrder
from checkpoints import VOCAB_SIZE, edit_config
from gguf import GGMLQuantizationType as Type
from gguf_models import TypeOf, add_tensors, encoded, finish_file, one_type, q4_k_m, start_file, write_gguf
from numpy.typing import NDArray
from step_driver import StepDriver, refusal
from transformers import PreTrainedModel
from transformers_oracle import EVERY_LOGPROB, assert_close, expected_logprobs, random_tokens

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 1e6,
}
CASES: dict[str, tuple[str, TypeOf, dict[str, Any]]] = {
    "llama in 16 bits": ("llama", one_type(Type.F16), {}),
    "llama in 32 bits with every bias": (
        "llama",
        one_type(Type.F32),
        {"attention_bias": True, "mlp_bias": True},
    ),
    "llama Q4_K_M": ("llama", q4_k_m, {}),
    "mistral Q8_0": ("mistral", one_type(Type.Q8_0), {}),
    "qwen2 Q4_0": ("qwen2", one_type(Type.Q4_0), {}),
    "qwen2 tied Q5_K": ("qwen2", one_type(Type.Q5_K), {"tie_word_embeddings": True}),
    "qwen3 tied Q6_K": ("qwen3", one_type(Type.Q6_K), {"tie_word_embeddings": True}),
    "qwen3 bfloat16": ("qwen3", one_type(Type.BF16), {}),
}


def write_model(path: Path, family: str, type_of: TypeOf, **fields: Any) -> PreTrainedModel:
    """Writes the file, and the config.json that is made from it."""
    model = write_gguf(path / "model.gguf", family, type_of, **fields)
    (path / "config.json").write_text(json.dumps(model_config(GgufFile(path / "model.gguf"))))
    return model


def assert_same_logprobs(model: PreTrainedModel, directory: Path) -> None:
    tokens = random_tokens(60)
    driver = StepDriver.load(directory)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, 37), expected_logprobs(model, tokens)[:-1])


@pytest.mark.usefixtures("expanded")
@pytest.mark.parametrize("case", CASES)
def test_a_prompt_has_the_same_logprobs(tmp_path: Path, case: str) -> None:
    family, type_of, fields = CASES[case]
    assert_same_logprobs(write_model(tmp_path, family, type_of, **fields), tmp_path)


def test_positions_stretched_by_yarn_are_the_same(tmp_path: Path) -> None:
    fields = {"rope_parameters": YARN, "max_position_embeddings": 64}
    model = write_gguf(tmp_path / "plain.gguf", "qwen2", one_type(Type.F32), **fields)
    writer = start_file(tmp_path / "model.gguf", model)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)
    add_tensors(writer, model, one_type(Type.F32))
    finish_file(writer)
    (tmp_path / "plain.gguf").unlink()
    (tmp_path / "config.json").write_text(json.dumps(model_config(GgufFile(tmp_path / "model.gguf"))))
    assert_same_logprobs(model, tmp_path)


def llama3_file(path: Path, factors: list[float]) -> GgufFile:
    fields = {"head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    model = write_gguf(path / "plain.gguf", "llama", one_type(Type.F32), **fields)
    writer = start_file(path / "model.gguf", model)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    add_tensors(writer, model, one_type(Type.F32))
    finish_file(writer)
    return GgufFile(path / "model.gguf")


def test_the_factor_of_llama_3_is_found_from_the_stored_frequencies(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 5e5,
    }
    oracle = LlamaConfig(hidden_size=256, num_attention_heads=4, head_dim=64, rope_parameters=rope)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](oracle, torch.device("cpu"))
    plain = 1 / 5e5 ** (torch.arange(0, 64, 2).float() / 64)
    factors = (plain / frequencies).tolist()
    assert model_config(llama3_file(tmp_path, factors))["rope_parameters"] == rope
    with pytest.raises(ConfigError, match=r"rope_freqs.weight is not supported: value 0 is 2"):
        model_config(llama3_file(tmp_path, [2.0, *factors[1:]]))


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_every_block_type_is_decoded_as_the_library_decodes_it(kind: str) -> None:
    values = np.random.default_rng(0).normal(0, 0.1, (130, 512)).astype(np.float32)
    raw = encoded(values, Type[kind])
    target = torch.empty(values.shape)
    expand_into(target, BlockFormat(kind).read({"weight": torch.from_numpy(raw)}, *values.shape))
    expected = torch.from_numpy(gguf.dequantize(raw, Type[kind]).copy())
    assert expected.abs().max() > 0.01
    assert torch.equal(target, expected)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_columns_of_every_block_type_are_restored(kind: str) -> None:
    raw = encoded(np.random.default_rng(0).normal(0, 0.1, (130, 768)).astype(np.float32), Type[kind])
    target = torch.empty(130, 768)
    columns = HeadOrder(1, inner=2, size=128)
    expand_into(target, BlockFormat(kind, columns).read({"weight": torch.from_numpy(raw)}, 130, 768))
    stored = torch.from_numpy(gguf.dequantize(raw, Type[kind]).copy()).split(128, dim=1)
    assert torch.equal(target, torch.cat([stored[head] for head in (0, 2, 4, 1, 3, 5)], dim=1))


def test_every_exponent_of_mxfp4_is_decoded_as_the_library_decodes_it() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (255, 17), np.uint8)
    raw[:, 0] = np.arange(255)  # 255 stands for NaN
    target = torch.empty(255, 32)
    expand_into(target, BlockFormat("MXFP4").read({"weight": torch.from_numpy(raw)}, 255, 32))
    assert torch.equal(target, torch.from_numpy(gguf.dequantize(raw, Type.MXFP4).copy()))


def test_the_header_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = write_gguf(tmp_path / "plain.gguf", "llama", one_type(Type.F32))
    writer = start_file(path, model)
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("words", ["", "ü", "three"])
    writer.add_bool("yes", True)
    writer.add_float64("wide", 0.1)
    writer.add_int64("long", -(1 << 40))
    writer.add_custom_alignment(64)
    add_tensors(writer, model, q4_k_m)
    finish_file(writer)
    ours, library = GgufFile(path), gguf.GGUFReader(path)
    for key, field in library.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key
    assert ours.tensors.keys() == {tensor.name for tensor in library.tensors}
    for tensor in library.tensors:
        place = ours.tensors[tensor.name]
        assert (place.type, place.begin) == (tensor.tensor_type.name, tensor.data_offset)
        assert place.shape == tuple(reversed(tensor.shape.tolist()))


def test_a_truncated_file_names_the_key_or_tensor_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", one_type(Type.Q8_0))
    whole = path.read_bytes()

    def refusal(end: int) -> str:
        path.write_bytes(whole[:end])
        with pytest.raises(ConfigError) as caught:
            GgufFile(path)
        return str(caught.value)

    assert "tensor model.norm" not in refusal(len(whole) - 33)
    assert "but tensor " in refusal(len(whole) - 33) and "Download it again" in refusal(len(whole) - 33)
    assert "within the value of llama.context_length" in refusal(whole.index(b"llama.context_length") + 25)
    assert "the name of tensor 3 of" in refusal(whole.index(b"blk.0.attn_k.weight") + 3)
    assert "description of tensor token_embd.weight" in refusal(whole.index(b"token_embd.weight") + 20)
    assert "within its first bytes" in refusal(10)
    assert "is empty" in refusal(0)
    path.write_bytes(b"GGML" + whole[4:])
    with pytest.raises(ConfigError, match="not a GGUF file"):
        GgufFile(path)
    path.write_bytes(whole[:4] + b"\0\0\0\3" + whole[8:])
    with pytest.raises(ConfigError, match="version 50331648 is not supported"):
        GgufFile(path)


def test_an_unsupported_type_is_named_with_what_to_use(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    blocks = np.zeros((4, gguf.GGML_QUANT_SIZES[Type.Q2_K][1]), np.uint8)
    writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=Type.Q2_K)
    finish_file(writer)
    with pytest.raises(ConfigError, match=r"blk.0.attn_q.weight has the type Q2_K.*Q4_K_M"):
        GgufFile(tmp_path / "model.gguf")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "plain.gguf", "qwen3", one_type(Type.Q8_0))
    writer = start_file(tmp_path / "model.gguf", model)
    model.model.layers[1].mlp.up_proj = torch.nn.Identity()
    add_tensors(writer, model, one_type(Type.Q8_0))
    finish_file(writer)
    (tmp_path / "plain.gguf").unlink()
    (tmp_path / "config.json").write_text(json.dumps(model_config(GgufFile(tmp_path / "model.gguf"))))
    assert (
        f"{tmp_path}/model.gguf: tensor blk.1.ffn_up.weight [512, 256] of F32, F16, BF16 is missing."
        in refusal(tmp_path)
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"intermediate_size": 768},
            "blk.0.ffn_gate.weight: expected [768, 256] of Q8_0, got [512, 256] of Q8_0.",
        ),
        ({"vocab_size": 299}, "token_embd.weight: expected [299, 256] of Q8_0, got [300, 256] of Q8_0."),
        ({"num_hidden_layers": 3}, "blk.2.attn_norm.weight [256] of F32, F16, BF16 is missing."),
        ({"num_hidden_layers": 1}, "blk.1.attn_norm.weight is not part of this architecture."),
    ],
)
def test_a_wrong_tensor_is_named_as_in_the_file(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    write_model(tmp_path, "qwen3", one_type(Type.Q8_0))
    edit_config(tmp_path, **fields)
    assert f"{tmp_path}/model.gguf: tensor {words}" in refusal(tmp_path)


def test_an_error_names_the_original_of_a_linked_file(tmp_path: Path) -> None:
    write_model(tmp_path, "qwen3", one_type(Type.Q8_0))
    edit_config(tmp_path, num_hidden_layers=1)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "model.gguf").symlink_to(tmp_path / "model.gguf")
    (tmp_path / "config.json").rename(linked / "config.json")
    assert refusal(linked).startswith(f"{tmp_path}/model.gguf: tensor ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"general.architecture": "mamba"}, ["general.architecture 'mamba'", "llama, qwen2, qwen3"]),
        ({"llama.expert_count": 8}, ["llama.expert_used_count", "int", "None"]),
        ({"general.architecture": "phi3", "phi3.expert_count": 8}, ["'phi3' with experts"]),
        ({"llama.block_count": "two"}, ["llama.block_count", "int", "two"]),
        ({"llama.rope.scaling.type": "longrope"}, ["rope.scaling.type longrope", "yarn"]),
        ({"llama.attention.head_count": 0}, ["llama.attention.head_count", "above 0", "found 0"]),
        (
            {"llama.attention.head_count": 4096, "llama.attention.key_length": 0},
            ["llama.attention.head_count", "at most the", "4096"],
        ),
        ({"llama.block_count": 2**62}, ["llama.block_count", "2147483647"]),
        ({"llama.block_count": 2**30}, ["llama.block_count", "at most 10000"]),
        ({"llama.context_length": -5}, ["llama.context_length", "above 0", "found -5"]),
        ({"llama.rope.freq_base": math.nan}, ["llama.rope.freq_base", "above 0", "found nan"]),
        ({"llama.rope.dimension_count": 4096}, ["llama.rope.dimension_count", "at most the", "4096"]),
    ],
)
def test_metadata_that_cannot_be_served_is_refused(
    tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    write_gguf(tmp_path / "model.gguf", "llama", one_type(Type.F32))
    file = GgufFile(tmp_path / "model.gguf")
    file.metadata |= change
    with pytest.raises(ConfigError) as caught:
        model_config(file)
    assert all(word in str(caught.value) for word in ["model.gguf", *words]), caught.value


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("token_embd.weight", np.zeros(64, np.float32), "the shape [64]; expected [tokens, dim]"),
        ("rope_freqs.weight", np.zeros(4, np.float32), "should have positive values"),
        ("rope_freqs.weight", np.full(4, np.nan, np.float32), "should have positive values"),
    ],
)
def test_tensors_that_the_metadata_require_are_checked(
    tmp_path: Path, name: str, array: NDArray[np.float32], words: str
) -> None:
    model = write_gguf(tmp_path / "plain.gguf", "llama", one_type(Type.F32))
    writer = start_file(tmp_path / "model.gguf", model)
    writer.add_tensor(name, array)
    if name != "token_embd.weight":
        writer.add_tensor("token_embd.weight", np.zeros((8, 8), np.float32))
    finish_file(writer)
    with pytest.raises(ConfigError, match=re.escape(f"model.gguf: tensor {name} ")) as caught:
        model_config(GgufFile(tmp_path / "model.gguf"))
    assert words in str(caught.value)


def test_lists_of_lists_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_array("some.key", [[1, 2], [3]])
    finish_file(writer)
    with pytest.raises(ConfigError, match=r"the value of some\.key is a list of the kind 9"):
        GgufFile(tmp_path / "model.gguf")


def test_heads_that_do_not_fit_the_rows_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "llama", one_type(Type.F32))
    config = json.loads((tmp_path / "config.json").read_text())
    rewritten = (tmp_path / "model.gguf").read_bytes()
    for heads, words in (
        (0, "head_count should be a positive number, found 0"),
        (7, "256 rows or columns.*multiple of 14"),
    ):
        key = b"llama.attention.head_count" + (4).to_bytes(4, "little")
        at = rewritten.index(key) + len(key)
        (tmp_path / "model.gguf").write_bytes(
            rewritten[:at] + heads.to_bytes(4, "little") + rewritten[at + 4 :]
        )
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=words):
            StepDriver.load(tmp_path)


def test_the_vocabulary_is_as_large_as_the_embedding(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "qwen2", one_type(Type.F16))
    config = model_config(GgufFile(tmp_path / "model.gguf"))
    assert (config["vocab_size"], config["dtype"]) == (VOCAB_SIZE, "float16")
