"""Well-known models by short names. Sizes are approximate: the hub says the real ones at the download."""

from __future__ import annotations

from typing import NamedTuple


class KnownModel(NamedTuple):
    name: str
    """the name that the server has by default"""
    source: str
    """the MODEL that the name stands for"""
    download_gb: float
    """approximate size of the download in units of 10^9 bytes"""
    memory_gb: float
    """approximate memory for the weights and a few thousand tokens of context, in units of 10^9 bytes"""
    use: str
    license: str
    other_names: tuple[str, ...] = ()
    makes_text: bool = True
    share_read: float = 1.0
    """the share of the weights that one token needs, less than 1 for a mixture of experts"""


_APACHE = "Apache-2.0"
_GEMMA = "Gemma terms"
_LLAMA = "Llama 3.2 license"

KNOWN_MODELS = (
    KnownModel(
        "smollm2", "smollm2", 0.1, 0.7, "trying Arbora out", _APACHE, ("smollm2:135m",)
    ),  # from a package, see PACKAGED
    KnownModel("gemma3:270m", "unsloth/gemma-3-270m-it-GGUF:Q8_0", 0.3, 1, "very short tasks", _GEMMA),
    KnownModel("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0", 0.64, 1.5, "short chats, extraction", _APACHE),
    KnownModel("lfm2:1.2b", "LiquidAI/LFM2-1.2B-GGUF:Q4_K_M", 0.73, 2, "fast chats", "LFM1.0", ("lfm2",)),
    KnownModel("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", 0.81, 2, "chats, summaries", _GEMMA),
    KnownModel(
        "llama3.2:1b", "unsloth/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", 0.81, 2, "chats, summaries", _LLAMA
    ),
    KnownModel("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF:Q8_0", 1.83, 3, "chats, tools, reasoning", _APACHE),
    KnownModel(
        "smollm3", "ggml-org/SmolLM3-3B-GGUF:Q4_K_M", 1.92, 3.5, "chats, reasoning", _APACHE, ("smollm3:3b",)
    ),
    KnownModel(
        "llama3.2:3b",
        "unsloth/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        2.02,
        3.5,
        "chats, tools",
        _LLAMA,
        ("llama3.2",),
    ),
    KnownModel(
        "gemma3:4b",
        "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
        2.49,
        4,
        "chats, many languages",
        _GEMMA,
        ("gemma3",),
    ),
    KnownModel(
        "phi4-mini",
        "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M",
        2.49,
        4,
        "mathematics, code",
        "MIT",
        ("phi4-mini:3.8b",),
    ),
    KnownModel("qwen3:4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M", 2.5, 4.5, "tools, reasoning, code", _APACHE),
    KnownModel(
        "mistral:7b",
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
        4.37,
        6.5,
        "chats, summaries",
        _APACHE,
        ("mistral",),
    ),
    KnownModel(
        "qwen3:8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M", 5.03, 7.5, "tools, reasoning, code", _APACHE, ("qwen3",)
    ),
    KnownModel(
        "gpt-oss:20b",
        "ggml-org/gpt-oss-20b-GGUF:MXFP4",
        12.1,
        24,
        "agents, reasoning",
        _APACHE,
        ("gpt-oss",),
        share_read=3.6 / 20.9,
    ),
    KnownModel(
        "qwen3:30b-a3b",
        "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M",
        18.6,
        22,
        "agents, code",
        _APACHE,
        share_read=3.3 / 30.5,
    ),
    KnownModel(
        "qwen3-embedding:0.6b",
        "Qwen/Qwen3-Embedding-0.6B",
        1.2,
        2,
        "embeddings",
        _APACHE,
        ("qwen3-embedding",),
        makes_text=False,
    ),
)

_BY_NAME: dict[str, KnownModel] = {
    name: model for model in KNOWN_MODELS for name in (model.name, *model.other_names)
}


def find_known(name: str) -> KnownModel | None:
    """The model of a well-known name, in upper or lower case."""
    return _BY_NAME.get(name.lower())


def known_names() -> tuple[str, ...]:
    """All names of well-known models, with those that stand for another name."""
    return tuple(_BY_NAME)
