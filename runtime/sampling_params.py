"""How one request wants its tokens sampled and when it ends."""

from __future__ import annotations

import msgspec

LOGPROB_FLOOR = -9999.0


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Validated by the tokenizer process, obeyed by the scheduler and the model process.

    `logprobs` is the number of alternatives reported with each output token (0: only the token's
    own; None: no log-probabilities at all); `prompt_logprobs` the same for the prompt's tokens.
    `complete_json`: what `max_tokens` cuts off fits its grammar nevertheless.
    """

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
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    complete_json: bool = False

    @property
    def uses_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
