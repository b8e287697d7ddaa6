"""`Engine.embed`: embeddings of a generating model that is started for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import arbora
import numpy as np
import pytest
import torch
from tiny_checkpoint import CONTEXT, write_tiny_checkpoint
from transformers import AutoModel


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[arbora.Engine]:
    with arbora.Engine(str(checkpoint), runner="pooling", kv_memory="4MiB", device="cpu") as engine:
        yield engine


def test_embeddings_are_the_last_tokens_states(engine: arbora.Engine, checkpoint: Path) -> None:
    texts = ["Hello there, how are you?", "Hello there, what is it?"]
    model = AutoModel.from_pretrained(checkpoint).eval()
    for text, found in zip(texts, engine.embed(texts), strict=True):
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([engine.tokenize(text)])).last_hidden_state[0, -1].numpy()
        assert np.abs(np.array(found) - states / np.linalg.norm(states)).max() < 1e-5
        assert np.abs(np.subtract(found, engine.embed(text))).max() < 1e-5  # from the cache


async def test_options_and_errors(engine: arbora.Engine) -> None:
    ids = list(range(3, 40))
    short = await engine.aembed(ids, dimensions=4, truncate_prompt_tokens=9)
    assert len(short) == 4
    assert np.abs(np.subtract(short, engine.embed([ids[:9]], dimensions=4)[0])).max() < 1e-5
    with pytest.raises(arbora.RequestError, match=r"input\[1\] has at least"):
        engine.embed([[5], [5] * (CONTEXT + 1)])
    with pytest.raises(arbora.RequestError, match="dimensions is 99"):
        engine.embed("a", dimensions=99)
    with pytest.raises(arbora.RequestError, match="generates no text"):
        engine.generate("a")
