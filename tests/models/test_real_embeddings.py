"""A server of all-MiniLM-L6-v2: its embeddings equal those of transformers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from real_encoder import real_encoder
from real_texts import PROSE
from served import Served, serve
from transformers import AutoModel, AutoTokenizer

WORDS = PROSE.split()
TEXTS = [
    "How do I reset my password?",
    "I forgot my login.",
    "It rains in Lisbon.",
    "é à ü ñ 日本語 \U0001f469",
    *(" ".join(WORDS[at : at + length]) for at, length in enumerate((1, 3, 8, 20, 20, 60, 120, 150))),
]


@pytest.fixture(scope="module")
def minilm() -> Iterator[Served]:
    with serve(real_encoder(), "--dtype", "auto") as served:
        yield served


@torch.inference_mode()
def by_transformers(texts: list[str]) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(real_encoder())
    model = AutoModel.from_pretrained(real_encoder()).eval()
    alone = [
        model(**tokenizer(text, truncation=True, max_length=256, return_tensors="pt")).last_hidden_state[0]
        for text in texts
    ]
    return torch.nn.functional.normalize(torch.stack([states.mean(0) for states in alone]))


def test_embeddings_equal_those_of_transformers(minilm: Served) -> None:
    answer = minilm.client.embeddings.create(
        model=minilm.model, input=TEXTS, extra_body={"truncate_prompt_tokens": -1}
    )
    found = np.array([each.embedding for each in answer.data])
    assert np.abs(found - by_transformers(TEXTS).numpy()).max() < 1e-5


def test_texts_with_one_meaning_are_near(minilm: Served) -> None:
    body = {"text_1": TEXTS[0], "text_2": TEXTS[1:3]}
    near, far = (each["score"] for each in minilm.http.post("/v1/score", json=body).json()["data"])
    assert near > 0.5 > 0.2 > far


def test_2048_inputs_are_answered_while_others_are_served(minilm: Served) -> None:
    given = [f"text number {at}" for at in range(2048)]
    answer = minilm.client.embeddings.create(model=minilm.model, input=given, dimensions=8)
    assert [each.index for each in answer.data] == list(range(2048))
    alone = minilm.client.embeddings.create(model=minilm.model, input=given[2047], dimensions=8)
    assert np.abs(np.subtract(answer.data[2047].embedding, alone.data[0].embedding)).max() < 1e-5
