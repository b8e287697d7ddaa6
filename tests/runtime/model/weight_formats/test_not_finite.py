"""Checkpoints with weights or scales that are NaN or infinite are refused with the tensor's name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from arbora.frontend.model_files.gguf.config import model_config
from arbora.runtime.gguf_file import GgufFile
from arbora.runtime.model.weight_formats.gguf_blocks import BLOCK_TYPES
from checkpoints import change_tensor, random_model, save_model
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf_models import one_type, write_gguf
from quantized_checkpoints import CASES, write_quantized
from safetensors.torch import load_file
from step_driver import StepDriver, refusal

O_PROJ = "model.layers.0.self_attn.o_proj."
SCALES = {
    "gptq": "scales",
    "gptq with uneven groups": "scales",
    "awq": "scales",
    "compressed-tensors 4 bits": "weight_scale",
    "compressed-tensors 4 bits with zero points": "weight_scale",
    "compressed-tensors int8": "weight_scale",
    "fp8 per tensor": "weight_scale",
    "compressed-tensors fp8 per channel": "weight_scale",
    "fp8 in blocks": "weight_scale_inv",
}
FACTORS = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""places of the float16 factors in a block; in blocks of other types: 0"""
FLOAT16 = {"infinity": b"\x00\x7c", "NaN": b"\x00\x7e"}


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("case", SCALES)
def test_a_scale_is_named_with_its_file(tmp_path: Path, case: str, value: float) -> None:
    write_quantized(CASES[case], tmp_path)
    path, name = tmp_path / "model.safetensors", O_PROJ + SCALES[case]
    scales = load_file(path)[name]
    scales.view(-1)[-1] = value
    change_tensor(tmp_path, name, scales)
    message = refusal(tmp_path)
    assert message.startswith(f"{path}: tensor {name} has scales that are NaN or infinite. ")
    assert "download the file again, or quantize the model again" in message


def test_the_scale_byte_of_mxfp4_that_stands_for_nan_is_refused(tmp_path: Path) -> None:
    write_quantized(CASES["compressed-tensors mxfp4"], tmp_path)
    path, name = tmp_path / "model.safetensors", O_PROJ + "weight_scale"
    scales = load_file(path)[name]
    change_tensor(tmp_path, name, scales.clamp(max=254))
    StepDriver.load(tmp_path)
    scales[-1, -1] = 255
    change_tensor(tmp_path, name, scales)
    assert refusal(tmp_path).startswith(f"{path}: tensor {name} has scales that are NaN or infinite. ")


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        (kind, place, value)
        for kind in BLOCK_TYPES
        for place in FACTORS.get(kind, (0,))
        for value in (["NaN"] if kind == "MXFP4" else FLOAT16)
    ],
)
def test_a_factor_in_a_block_of_gguf_is_refused(tmp_path: Path, kind: str, place: int, value: str) -> None:
    path, name = tmp_path / "model.gguf", "blk.1.ffn_down.weight"
    write_gguf(path, "qwen3", one_type(Type[kind]))
    file = GgufFile(path)
    (tmp_path / "config.json").write_text(json.dumps(model_config(file)))
    last_block = file.tensors[name].begin + file.tensors[name].bytes - GGML_QUANT_SIZES[Type[kind]][1]
    with path.open("r+b") as raw:
        raw.seek(last_block + place)
        raw.write(b"\xff" if kind == "MXFP4" else FLOAT16[value])
    assert refusal(tmp_path).startswith(f"{path}: tensor {name} has scales that are NaN or infinite. ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.layers.1.mlp.up_proj.weight", torch.nan),
        ("model.layers.1.mlp.up_proj.weight", torch.inf),
        ("lm_head.weight", torch.nan),
        ("model.layers.2.self_attn.k_proj.bias", torch.nan),
        ("model.norm.weight", -torch.inf),
    ],
)
def test_a_weight_in_16_bits_is_named_with_its_file(tmp_path: Path, name: str, value: float) -> None:
    save_model(random_model("qwen2").to(torch.bfloat16), tmp_path)
    path = tmp_path / "model.safetensors"
    weight = load_file(path)[name]
    weight.view(-1)[77 % weight.numel()] = value
    change_tensor(tmp_path, name, weight)
    expected = f"{path}: tensor {name} has values that are NaN or infinite. Copy or download the file again"
    assert refusal(tmp_path, dtype="bfloat16").startswith(expected)


def test_a_weight_of_gguf_in_16_bits_is_named_as_in_the_file(tmp_path: Path) -> None:
    path, name = tmp_path / "model.gguf", "blk.1.ffn_down.weight"
    write_gguf(path, "llama", one_type(Type.F16))
    file = GgufFile(path)
    (tmp_path / "config.json").write_text(json.dumps(model_config(file)))
    with path.open("r+b") as raw:
        raw.seek(file.tensors[name].begin)
        raw.write(np.float16(np.nan).tobytes())
    assert refusal(tmp_path).startswith(f"{path}: tensor {name} has values that are NaN or infinite. ")


def test_a_model_whose_sums_overflow_starts_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(random_model("qwen2").to(torch.float16), tmp_path)
    change_tensor(tmp_path, "model.norm.weight", torch.full((64,), 65504.0, dtype=torch.float16))
    StepDriver.load(tmp_path, dtype="float32")
    assert "logits" not in caplog.text
    StepDriver.load(tmp_path, dtype="float16")
    assert "logits of the test step are NaN or infinite, though all weights are finite" in caplog.text
    assert "too large for float16. If requests fail, try --dtype float32" in caplog.text
