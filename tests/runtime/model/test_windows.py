"""Models with windows, served by the scheduler on pages that are freed behind the windows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import VOCAB_SIZE, WINDOWED, random_model, save_model
from served_model import ServedModel
from tiny_models import tiny_config, tiny_model
from transformers import PreTrainedModel

LONG: dict[str, Any] = {
    **WINDOWED,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 24,
    "max_position_embeddings": 2048,
}


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedModel:
    """A random model of the kind, saved in `tmp_path`."""
    kind: str = request.param
    saved = random_model("qwen3", **LONG) if kind == "native" else tiny_model(tiny_config(kind))
    save_model(saved, tmp_path)
    return saved


@pytest.mark.parametrize("model", ["native", "gemma3_text", "llama4_text", "gemma4_text"], indirect=True)
def test_each_turn_of_a_chat_gets_the_tokens_of_transformers_and_finds_the_turn_before(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    served = ServedModel(tmp_path, max_model_len=230, max_running=2, kv_memory=64 << 20, page_size=4)
    numbers = random.Random(0)
    vocab_size = min(VOCAB_SIZE, model.config.get_text_config().vocab_size)
    tokens = [numbers.randrange(2, vocab_size) for _ in range(150)]
    for turn in range(3):
        cached = served.cached_tokens
        reply = served.reply(str(turn), tokens, 12)
        with torch.no_grad():
            whole = model.generate(
                torch.tensor([tokens]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        assert reply == whole[0, len(tokens) :].tolist()
        assert served.cached_tokens - cached == (len(tokens) - 6 if turn else 0)
        tokens = [*tokens, *reply, *(numbers.randrange(2, vocab_size) for _ in range(5))]
        for group in served.cache.windows:  # evicts what is far behind the ends of prompts and replies
            for page in group.take(group.allocator.num_free + len(group._idle[0]), None):
                group.end_use(page, 0)
    assert all(group.num_evicted for group in served.cache.windows)
