"""Who may start: what can never fit is refused, what must wait waits, the rest gets slot and pages."""

from __future__ import annotations

import msgspec

from ...grammars import BusyError, CompilerError, GrammarError
from ...radix_cache import Lease, PrefixCache
from ..messages import Generate, Refused, ReplyError
from .places import Places
from .request import TOKEN_BYTES, Request, Residence

MOST_SAID = 2000  # characters of a message about a grammar, which may quote it


class Limits(msgspec.Struct, frozen=True):
    """What one replica can hold. `slots` is the number of requests that run at once, `most_pinned` how
    many pages may be pinned in a scope. `keys` is how many API keys there are, each of which is a tenant;
    with one or none the tenants are what clients say."""

    max_model_len: int
    num_pages: int
    page_size: int
    slots: int
    max_waiting: int
    most_pinned: int = 0
    keys: int = 0


def refusal(message: Generate, limits: Limits, withheld: int) -> Refused | None:
    """Why a request can never be taken; None if it can. `withheld` pages are pinned for others."""
    prompt = len(message.prompt) // TOKEN_BYTES
    length = prompt + message.sampling.max_tokens
    pages = pages_for(length, limits.page_size)
    if prompt == 0:
        return Refused(message.request, 400, "The prompt has no tokens; send at least one.", "prompt")
    if length > limits.max_model_len:
        return Refused(
            message.request,
            400,
            f"The prompt has {prompt} tokens and max_tokens is {message.sampling.max_tokens}: {length} "
            f"together, but the context is {limits.max_model_len} tokens. Shorten the prompt or lower "
            "max_tokens.",
            "max_tokens" if prompt < limits.max_model_len else "messages",
            "context_length_exceeded",
        )
    if pages > limits.num_pages - withheld:
        return _over_memory(message.request, length, limits, withheld if pages <= limits.num_pages else 0)
    return None


def no_place(message: Generate, places: Places, retry_after: int) -> Refused:
    """Too many requests wait. `retry_after` is in seconds."""
    return Refused(
        message.request,
        429,
        f"{places.total} requests are waiting, {places.taken_by(message.tenant)} of them with this API key "
        f"or user, and this server takes no more of them now; try again in {retry_after} s.",
        None,
        "rate_limit_exceeded",
        retry_after,
    )


def _over_memory(request: str, length: int, limits: Limits, pinned: int) -> Refused:
    """`pinned` pages would be enough; 0 if not."""
    taken = f", {pinned} of them pinned for others" if pinned else ""
    unpin = "end pins (GET /cache lists them, DELETE /cache/pin/ID ends one), " if pinned else ""
    return Refused(
        request,
        400,
        f"The request needs {pages_for(length, limits.page_size)} pages of KV cache ({length} tokens), but "
        f"the server has {limits.num_pages} ({limits.num_pages * limits.page_size} tokens){taken}. Lower "
        f"max_tokens, {unpin}or start the server with a larger --kv-memory.",
        None if pinned else "max_tokens",
        "kv_cache_exceeded",
    )


def without_grammar(request: Request, error: GrammarError | CompilerError | BusyError) -> Refused:
    """A grammar that is wrong or can't be enforced, that our compiler failed at, or that has no room."""
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
    return Refused(request.id, 400, f"{param}: {_shortened(error)}", param, "invalid_grammar")


def left_grammar(request: Request, error: GrammarError | CompilerError) -> ReplyError:
    """The error of a reply that can't go on in its grammar: the grammar's fault (400) or the server's."""
    param = request.grammar_param
    if isinstance(error, CompilerError):
        return ReplyError(f"{param}: {_shortened(error)}")
    return ReplyError(f"{param}: {_shortened(error)}", 400, param, "invalid_grammar")


def _shortened(error: Exception) -> str:
    reason = str(error)
    return reason if len(reason) <= MOST_SAID else f"{reason[:MOST_SAID]}…"


def pages_for(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def take_residence(
    request: Request, slot: int, cache: PrefixCache, reserve: int, alone: bool
) -> Residence | None:
    """Locks the matched prefix and takes pages for the rest and one token more; None if they lack.

    `reserve` pages stay available to those who run already. `alone`: nobody else runs, so whatever the
    cache holds may go, but for what is pinned; then no page is matched in part, which would keep one page
    too many locked. That also goes for a match that the page store's pages go beyond.
    """
    fetched = request.fetch.end * cache.page_size if request.fetch is not None else 0
    restoring = fetched > cache.matched(request.namespace, bytes(request.tokens))
    lease = _lease_with_room(request, cache, reserve, whole_pages=restoring)
    if lease is None and alone:
        lease = _lease_with_room(request, cache, reserve, whole_pages=True)
    if lease is None:
        return None
    pages = cache.allocate(_missing_pages(request, lease, cache.page_size))
    assert pages is not None, "pages were counted before"
    home = Residence(
        slot=slot,
        lease=lease,
        pages=lease.pages + pages,
        prefill_end=request.length,
        planned=lease.matched,
    )
    if restoring:
        home.restore_end = fetched
    home.saved_pages = home.ready // cache.page_size
    return home


def _lease_with_room(
    request: Request, cache: PrefixCache, reserve: int, whole_pages: bool = False
) -> Lease | None:
    limit = 0 if request.wants_prompt_logprobs else request.length - 1
    if whole_pages:
        limit = len(cache.whole_pages(request.namespace, request.slice(0, limit))) * cache.page_size
    tokens = bytes(request.tokens)
    lease = cache.acquire(request.namespace, tokens, limit)
    if _missing_pages(request, lease, cache.page_size) + reserve <= cache.available():
        return lease
    cache.release(lease, tokens[: lease.matched * TOKEN_BYTES], lease.pages)
    return None


def _missing_pages(request: Request, lease: Lease, page_size: int) -> int:
    more = 1 if request.length < request.max_length else 0
    return pages_for(request.length + more, page_size) - len(lease.pages)
