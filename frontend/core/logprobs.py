"""Log-probabilities of a reply's and a prompt's tokens, unpacked from the scheduler's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from ...runtime.messages import Logprobs, Tokens


class TokenLogprob(NamedTuple):
    """One token of a reply or a prompt. `top` is in descending order; `offset` is in characters."""

    token: int
    logprob: float | None
    top: Sequence[tuple[int, float]]
    offset: int = 0


def unpack(tokens: Tokens, logprobs: Logprobs, offsets: Sequence[int]) -> list[TokenLogprob]:
    """One entry for each offset. Tokens past a stop string have no offset and are left out."""
    ids = np.frombuffer(tokens, "<i4").tolist()
    chosen = np.frombuffer(logprobs.chosen, "<f4").tolist()
    tops = _rows(logprobs, len(chosen))
    return [
        TokenLogprob(token, value, top, offset)
        for token, value, top, offset in zip(ids, chosen, tops, offsets, strict=False)
    ]


def _rows(logprobs: Logprobs, rows: int) -> list[list[tuple[int, float]]]:
    if not logprobs.top_ids:
        return [[] for _ in range(rows)]
    ids = np.frombuffer(logprobs.top_ids, "<i4").reshape(rows, -1).tolist()
    values = np.frombuffer(logprobs.top_values, "<f4").reshape(rows, -1).tolist()
    return [list(zip(*row, strict=True)) for row in zip(ids, values, strict=True)]


def prompt_entries(prompt: Tokens, logprobs: Logprobs | None, offsets: Sequence[int]) -> list[TokenLogprob]:
    """One entry for each token of a prompt. `logprobs` cover its last tokens; its first token has none."""
    ids = np.frombuffer(prompt, "<i4").tolist()
    first = len(ids) - (len(logprobs.chosen) // 4 if logprobs is not None else 0)
    entries = [TokenLogprob(*each) for each in zip(ids[:first], repeat(None), repeat(()), offsets)]
    return entries if logprobs is None else entries + unpack(prompt[4 * first :], logprobs, offsets[first:])
