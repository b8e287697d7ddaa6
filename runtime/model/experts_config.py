"""The experts of a model's layers, from its config.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..checkpoint_json import decode_file
from ..errors import ConfigError
from ..families import ExpertFamily


class ExpertsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's experts, of which a router chooses some for each token."""

    count: int
    per_token: int
    intermediate_size: int
    renormalizes: bool
    """whether the shares of a token's experts sum to 1, and not those of all experts"""
    swiglu_alpha: float
    swiglu_limit: float
    """of `clamp_and_gate`, in families with it"""
    family: ExpertFamily


class _ConfigFile(msgspec.Struct, kw_only=True):
    """The relevant fields of config.json."""

    num_hidden_layers: int
    intermediate_size: int
    num_experts: int | None = None
    num_local_experts: int | None = None
    """another name of `num_experts`"""
    num_experts_per_tok: int = 0
    moe_intermediate_size: int | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0


def read_experts(path: Path, given: bytes, family: ExpertFamily | None) -> Sequence[ExpertsConfig | None]:
    """The experts of each layer of the config.json at `path`, whose content is `given`; None: it has none.
    Raises ConfigError for wrong numbers."""
    file = decode_file(path, given, _ConfigFile)
    layers, count = range(file.num_hidden_layers), file.num_experts or file.num_local_experts or 0
    if family is None:
        return [None for _ in layers]
    if not 1 <= file.num_experts_per_tok <= count:
        raise ConfigError(
            f"{path}: num_experts_per_tok {file.num_experts_per_tok} should be 1 to the number "
            f"of experts, which is {count}."
        )
    if file.decoder_sparse_step < 1:
        raise ConfigError(f"{path}: decoder_sparse_step {file.decoder_sparse_step} should be 1 or more.")
    experts = ExpertsConfig(
        count=count,
        per_token=file.num_experts_per_tok,
        intermediate_size=file.moe_intermediate_size or file.intermediate_size,
        renormalizes=family.renormalizes or file.norm_topk_prob,
        swiglu_alpha=file.swiglu_alpha,
        swiglu_limit=file.swiglu_limit,
        family=family,
    )
    dense = set(file.mlp_only_layers or ())
    return [
        experts if layer not in dense and (layer + 1) % file.decoder_sparse_step == 0 else None
        for layer in layers
    ]
