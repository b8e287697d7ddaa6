"""What transformers computes for a prompt, in float32."""

from __future__ import annotations

import torch
from arbora.runtime.sampling_params import SamplingParams
from checkpoints import VOCAB_SIZE
from step_driver import tokens_of
from transformers import PreTrainedModel

TOLERANCE = 1e-4
EVERY_LOGPROB = SamplingParams(
    max_tokens=64, temperature=0.0, logprobs=VOCAB_SIZE, prompt_logprobs=VOCAB_SIZE
)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def expected_logprobs(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    return torch.log_softmax(model(torch.tensor([tokens])).logits[0].float(), dim=-1)


@torch.no_grad()
def expected_greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    output: torch.Tensor = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        min_new_tokens=count,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tokens_of(output[0, len(prompt) :])


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < TOLERANCE
