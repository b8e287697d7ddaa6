"""The inputs and results of sampling for the rows of one step."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..automaton.rows import AutomatonRows, TokenMask

GREEDY_BELOW = 1e-5
"""Temperatures below this choose the most likely token."""
LOGPROB_FLOOR = -9999.0
LISTED = (5, 20)
"""numbers of alternatives for which CUDA kernels are compiled: OpenAI's limits for completions and chat"""
NOTHING_ALLOWED, NOT_A_NUMBER = 1, 2
"""Why a row is bad. NOTHING_ALLOWED: masks, bans and biases leave no token, or the maximum is infinite.
NOT_A_NUMBER: a logit is NaN."""


def listed(alternatives: int) -> int:
    """The smallest number in `LISTED` that is at least `alternatives`, or else `alternatives`."""
    return next((most for most in LISTED if alternatives <= most), alternatives)


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Values added to the logits; each token at most once in a row."""

    row_start: torch.Tensor
    """int32 [rows + 1]: row r owns entries row_start[r] … row_start[r + 1]"""
    ids: torch.Tensor
    """int32 [entries]: token ids"""
    values: torch.Tensor
    """float32 [entries]: added to the logits of `ids`"""


@dataclass(frozen=True, slots=True)
class BannedTokens:
    """Tokens that must not be sampled, such as end-of-sequence before min_tokens."""

    row_start: torch.Tensor
    """int32 [rows + 1]: row r owns entries row_start[r] … row_start[r + 1]"""
    ids: torch.Tensor
    """int32 [entries]: token ids"""


@dataclass(frozen=True, slots=True)
class Penalties:
    entry: torch.Tensor
    """int32 [rows]: the row's place in prompt_seen and output_counts, -1 for a row without penalties"""
    repetition: torch.Tensor
    """float32 [rows]: divides positive and multiplies negative logits of tokens in prompt or output"""
    presence: torch.Tensor
    """float32 [rows]: subtracted once from the logits of tokens in the output"""
    frequency: torch.Tensor
    """float32 [rows]: subtracted for each occurrence of a token in the output"""
    prompt_seen: torch.Tensor
    """int32 [entries, ceil(vocab / 32)]: packed bits of the prompt's tokens"""
    output_counts: torch.Tensor
    """int32 [entries, vocab]: how often the output has each token"""


@dataclass(frozen=True, slots=True)
class DraftedRows:
    """`DraftRows` on the device: rows with penalties count the drafts before them as output."""

    offsets: torch.Tensor
    """int32 [rows]"""
    tokens: torch.Tensor
    """int32 [rows]"""


@dataclass(frozen=True, slots=True)
class HostMask:
    """Packed bits of allowed tokens, like `TokenMask`, in host memory."""

    index: NDArray[np.int32]
    bits: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Parameters of the rows of one step; a part that no row uses is None.

    mask and host_mask may both apply to a row: a token must be allowed by both. automata
    serves only to step the states; their masks are in mask.
    """

    temperature: torch.Tensor
    """float32 [rows]; below GREEDY_BELOW: greedy"""
    seed: torch.Tensor
    """int64 [rows]: the 64 bits of the Philox key"""
    position: torch.Tensor
    """int32 [rows]: number of tokens in the row's output so far"""
    all_greedy: bool = False
    """true if every row is greedy: then only the maximum is computed"""
    top_k: torch.Tensor | None = None
    """int32 [rows]; 0 keeps all tokens"""
    top_p: torch.Tensor | None = None
    """float32 [rows]; 1 keeps all tokens"""
    min_p: torch.Tensor | None = None
    """float32 [rows]; 0 keeps all tokens"""
    bias: LogitBias | None = None
    banned: BannedTokens | None = None
    mask: TokenMask | None = None
    host_mask: TokenMask | None = None
    penalties: Penalties | None = None
    automata: AutomatonRows | None = None
    drafts: DraftedRows | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    tokens: torch.Tensor
    """int32 [rows]; 0 in bad rows"""
    bad: torch.Tensor
    """int32 [rows]: 0, `NOTHING_ALLOWED` or `NOT_A_NUMBER`"""
    logprobs: torch.Tensor | None
    """float32 [rows]: log-softmax of the raw logits at the sampled token, at least LOGPROB_FLOOR"""
    top_ids: torch.Tensor | None
    """int32 [rows, n]: most likely tokens by raw logits, ties by lower id"""
    top_logprobs: torch.Tensor | None
    """float32 [rows, n]: log-probabilities of `top_ids`"""
    states: torch.Tensor | None = None
    """int32 [rows]: the automata's states after the tokens, where the batch has automata"""
