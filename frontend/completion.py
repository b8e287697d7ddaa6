"""The results of `Engine`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .request.logprobs import TokenLogprob
from .request.reply import UnenforcedKeyword, Usage

__all__ = ["Completion", "CompletionPart", "Usage"]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply. `reasoning` is a reasoning model's text before the answer, in chats.

    `finish_reason` is "length" or "stop". A model stops by itself, or at a stop string or id, which is then
    the `stop_reason`. `tokens` are the reply's ids, a final stop id included. `logprobs` has an entry for
    each token if they were asked for. `unenforced` are keywords of the schema that were left out, as the
    request allowed.
    """

    text: str
    reasoning: str
    tokens: list[int]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: Sequence[TokenLogprob]
    usage: Usage
    unenforced: list[UnenforcedKeyword] = []


class CompletionPart(msgspec.Struct, frozen=True, kw_only=True):
    """The text since the last part. The last part has `finish_reason` and `usage`."""

    text: str
    reasoning: str = ""
    logprobs: Sequence[TokenLogprob] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
