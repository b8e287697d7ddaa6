"""Checkpoints of tiny random models that make embeddings or classify, and what transformers computes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arbora.runtime.config import ServeConfig
from arbora.runtime.messages import Row, SlotSetup, StepPlan
from arbora.runtime.model.loading import LoadedModel, load_model
from arbora.runtime.sampling_params import SamplingParams
from numpy.typing import NDArray
from transformers import CONFIG_MAPPING, AutoModel, PreTrainedModel

VOCABULARY = 128
_MORE: dict[str, dict[str, Any]] = {
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 48},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "use_bidirectional_attention": True},
    "gemma2": {"head_dim": 16, "sliding_window": 8},
    "qwen3": {"head_dim": 16},
    "deberta-v2": {"position_buckets": 8, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
}


def tiny_encoder(kind: str, auto: Any = AutoModel, **fields: Any) -> PreTrainedModel:
    """A float32 model. `auto`: transformers' class for the task."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    }
    config = CONFIG_MAPPING[kind](**{**sizes, **_MORE.get(kind, {}), **fields})
    torch.manual_seed(0)
    model: PreTrainedModel = auto.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def write_modules(directory: Path, mode: str, normalizes: bool = True, dense: int = 0) -> None:
    """The files of sentence-transformers. dense: the size of a linear layer after pooling; 0: none"""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if dense:
        modules.append(("2_Dense", "Dense"))
    if normalizes:
        modules.append(("3_Normalize", "Normalize"))
    listed = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    flags = {
        f"pooling_mode_{name}": name == mode
        for name in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(flags))


class PoolingRunner:
    """The model process's part of a server, without the process."""

    def __init__(self, model: Path, **options: Any) -> None:
        self.loaded: LoadedModel = load_model(ServeConfig(model=model, served_model_name="m", **options), _no)

    def run(
        self, inputs: Sequence[Sequence[int]], chunk: int | None = None, seconds: Sequence[int] = ()
    ) -> Any:
        """The vectors of inputs, which are computed in one step, or in chunks of this many tokens."""
        size, groups = self.loaded.ready.page_size, self.loaded.ready.groups
        parts = min((group.num_pages for group in groups), default=0) // max(len(inputs), 1)
        done: dict[int, NDArray[np.float32]] = {}
        step = 0
        starts = [0] * len(inputs)
        while len(done) < len(inputs):
            rows, setups = [], []
            step += 1
            for slot, tokens in enumerate(inputs):
                start = starts[slot]
                if start == len(tokens):
                    continue
                end = len(tokens) if chunk is None else min(start + chunk, len(tokens))
                new = np.arange(slot * parts, slot * parts + -(-len(tokens) // size), dtype=np.int32)
                row = Row(slot, start, np.array(tokens[start:end], np.int32).tobytes(), samples=0)
                row.new_pages = new.tobytes() if start == 0 else b""
                row.new_window_pages = [row.new_pages] * (len(groups) - 1)
                row.pools, row.second = end == len(tokens), seconds[slot] if seconds else 0
                rows.append(row)
                starts[slot] = end
                if start == 0:
                    setups.append(SlotSetup(slot, SamplingParams(max_tokens=0)))
            result = self.loaded.runner.run(StepPlan(step, rows, setups), lambda: None)
            assert not result.errors
            done |= {each.slot: np.frombuffer(each.values, np.float32) for each in result.vectors}
        return np.stack([done[slot] for slot in range(len(inputs))])


def _no() -> Any:
    raise AssertionError("no grammar is loaded")


@torch.inference_mode()
def pooled(model: PreTrainedModel, inputs: Sequence[Sequence[int]], mode: str) -> NDArray[np.float32]:
    """The vectors by transformers, each input alone."""
    found = []
    for tokens in inputs:
        states = model(input_ids=torch.tensor([list(tokens)])).last_hidden_state[0]
        chosen = {
            "mean_tokens": states.mean(0),
            "cls_token": states[0],
            "lasttoken": states[-1],
            "max_tokens": states.amax(0),
        }
        found.append(chosen[mode].numpy())
    return np.stack(found)
