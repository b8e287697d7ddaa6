"""Log-probabilities in the forms that OpenAI's and vLLM's clients read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....runtime.messages import Logprobs, Tokens
from ...core.logprobs import TokenLogprob, prompt_entries
from ...core.text.tokenizer import Tokenizer
from .responses import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)


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
    """OpenAI's lists for text completions. `offset` characters are added to the offset of each entry."""
    return CompletionLogprobs(
        [tokenizer.token_text(entry.token) for entry in entries],
        [entry.logprob for entry in entries],
        [_alternatives(tokenizer, entry) for entry in entries],
        [entry.offset + offset for entry in entries],
    )


def _alternatives(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, float] | None:
    """The most likely tokens by text, and the token itself if it is not among them."""
    if entry.logprob is None:
        return None
    result: dict[str, float] = {}
    for token, logprob in (*entry.top, (entry.token, entry.logprob)):
        result.setdefault(tokenizer.token_text(token), logprob)
    return result


def prompt_logprobs(tokenizer: Tokenizer, prompt: Tokens, logprobs: Logprobs | None) -> PromptLogprobs:
    """vLLM's form: each position's tokens by id, null for the first token and those before the start."""
    offsets = range(len(prompt) // 4)  # any offsets will do, because this form has none
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
