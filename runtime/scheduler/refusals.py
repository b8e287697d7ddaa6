"""Why requests are refused, with the numbers that the user needs."""

from __future__ import annotations

import msgspec

from ...grammars import BusyError, CompilerError, GrammarError
from ...radix_cache import FullWindow, PrefixCache
from ..messages import (
    TOKEN_BYTES,
    CheckPin,
    Generate,
    GroupCost,
    PinPrefix,
    Pooling,
    QueryRefused,
    Refused,
    ReplyError,
    UnpinPrefix,
)
from .queue_places import QueuePlaces
from .request import Request

MAX_CHARACTERS = 2000  # maximal length of a message about a grammar, which may quote the grammar


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of one replica."""

    max_model_len: int  # maximal tokens of a prompt and its reply
    slots: int  # number of requests that hold pages at once
    max_sampled: int = 1  # maximal number of tokens that a row samples in a step
    max_waiting: int
    max_pinned: int = 0  # maximal number of pinned pages in a scope
    keys: int = 0  # number of API keys; with several, each key is a tenant
    bounded_priorities: bool = False  # whether each key has a best priority
    state_tokens: int = 0  # tokens whose KV takes as much memory as a state of the recurrent layers
    group_cost: GroupCost = msgspec.field(default_factory=GroupCost)
    pooling: Pooling | None = None  # None: the model generates


def find_refusal(message: Generate, limits: Limits, cache: PrefixCache, withheld: int) -> Refused | None:
    """Why a request can never start; None if it can. `withheld` pages are pinned for others."""
    prompt = len(message.prompt) // TOKEN_BYTES
    length = prompt + message.sampling.max_tokens
    pages = cache.count_pages(length)
    if prompt == 0:
        return Refused(message.request, 400, "The prompt has no tokens; send at least one.", "prompt")
    if length > limits.max_model_len:
        return Refused(
            message.request,
            400,
            f"The prompt has {prompt} token{'s' if prompt > 1 else ''} and max_tokens is "
            f"{message.sampling.max_tokens}: {length} together, but the context is {limits.max_model_len} "
            "tokens. Shorten the prompt or lower max_tokens.",
            "max_tokens" if prompt < limits.max_model_len else "messages",
            "context_length_exceeded",
        )
    if pages > cache.num_pages - withheld:
        return _refuse_over_memory(
            message.request, length, cache, withheld if pages <= cache.num_pages else 0
        )
    window = cache.find_full_window(length)
    return None if window is None else _refuse_over_window(message.request, length, window)


def refuse_for_queue(message: Generate, places: QueuePlaces, retry_after: int) -> Refused:
    """`retry_after` is in seconds."""
    return Refused(
        message.request,
        429,
        f"{places.total} requests are waiting, {places.taken_by(message.tenant)} of them with this API key "
        f"or user, and the server accepts no more now; try again in {retry_after} s.",
        None,
        "rate_limit_exceeded",
        retry_after,
    )


def _refuse_over_memory(request: str, length: int, cache: PrefixCache, pinned: int) -> Refused:
    """pinned: pages pinned for others, if the request would fit without these pins; otherwise 0"""
    taken = f", {pinned} of them pinned for others" if pinned else ""
    unpin = "end pins (GET /cache lists them, DELETE /cache/pin/ID ends one), " if pinned else ""
    return Refused(
        request,
        400,
        f"The request needs {cache.count_pages(length)} pages of KV cache ({length} tokens), but "
        f"the server has {cache.num_pages} ({cache.num_pages * cache.page_size} tokens){taken}. Lower "
        f"max_tokens, {unpin}or start the server with a larger --kv-memory.",
        None if pinned else "max_tokens",
        "kv_cache_exceeded",
    )


def _refuse_over_window(request: str, length: int, window: FullWindow) -> Refused:
    kind = "chunks" if window.reach.in_chunks else "a window"
    would_fit = window.needed <= window.total
    pins = (
        f", {window.pinned} of them pinned. End pins (GET /cache lists them), or start"
        if would_fit
        else ". Start"
    )
    return Refused(
        request,
        400,
        f"The request needs {window.needed} pages of KV cache ({length} tokens) in the layers with {kind} of "
        f"{window.reach.tokens} tokens, but the server has {window.total} for them{pins} the server with a "
        "larger --kv-memory.",
        None if would_fit else "max_tokens",
        "kv_cache_exceeded",
    )


def refuse_grammar(request: Request, error: GrammarError | CompilerError | BusyError) -> Refused:
    """Refuses because a grammar is wrong or unenforceable, its compiler failed, or too many are queued."""
    if isinstance(error, BusyError):
        return Refused(
            request.id, 503, f"{request.grammar_param}: {error}", request.grammar_param, "server_busy"
        )
    if isinstance(error, CompilerError):
        message = "the server's grammar compiler failed, and the grammar can't be enforced without it."
        return Refused(
            request.id, 500, f"{request.grammar_param}: {message}", request.grammar_param, "internal_error"
        )
    param = request.grammar_params.get(error.function, request.grammar_param)
    return Refused(request.id, 400, f"{param}: {_shorten(error)}", param, "invalid_grammar")


def describe_grammar_error(request: Request, error: GrammarError | CompilerError) -> ReplyError:
    """The error of a reply whose grammar failed: the request's fault (400) or the server's (500)."""
    param = request.grammar_param
    if isinstance(error, CompilerError):
        return ReplyError(f"{param}: {_shorten(error)}")
    return ReplyError(f"{param}: {_shorten(error)}", 400, param, "invalid_grammar")


def _shorten(error: Exception) -> str:
    reason = str(error)
    return reason if len(reason) <= MAX_CHARACTERS else f"{reason[:MAX_CHARACTERS]}…"


def refuse_unknown_pin(message: UnpinPrefix) -> QueryRefused:
    reason = f"There is no pin {message.pin}; it may have expired."
    return QueryRefused(message.query, 404, reason, "id", "pin_not_found")


def refuse_without_cache(query: int) -> QueryRefused:
    return QueryRefused(query, 409, "The server runs with --debug uncached.", None, "no_prefix_cache")


def refuse_more_pins(query: int, limit: int) -> QueryRefused:
    message = f"{limit} prefixes are pinned, which is the limit. Unpin others (DELETE /cache/pin/ID)."
    return QueryRefused(query, 409, message, None, "too_many_pins")


def refuse_over_quota(
    message: CheckPin | PinPrefix, wanted: int, more: int, pinned: int, limit: int, page_size: int
) -> QueryRefused:
    """`wanted`: number of pages of the prefix. `more`: how many are not pinned yet. `pinned`, `limit`: the
    scope's pinned pages and its quota."""

    def amount(pages: int) -> str:
        return f"{pages:,} pages ({pages * page_size:,} tokens)"

    whose = "with your API key" if message.scope else "in all"
    fix = "Pin a shorter prefix" if wanted > limit else "Unpin others (DELETE /cache/pin/ID)"
    start = f"{fix}, or start" if limit else "Start"
    reason = (
        f"The prefix takes {amount(more)} more of the KV cache, but {amount(limit)} may be pinned {whose}, "
        f"of which {pinned} are. {start} the server with a larger --pin-memory."
    )
    return QueryRefused(message.query, 409, reason, None, "pin_quota_exceeded")


def refuse_pages_in_use(query: int, more: int) -> QueryRefused:
    message = f"The prefix takes {more} more pages of KV cache, which open requests may need. Try again."
    return QueryRefused(query, 409, message, None, "kv_cache_in_use")


def refuse_uncached(query: int, wanted: int, cached: int) -> QueryRefused:
    message = f"Only {cached} of the prefix's {wanted} pages are cached; others were evicted. Try again."
    return QueryRefused(query, 503, message, None, "prefix_not_cached")
