"""adapter_config.json of PEFT: what is served of it, and which modules it means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from ...checkpoint_json import decode_file
from ...errors import ConfigError

CONFIG_FILE = "adapter_config.json"
ALL_LINEAR = "all-linear"
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""beginnings of `init_lora_weights` with which the weights of the base model were changed too"""


class PeftConfig(Struct):
    """The fields that decide what an adapter computes."""

    peft_type: str
    r: int
    lora_alpha: float
    target_modules: str | list[str] | None = None
    exclude_modules: str | list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    use_dora: bool = False
    lora_bias: bool = False
    use_qalora: bool = False
    modules_to_save: list[str] | None = None
    target_parameters: list[str] | None = None
    trainable_token_indices: list[int] | dict[str, list[int]] | None = None
    layer_replication: list[list[int]] | None = None
    alora_invocation_tokens: list[int] | None = None

    def rank(self, module: str) -> int:
        return int(_find_pattern(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        """By which the product of B and A is multiplied."""
        rank, alpha = self.rank(module), _find_pattern(self.alpha_pattern, module, self.lora_alpha)
        return float(alpha / rank**0.5) if self.use_rslora else float(alpha / rank)

    def max_rank(self) -> int:
        return max(self.r, *(self.rank_pattern or {}).values(), 0)

    def targets(self, module: str) -> bool:
        """Whether the config says that the module of this name is adapted, as PEFT decides it."""
        if self.exclude_modules and _matches(self.exclude_modules, module):
            return False
        if self.target_modules == ALL_LINEAR:
            return True
        if not _matches(self.target_modules or (), module):
            return False
        if isinstance(self.target_modules, str) or self.layers_to_transform in (None, []):
            return True
        return _find_layer(self.layers_pattern or (), module) in _listed(self.layers_to_transform)


def read_peft_config(directory: Path) -> PeftConfig:
    """Raises ConfigError for a directory that is no adapter, or for an adapter of a kind that is not
    served."""
    path = directory / CONFIG_FILE
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: can't be read ({error.strerror}). An adapter is a directory with this file of PEFT's."
        ) from None
    config = decode_file(path, text, PeftConfig)
    if problem := _find_problem(config):
        raise ConfigError(f"{path}: {problem}.")
    return config


def _find_problem(config: PeftConfig) -> str | None:
    """Why the adapter is not served."""
    whole, parameters = ", ".join(config.modules_to_save or ()), ", ".join(config.target_parameters or ())
    initial = config.init_lora_weights
    ranks = (config.r, *(config.rank_pattern or {}).values())
    problems = (
        (config.peft_type != "LORA", f"peft_type is {config.peft_type}, but only LORA is served"),
        (min(ranks) < 1, f"a rank is {min(ranks)}, but must be at least 1"),
        (config.use_dora, "use_dora is true, but DoRA is not served: merge it into the base model"),
        (
            config.bias != "none",
            f"bias is {config.bias!r}, but biases of adapters are not served: train with bias='none'",
        ),
        (config.lora_bias, "lora_bias is true, but biases of adapters are not served"),
        (config.use_qalora, "use_qalora is true, but QALoRA is not served"),
        (
            whole,
            f"modules_to_save has {whole}, but modules that are trained as a whole are not served: merge the "
            "adapter into the base model",
        ),
        (
            parameters,
            f"target_parameters has {parameters}, but adapters of parameters, such as those of experts, are "
            "not served",
        ),
        (
            config.trainable_token_indices,
            "trainable_token_indices is set, but adapted embeddings are not served",
        ),
        (config.layer_replication, "layer_replication is set, but replicated layers are not served"),
        (
            config.alora_invocation_tokens,
            "alora_invocation_tokens is set, but activated LoRA is not served",
        ),
        (
            str(initial).lower().startswith(CHANGES_BASE),
            f"init_lora_weights is {initial!r}, with which training changes the base model too: save the "
            "adapter with path_initial_model_for_weight_conversion",
        ),
    )
    return next((problem for has, problem in problems if has), None)


def _find_pattern(patterns: Mapping[str, float] | None, module: str, default: float) -> float:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _matches(wanted: str | Iterable[str], module: str) -> bool:
    """A text is a regular expression of the whole name; in a list are names or their ends."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in wanted)


def _find_layer(patterns: str | Iterable[str], module: str) -> int | None:
    """The number of the module's layer."""
    names = [patterns] if isinstance(patterns, str) else list(patterns)
    for name in names or [r"[^.]*"]:
        if match := re.match(rf".*\.{name}\.(\d+)\.", module):
            return int(match[1])
    return None


def _listed(layers: int | list[int] | None) -> list[int]:
    return layers if isinstance(layers, list) else [] if layers is None else [layers]
