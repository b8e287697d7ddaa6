"""Log-probabilities from packed arrays to the shapes that clients read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ...runtime.messages import Logprobs, Tokens
from ..text.tokenizer import Tokenizer
from .responses import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)


class TokenLogprob(NamedTuple):
    """One token of a reply or a prompt. `top` is in descending order; `offset` is in characters."""

    token: int
    logprob: float | None
    top: Sequence[tuple[int, float]]
    offset: int = 0


def unpack(tokens: Tokens, logprobs: Logprobs, offsets: Sequence[int]) -> list[TokenLogprob]:
    """One for each offset: tokens past a stop string have none and are left out."""
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


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs([_content_entry(tokenizer, entry) for entry in entries])


def _content_entry(tokenizer: Tokenizer, entry: TokenLogprob) -> ContentLogprob:
    assert entry.logprob is not None
    own = _described(tokenizer, entry.token, entry.logprob)
    top = [_described(tokenizer, token, logprob) for token, logprob in entry.top]
    return ContentLogprob(own.token, own.logprob, own.bytes, top)


def _described(tokenizer: Tokenizer, token: int, logprob: float) -> TopLogprob:
    return TopLogprob(tokenizer.token_text(token), logprob, list(tokenizer.token_bytes(token)))


def completion_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprob], offset: int
) -> CompletionLogprobs:
    """`offset` is how many characters stand before the text that the entries' own offsets count from."""
    return CompletionLogprobs(
        [tokenizer.token_text(entry.token) for entry in entries],
        [entry.logprob for entry in entries],
        [_alternatives(tokenizer, entry) for entry in entries],
        [entry.offset + offset for entry in entries],
    )


def _alternatives(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, float] | None:
    """The most likely tokens by text and the token itself, which makes one more if it isn't among them."""
    if entry.logprob is None:
        return None
    result: dict[str, float] = {}
    for token, logprob in (*entry.top, (entry.token, entry.logprob)):
        result.setdefault(tokenizer.token_text(token), logprob)
    return result


def prompt_entries(prompt: Tokens, logprobs: Logprobs | None, offsets: Sequence[int]) -> list[TokenLogprob]:
    """A prompt's tokens: the first follows nothing and has no log-probability."""
    first = TokenLogprob(int.from_bytes(prompt[:4], "little"), None, (), 0)
    rest = unpack(prompt[4:], logprobs, offsets[1:]) if logprobs is not None else []
    return [first, *rest]


def prompt_logprobs(tokenizer: Tokenizer, prompt: Tokens, logprobs: Logprobs | None) -> PromptLogprobs:
    """vLLM's shape: null for the first token, then each position's tokens by id."""
    offsets = range(len(prompt) // 4)  # not shown
    return [_by_id(tokenizer, entry) for entry in prompt_entries(prompt, logprobs, offsets)]


def _by_id(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, PromptLogprob] | None:
    if entry.logprob is None:
        return None
    result = {
        str(token): PromptLogprob(logprob, rank, tokenizer.token_text(token))
        for rank, (token, logprob) in enumerate(entry.top, start=1)
    }
    result.setdefault(str(entry.token), PromptLogprob(entry.logprob, None, tokenizer.token_text(entry.token)))
    return result
