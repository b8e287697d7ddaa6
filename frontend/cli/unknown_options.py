"""Suggests the options that a user may have meant by unknown arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..core.text.close_names import close_name
from ..launch.options import REPLACED

_RANKS = "use --tp N"
_REPLICAS = "use --replicas N"
_ONE_STAGE = "leave it out: the layers of a model are not split over devices; --tp N splits each layer"
_KV_MEMORY = "use --kv-memory SIZE, such as 4GiB"
_MODEL = "give MODEL as the argument: `serve MODEL`"
_FROM_MODEL = "leave it out: the model's files say it"
_ALWAYS = "leave it out: it is always on"
_RECOMMENDED = (
    "the model's generation_config.json counts for sampling fields that a request leaves out: edit it, or "
    "send the fields, such as temperature 1"
)

ELSEWHERE = {
    "tensor-parallel-size": _RANKS,
    "tp-size": _RANKS,
    "pipeline-parallel-size": _ONE_STAGE,
    "pp": _ONE_STAGE,
    "pp-size": _ONE_STAGE,
    "data-parallel-size": _REPLICAS,
    "dp": _REPLICAS,
    "dp-size": _REPLICAS,
    "gpu-memory-utilization": _KV_MEMORY,
    "mem-fraction-static": _KV_MEMORY,
    "kv-cache-memory-bytes": _KV_MEMORY,
    "max-num-seqs": "use --max-running",
    "max-running-requests": "use --max-running",
    "max-queued-requests": "use --max-waiting",
    "max-num-batched-tokens": "use --step-ms: prompts are always computed in chunks",
    "chunked-prefill-size": "use --step-ms: prompts are always computed in chunks",
    "enable-chunked-prefill": _ALWAYS,
    "enable-prefix-caching": _ALWAYS,
    "enable-metrics": _ALWAYS,
    "enable-auto-tool-choice": _ALWAYS,
    "no-enable-prefix-caching": "use --debug uncached",
    "disable-radix-cache": "use --debug uncached",
    "model": _MODEL,
    "model-path": _MODEL,
    "tokenizer": _FROM_MODEL,
    "tokenizer-path": _FROM_MODEL,
    "tool-call-parser": _FROM_MODEL,
    "reasoning-parser": _FROM_MODEL,
    "trust-remote-code": "leave it out: no code of a model is run",
    "quantization": "leave it out: the model's config.json says how its weights are quantized",
    "context-length": "use --max-model-len",
    "ctx-size": "use --max-model-len",
    "c": "use --max-model-len",
    "num-ctx": "use --max-model-len",
    "m": _MODEL,
    "hf-repo": _MODEL,
    "hf": _MODEL,
    "n-gpu-layers": "leave it out: the whole model is on one device, which --device names",
    "ngl": "leave it out: the whole model is on one device, which --device names",
    "parallel": "use --max-running",
    "np": "use --max-running",
    "threads": "set OMP_NUM_THREADS in the environment",
    "t": "set OMP_NUM_THREADS in the environment",
    "max-seq-len": "use --max-model-len",
    "page-size": "leave it out: a page has 16 tokens",
    "block-size": "leave it out: a page has 16 tokens",
    "swap-space": "use --host-cache",
    "kv-offloading-size": "use --host-cache",
    "hicache-size": "use --host-cache",
    "kv-events-config": "use --kv-events tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5657",
    "disable-cuda-graph": "use --debug eager",
    "enable-deterministic-inference": "use --deterministic",
    "enable-log-requests": "leave it out: requests are logged unless --log-requests is off",
    "disable-log-requests": "use --log-requests off",
    "uvicorn-log-level": "use --log-level",
    "allowed-origins": "use --allowed-origin ORIGIN, once for each",
    "generation-config": _RECOMMENDED,
    "override-generation-config": _RECOMMENDED,
    "sampling-defaults": _RECOMMENDED,
    "seed": "give a seed in each request",
}
"""Advice for options of vLLM, SGLang, llama.cpp or Ollama, by their names without dashes."""


def unknown_arguments(unknown: Sequence[str], options: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """The error for arguments that are no option, or one positional argument too many."""
    known = tuple(options)
    named = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
    if named:
        *others, last = (_unknown_option(name, known, elsewhere) for name in named)
        text = "; ".join((*(other.removesuffix("?") for other in others), last))
        return text if text.endswith("?") else f"{text}."
    # The argument itself may be a secret: a second value of --api-key.
    return "only one MODEL can be given." if elsewhere else "there is an argument too many."


def _unknown_option(name: str, known: Sequence[str], elsewhere: Mapping[str, str]) -> str:
    bare = name.lstrip("-").replace("_", "-")
    if elsewhere and (replaced := REPLACED.get(bare.replace("-", "_"))):
        option, value = replaced
        return f"{name} is now --{option.replace('_', '-')} {value}"
    instead = elsewhere.get(bare)
    near = [option for option in known if not instead and len(name) > 2 and option.startswith(name)]
    if not instead and (close := close_name(name.replace("_", "-"), known)):
        near = [close, *(option for option in near if option != close)]
    if near:
        instead = f"did you mean {', '.join(near[:-1])}{' or ' if near[1:] else ''}{near[-1]}?"
    return f"there is no option {name}" + (f": {instead}" if instead else "")
