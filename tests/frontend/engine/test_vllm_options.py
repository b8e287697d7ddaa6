"""The arguments of vLLM's `LLM`: which options of `Engine` they become, and which are ignored or refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import arbora
import pytest
from arbora.frontend.engine.vllm_options import read_options
from arbora.frontend.launch.errors import ServerError
from arbora.runtime.errors import ConfigError
from fake_hub import COMMIT, MODEL, fake_hub
from huggingface_hub import constants
from tiny_checkpoint import write_tiny_checkpoint

VLLM_DEFAULTS: dict[str, Any] = {
    "tokenizer": None,
    "tokenizer_mode": "auto",
    "skip_tokenizer_init": False,
    "trust_remote_code": False,
    "allowed_local_media_path": "",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "dtype": "auto",
    "quantization": None,
    "revision": None,
    "tokenizer_revision": None,
    "gpu_memory_utilization": 0.9,
    "swap_space": 4,
    "cpu_offload_gb": 0,
    "enforce_eager": False,
    "disable_custom_all_reduce": False,
    "hf_token": None,
    "hf_overrides": None,
    "mm_processor_kwargs": None,
    "compilation_config": None,
    "kv_cache_dtype": "auto",
    "max_model_len": None,
    "max_num_seqs": 8,
    "max_num_batched_tokens": None,
    "block_size": 16,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": None,
    "disable_log_stats": True,
    "limit_mm_per_prompt": {},
    "load_format": "auto",
    "download_dir": None,
    "generation_config": "auto",
    "override_generation_config": {},
    "enable_lora": False,
    "speculative_config": None,
    "task": "auto",
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_tiny_checkpoint(tmp_path / "tiny"))


def engine_options(model: str | None = None, **options: Any) -> dict[str, Any]:
    """The options of `Engine`, read without a warning and without those that are None."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = read_options(model, options).engine
    return {name: value for name, value in engine.items() if value is not None}


def test_a_script_that_writes_out_vllms_defaults_runs_without_a_warning(model: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm = arbora.LLM(model, device="cpu", kv_memory="4MiB", **VLLM_DEFAULTS)
    try:
        (output,) = llm.generate("Hello", arbora.SamplingParams(max_tokens=2, ignore_eos=True), False)
        assert len(output.outputs[0].token_ids) == 2
    finally:
        llm.engine.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_num_seqs": 3}, {"max_running": 3}),
        ({"kv_cache_dtype": "fp8_e4m3"}, {"kv_dtype": "fp8"}),
        ({"kv_cache_memory_bytes": 1 << 30}, {"kv_memory": 1 << 30}),
        ({"kv_offloading_size": 1.5}, {"host_cache": "1.5GiB"}),
        ({"dtype": "half"}, {"dtype": "float16"}),
        ({"dtype": "bfloat16"}, {"dtype": "bfloat16"}),
        ({"max_model_len": -1}, {}),
        ({"max_model_len": 512}, {"max_model_len": 512}),
        ({"device": "auto"}, {}),
        ({"enforce_eager": True}, {"debug": "eager"}),
        ({"enable_prefix_caching": False}, {"debug": "uncached"}),
        ({"kv_memory": "4MiB"}, {"kv_memory": "4MiB"}),
    ],
    ids=str,
)
def test_an_argument_with_a_counterpart_becomes_an_option(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert engine_options(**given) == expected


def test_one_warning_names_all_arguments_without_effect() -> None:
    ignored = {
        "gpu_memory_utilization": 0.5,
        "swap_space": 8,
        "trust_remote_code": True,
        "max_num_batched_tokens": 8192,
        "block_size": 32,
        "disable_log_stats": False,
        "limit_mm_per_prompt": {"image": 2},
        "tokenizer_mode": "slow",
        "download_dir": "/models",
    }
    with pytest.warns(UserWarning) as caught:
        assert read_options(None, {**ignored, "enforce_eager": True}).engine == {"debug": "eager"}
    (warning,) = caught
    for name, value in ignored.items():
        assert f"{name}={value!r}: " in str(warning.message)
    assert 'kv_memory="4GiB" gives it another size' in str(warning.message)


def test_the_warning_names_the_line_that_made_the_llm() -> None:
    with pytest.warns(UserWarning) as caught, pytest.raises(ConfigError):
        arbora.LLM("/no/such/model", trust_remote_code=True)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tensor_parallel_size": 2}, "one device runs the model"),
        ({"pipeline_parallel_size": 4}, "one device runs the model"),
        ({"cpu_offload_gb": 10}, "all weights are on the device"),
        ({"tokenizer": "other/tokenizer"}, "the tokenizer is that of the model"),
        ({"task": "embed"}, 'runner="pooling" has a model make embeddings'),
        ({"load_format": "dummy"}, "weights are read from safetensors or GGUF files"),
        ({"hf_overrides": {"a": 1}}, "edit the config.json"),
        ({"override_generation_config": {"max_tokens": 5}}, "every SamplingParams has max_tokens"),
        ({"generation_config": "/elsewhere"}, "edit the generation_config.json"),
        ({"quantization": "bitsandbytes"}, "the model is not quantized"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_with_the_reason(given: dict[str, Any], reason: str) -> None:
    ((name, value),) = given.items()
    with pytest.raises(TypeError) as caught:
        arbora.LLM(None, **given)
    assert str(caught.value).startswith(f"LLM has no argument {name}={value!r}: {reason}")


def test_an_error_does_not_show_a_token() -> None:
    with pytest.raises(TypeError, match="LLM has no argument hf_token=…: set HF_TOKEN"):
        arbora.LLM(None, hf_token="secret")


def test_the_tokenizer_of_the_model_itself_may_be_named(model: str) -> None:
    assert engine_options(model, tokenizer=model) == {}


def test_quantization_quantizes_unless_the_files_are_quantized_so(model: str) -> None:
    assert engine_options(model, quantization="fp8") == {"quantize": "fp8"}
    config = Path(model) / "config.json"
    fields = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "awq"}}
    config.write_text(json.dumps(fields))
    assert engine_options(model, quantization="awq_marlin") == {}
    with pytest.raises(TypeError, match="quantization='gptq': the model is quantized with awq"):
        engine_options(model, quantization="gptq")


