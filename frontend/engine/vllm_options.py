"""Reads the arguments of vLLM's `LLM` as options of `Engine`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from ...runtime.checkpoint_json import config_text
from ..model_files.hub import download
from ..model_files.model_source import check_before_download, find_config, is_on_hub
from .options import EngineOptions
from .sampling import Sampling, check_names


class LlmOptions(NamedTuple):
    model: str | None
    engine: EngineOptions
    sampling: Sampling
    """Defaults of the fields that a `SamplingParams` leaves out."""


class _Argument(NamedTuple):
    """An argument without a counterpart. Its `plain` values ask for what `Engine` does anyway; another one
    gets a warning, or is refused, with the `reason`."""

    plain: tuple[object, ...]
    reason: str
    is_refused: bool = False


_RENAMED = {
    "max_num_seqs": "max_running",
    "kv_cache_dtype": "kv_dtype",
    "kv_cache_memory_bytes": "kv_memory",
}
_VALUES: Mapping[str, Mapping[object, object]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "kv_cache_dtype": {"fp8_e4m3": "fp8"},
    "max_model_len": {"auto": None, -1: None},
    "device": {"auto": None},
    "model_impl": {"vllm": "native"},
}
"""Names of values in Arbora, by vLLM's argument and value."""

_ONE_DEVICE = "one device runs the model; leave it out"
_CONFIG = "edit the config.json of the model's directory instead"
_TEXT = "prompts are text alone"
_GENERATES = 'runner="pooling" has a model make embeddings, as its checkpoint says'
_MIN_ADAPTERS = 8
"""adapters that can be loaded at least: vLLM's `max_loras` bounds only those of a step"""
_KERNELS = "Arbora chooses its kernels itself"
_GRAMMARS = "constraints are compiled by Arbora itself"
_CHUNKS = "prompts are computed in chunks; step_ms=60 bounds the time of a step while text is streamed"
_TOKENIZER = "the tokenizer is that of the model; copy another one's files into the model's directory"

