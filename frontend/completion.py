"""What `Engine` returns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .request.logprobs import TokenLogprob
from .request.reply import UnenforcedKeyword, Usage

__all__ = ["Completion", "CompletionPart", "Usage"]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply. `reasoning` is what a reasoning model thought before it, in chats.

    `finish_reason` is "stop" (the model ended, or a stop string or id was met; `stop_reason` says
    which) or "length". `tokens` are its ids, a final stop id included. `logprobs` has an entry for
    each token if they were asked for. `unenforced` are keywords of the schema that were left out, as
    the request allowed.
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
    """What came since the last part. The last one has `finish_reason` and `usage`."""

    text: str
    reasoning: str = ""
    logprobs: Sequence[TokenLogprob] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
