"""Parameters of a request: how its tokens are sampled and when its reply ends."""

from __future__ import annotations

import msgspec

MAX_DRAFTS = 15
"""most drafts of a request in a step; of more, nearly all would be rejected"""


class SamplingDefaults(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values of sampling fields that a request leaves out, as the model's authors recommend them."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The sampling fields of a request. The tokenizer process validates them; the scheduler and the model
    process apply them."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # alternatives for each output token; 0: none but its own; None: off
    prompt_logprobs: int | None = None  # alternatives for each prompt token, in the same way
    prompt_logprobs_start: int = 0  # position of the first prompt token that needs a log-probability
    complete_json: bool = False  # whether a reply that `max_tokens` ends still matches its grammar
    max_drafts: int = MAX_DRAFTS  # most drafts of the request in a step

    @property
    def first_scored(self) -> int:
        """Position of the first prompt token with a log-probability, which the first token never has."""
        return max(self.prompt_logprobs_start, 1)

    def most_cached(self, length: int) -> int:
        """How many of a prompt's `length` tokens may come from the cache.

        The hidden state of the token at `position - 1` predicts the token at `position`.
        """
        return length - 1 if self.prompt_logprobs is None else self.first_scored - 1

    @property
    def uses_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