_ARGUMENTS: Mapping[str, _Argument] = {
    "tensor_parallel_size": _Argument((1, None), _ONE_DEVICE, True),
    "pipeline_parallel_size": _Argument((1, None), _ONE_DEVICE, True),
    "data_parallel_size": _Argument((1, None), _ONE_DEVICE, True),
    "decode_context_parallel_size": _Argument((1, None), _ONE_DEVICE, True),
    "enable_expert_parallel": _Argument((False, None), "one device has all experts"),
    "distributed_executor_backend": _Argument(
        (None, "mp", "uni"), "one process of this machine has the model"
    ),
    "disable_custom_all_reduce": _Argument((False, True), _ONE_DEVICE),
    "max_parallel_loading_workers": _Argument((None,), _ONE_DEVICE),
    "gpu_memory_utilization": _Argument(
        (0.9, 0.92, None),
        "the KV cache takes most of what is free, on a CPU at most 4GiB; "
        'kv_memory="4GiB" gives it another size',
    ),
    "num_gpu_blocks_override": _Argument((None,), 'kv_memory="4GiB" is the memory of the KV cache'),
    "block_size": _Argument((16, None), "a page of the KV cache has 16 tokens"),
    "swap_space": _Argument(
        (0, 4, None),
        "a request that lacks memory is computed again later; "
        'host_cache="8GiB" keeps evicted pages in host memory',
    ),
    "cpu_offload_gb": _Argument(
        (0, None), 'all weights are on the device; quantize="int8" makes them smaller', True
    ),
    "enable_sleep_mode": _Argument((False, None), "llm.engine.close() frees the memory", True),
    "max_num_batched_tokens": _Argument((None,), _CHUNKS),
    "enable_chunked_prefill": _Argument((True, None), _CHUNKS),
    "max_num_partial_prefills": _Argument((1, None), _CHUNKS),
    "scheduling_policy": _Argument(("fcfs", "priority", None), "a priority counts where a request has one"),
    "async_scheduling": _Argument((True, False, None), "steps are always planned ahead"),
    "prefix_caching_hash_algo": _Argument((None, "builtin", "sha256"), "prefixes are found in a tree"),
    "disable_log_stats": _Argument((True, None), "an Engine logs no statistics"),
    "disable_log_requests": _Argument((True, None), "an Engine logs no requests"),
    "served_model_name": _Argument((None,), "results have no model name"),
    "compilation_config": _Argument((None,), _KERNELS),
    "attention_backend": _Argument((None,), _KERNELS),
    "attention_config": _Argument((None,), _KERNELS),
    "max_seq_len_to_capture": _Argument((8192, None), _KERNELS),
    "max_context_len_to_capture": _Argument((None,), _KERNELS),
    "disable_cascade_attn": _Argument((False, None), _KERNELS),
    "speculative_config": _Argument((None,), "speculate='auto' drafts tokens; the text is the same"),
    "trust_remote_code": _Argument((False, None), "no code of a model is run"),
    "code_revision": _Argument((None,), "no code of a model is run"),
    "tokenizer": _Argument((None,), _TOKENIZER, True),
    "tokenizer_revision": _Argument((None,), _TOKENIZER, True),
    "tokenizer_mode": _Argument(("auto", "hf", "fast", None), "the tokenizer is read in the model's form"),
    "skip_tokenizer_init": _Argument((False, None), "results always have their text"),
    "load_format": _Argument(
        ("auto", "hf", "safetensors", "gguf", "fastsafetensors", "runai_streamer", None),
        "weights are read from safetensors or GGUF files",
        True,
    ),
    "model_loader_extra_config": _Argument((None, {}), "weights are read in one way"),
    "ignore_patterns": _Argument((None, []), "only the files that are needed are downloaded"),
    "config_format": _Argument(("auto", "hf", None), _CONFIG, True),
    "hf_config_path": _Argument((None,), _CONFIG, True),
    "hf_overrides": _Argument((None, {}), _CONFIG, True),
    "rope_scaling": _Argument((None, {}), _CONFIG, True),
    "rope_theta": _Argument((None,), _CONFIG, True),
    "hf_token": _Argument(
        (None, False, True), "set HF_TOKEN in the environment, or log in with `hf auth login`", True
    ),
    "task": _Argument(("auto", "generate", None), _GENERATES, True),
    "convert": _Argument(("auto", "none", None), _GENERATES, True),
    "pooler_config": _Argument((None,), _GENERATES, True),
    "logits_processors": _Argument((None, []), "use logit_bias or a constraint of SamplingParams", True),
    "fully_sharded_loras": _Argument((False, None), _ONE_DEVICE),
    "lora_dtype": _Argument(("auto", None), "adapters have the dtype of activations"),
    "limit_mm_per_prompt": _Argument((None, {}), _TEXT),
    "mm_processor_kwargs": _Argument((None, {}), _TEXT),
    "mm_processor_cache_gb": _Argument((0, 4, None), _TEXT),
    "disable_mm_preprocessor_cache": _Argument((False, True, None), _TEXT),
    "allowed_local_media_path": _Argument(("", None), _TEXT),
    "guided_decoding_backend": _Argument(("auto", None), _GRAMMARS),
    "structured_outputs_config": _Argument((None, {}), _GRAMMARS),
    "max_logprobs": _Argument((20, None), "at most 20 alternatives are given for each token"),
}
"""The arguments of vLLM's `LLM` that `Engine` lacks. Their plain values include vLLM's defaults."""

_NEUTRAL: Sampling = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""The values that vLLM uses if it ignores the model's recommendations."""