def test_a_revision_is_downloaded_into_the_given_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    files = {each.name: each.read_bytes() for each in Path(model).iterdir()}
    with fake_hub(files) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        found = read_options(MODEL, {"revision": COMMIT, "download_dir": str(tmp_path / "mine")}).model
        assert found is not None and Path(found).is_relative_to(tmp_path / "mine")
        weights = "model.safetensors"
        assert (Path(found) / weights).read_bytes() == files[weights]
        with pytest.raises(ConfigError, match="--revision none: the model has no such branch"):
            read_options(MODEL, {"revision": "none"})


def test_the_generation_config_of_vllm_or_of_the_script_gives_the_defaults_of_sampling(model: str) -> None:
    (Path(model) / "generation_config.json").write_text('{"temperature": 2.0, "do_sample": true}')
    plain, cold, hot = (arbora.SamplingParams(seed=0, max_tokens=8, ignore_eos=True) for _ in range(3))
    cold.temperature, hot.temperature = 0, 1

    def texts(*params: arbora.SamplingParams, **options: Any) -> list[str]:
        llm = arbora.LLM(model, device="cpu", kv_memory="4MiB", **options)
        try:
            return [llm.generate("Hello", each, use_tqdm=False)[0].outputs[0].text for each in params]
        finally:
            llm.engine.close()

    of_file, at_zero, at_one = texts(plain, cold, hot)
    assert texts(plain, override_generation_config={"temperature": 0}) == [at_zero]
    assert texts(plain, generation_config="vllm") == [at_one]
    assert of_file != at_one
    with pytest.raises(TypeError, match="temprature"):
        read_options(model, {"override_generation_config": {"temprature": 1}})


def test_a_misspelt_argument_is_refused() -> None:
    with pytest.raises(TypeError, match=r"unknown option 'tensor_paralel_size'"):
        arbora.LLM(None, tensor_paralel_size=1)


def test_wrong_values_are_refused_by_the_engine(model: str) -> None:
    with pytest.raises((ConfigError, ServerError), match="dtype"):
        arbora.LLM(model, kv_cache_dtype="fp8_e5m2")
