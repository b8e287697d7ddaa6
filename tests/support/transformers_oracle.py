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


def expected_greedy(model: PreTrainedModel, prompt: list[int], output: list[int]) -> list[int]:
    """The most probable token at each place of the output, after the prompt and the output before that place.

    It is the output if and only if greedy decoding gives the output. One pass takes less time than decoding.
    """
    logprobs = expected_logprobs(model, [*prompt, *output[:-1]])
    return tokens_of(logprobs[len(prompt) - 1 :].argmax(dim=-1))


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < TOLERANCE