def read_options(model: str | None, options: Mapping[str, Any]) -> LlmOptions:
    """The options of `Engine`. Warns once of all arguments that have no effect. Raises TypeError for one that
    asks for what can't be done, and ConfigError for a model that can't be found."""
    given = dict(options)
    kept: dict[str, object] = {}
    ignored: list[str] = []
    sampling = _default_sampling(
        given.pop("generation_config", None), given.pop("override_generation_config", None)
    )
    source = {name: given.pop(name, None) for name in ("revision", "download_dir")}
    if any(source.values()):
        if model is not None and is_on_hub(model):
            check_before_download(model, source["revision"])
            model = str(download(model, source["revision"], cache=source["download_dir"]))
        else:
            ignored += [
                f"{name}={value!r}: the model is no hub id" for name, value in source.items() if value
            ]
    if (method := given.pop("quantization", None)) is not None:
        kept |= _quantize(model, method)
    adapters = [given.pop(name, None) for name in ("max_loras", "max_cpu_loras")]
    max_rank = given.pop("max_lora_rank", None)
    if given.pop("enable_lora", None):
        kept |= {
            "max_loras": max(_MIN_ADAPTERS, *(each or 0 for each in adapters)),
            "max_lora_rank": max_rank or 16,
        }
    debug = ["uncached"] if given.pop("enable_prefix_caching", None) is False else []
    debug += ["eager"] if given.pop("enforce_eager", None) else []
    if debug:
        kept["debug"] = ",".join(debug)
    if (gibibytes := given.pop("kv_offloading_size", None)) is not None:
        kept["host_cache"] = f"{gibibytes}GiB"
    for name, value in given.items():
        argument = _ARGUMENTS.get(name)
        if argument is None:
            kept[_RENAMED.get(name, name)] = _known_value(name, value)
        elif value in argument.plain or (name == "tokenizer" and value == model):
            continue
        elif argument.is_refused:
            raise _refusal(name, value, argument.reason)
        else:
            ignored.append(f"{name}={value!r}: {argument.reason}")
    if ignored:
        warnings.warn(f"LLM ignores {'; '.join(ignored)}.", stacklevel=3)
    return LlmOptions(model, cast(EngineOptions, kept), sampling)


def _known_value(name: str, value: object) -> object:
    names = _VALUES.get(name, {})
    return names.get(value, value) if isinstance(value, str | int) else value


def _quantize(model: str | None, method: str) -> dict[str, object]:
    """The option `quantize`; no option if the model's files are already quantized with `method`."""
    directory = find_config(model)
    settings = json.loads(config_text(directory)).get("quantization_config") or {}
    stored = "gguf" if any(directory.glob("*.gguf")) else settings.get("quant_method")
    if stored is not None and method.startswith(stored):  # awq_marlin is a kernel for awq
        return {}
    if stored is None and method in ("int8", "int4", "fp8"):
        return {"quantize": method}
    found = f"quantized with {stored}" if stored else 'not quantized, and "int8", "int4" or "fp8" can do that'
    raise _refusal("quantization", method, f"the model is {found}")


def _default_sampling(source: object, changed: object) -> Sampling:
    """Sampling defaults that the arguments generation_config and override_generation_config set."""
    if source not in ("auto", "vllm", None):
        reason = "edit the generation_config.json of the model's directory instead"
        raise _refusal("generation_config", source, reason)
    defaults: Any = dict(_NEUTRAL) if source == "vllm" else {}
    if changed is not None:
        if not isinstance(changed, Mapping):
            raise _refusal("override_generation_config", changed, "it must be a dict of sampling fields")
        if "max_tokens" in changed:
            reason = "every SamplingParams has max_tokens, by default 16; set it there"
            raise _refusal("override_generation_config", changed, reason)
        check_names(changed, Sampling)
        defaults |= changed
    return cast(Sampling, defaults)


def _refusal(name: str, value: object, reason: str) -> TypeError:
    shown = "…" if name == "hf_token" else repr(value)
    return TypeError(f"LLM has no argument {name}={shown}: {reason}")
