"""What a server computes for a real model, against transformers in float32 with the decoded weights."""

from __future__ import annotations

import math

import pytest
import torch
from real_model import float32_model, reference_tokenizer
from real_texts import CODE, LICENSE, PROSE
from served import Served
from transformers_oracle import expected_logprobs

TEXTS = (PROSE[:800], PROSE[2500:3300], CODE[4000:5200], LICENSE[:800])
QUESTIONS = (
    "What is the capital of France?",
    "Explain photosynthesis in two sentences.",
    "Write a Python function that adds two numbers.",
    "Who wrote Hamlet?",
)
MAX_TOKENS = 24
NEAR_TIE = 0.75
"""How far the log-probability of bfloat16's token may be below the best one's, in nats. Errors of the model
or its tokenizer give more than 1."""


def test_the_perplexity_of_text_is_within_two_percent(smollm2: Served) -> None:
    ours = expected = 0.0
    count = 0
    for text in TEXTS:
        ids = reference_tokenizer().encode(text).ids
        body = {"prompt_token_ids": ids, "prompt_logprobs": 0, "max_tokens": 1}
        (choice,) = smollm2.http.post("/generate", json=body).json()["choices"]
        ours += sum(choice["prompt_logprobs"][1:])
        following = torch.tensor(ids[1:]).unsqueeze(1)
        expected += float(expected_logprobs(float32_model(), ids)[:-1].gather(1, following).sum())
        count += len(following)
    assert math.exp(-ours / count) == pytest.approx(math.exp(-expected / count), rel=0.02)


def test_greedy_replies_are_those_of_float32_until_a_near_tie(smollm2: Served) -> None:
    """Each token is compared after the same tokens, so the places after a near tie are compared too."""
    lost: list[float] = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        fields = {"temperature": 0, "max_tokens": MAX_TOKENS, "return_prompt_token_ids": True}
        answer = smollm2.http.post("/generate", json={"messages": messages, **fields}).json()
        (prompt,), reply = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
        logprobs = expected_logprobs(float32_model(), [*prompt, *reply[:-1]])[len(prompt) - 1 :]
        chosen = logprobs.gather(1, torch.tensor(reply).unsqueeze(1)).squeeze(1)
        lost += (logprobs.max(dim=-1).values - chosen).tolist()
    assert max(lost) < NEAR_TIE, lost
    assert sum(each == 0 for each in lost) / len(lost) > 0.9
