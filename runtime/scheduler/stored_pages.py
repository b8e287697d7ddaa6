"""What the model process keeps outside the KV cache: saved when it is evicted, restored for prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...radix_cache import PrefixCache, split_keys
from ..messages import (
    CacheDropped,
    DiscardPages,
    DropCache,
    EndFetch,
    Fetched,
    FetchPages,
    FindPages,
    FlushPages,
    ForgetPages,
    Found,
    Message,
    PageStoreInbox,
    StepPlan,
    UsedPages,
)
from .page_saver import PageSaver
from .plan import StepInFlight
from .request import Fetch, LookUp, Phase, Request

AHEAD_PART = 2  # of host memory is for what is fetched before its request's turn, at most
MOST_LOOK_UPS = 4  # before a start: what others evict again and again is computed


class StoredPages:
    """Asks the page store about prompts, and tells it of evictions. Without a store it does nothing.

    When a prompt is queued the store is asked what it has of it. It brings that into its host memory, of
    `host_pages` pages, ahead of the prompt's turn while there is room, else at its turn, and holds it until
    the prompt has it, finds better in the tree, or ends.
    """

    def __init__(self, cache: PrefixCache, host_pages: int, write_through: bool = False) -> None:
        self._cache = cache
        self._saver = PageSaver(cache, write_through and host_pages > 0)
        self.enabled = host_pages > 0
        self._most_ahead = host_pages // AHEAD_PART
        self._held_pages = 0  # by the fetches that were asked for
        self._unanswered: dict[int, Request] = {}
        self._found: dict[int, Request] = {}  # to be asked for
        self._hurried = 0  # the last fetch that was asked for at its request's turn
        self._over: list[int] = []
        self._last = 0
        self._may_bring = False  # something has changed since it was last looked for what to bring
        self._to_store: list[PageStoreInbox] = []

    def look_up(self, request: Request) -> None:
        """Asks for the full pages of its tokens that the tree lacks, but for what must be computed."""
        if self.enabled and request.namespace is not None and not request.wants_prompt_logprobs:
            self._look_up(request, 1)

    def _look_up(self, request: Request, number: int) -> None:
        assert request.namespace is not None, "nobody may find what is in no namespace"
        missing = self._cache.missing(request.namespace, request.slice(0, request.length - 1))
        keys = split_keys(missing.keys)
        coming = {key for key in keys if self._saver.is_coming(key)}
        request.look_up = LookUp(missing.first, keys, coming, number)
        if not keys:
            return
        self._saver.hurry(keys)
        self._last += 1
        request.fetch = Fetch(self._last, missing.first)
        self._unanswered[self._last] = request
        self._to_store.append(FindPages(self._last, request.namespace, missing.keys))

    def found(self, message: Found) -> None:
        request = self._unanswered.pop(message.fetch, None)
        if request is None:
            return  # it was ended
        assert request.fetch is not None and request.look_up is not None
        request.look_up.answer(message.pages)
        if message.pages:
            request.fetch.found = message.pages
            self._may_bring = True
            self._found[message.fetch] = request
        else:
            request.fetch = None

    def enter(self, request: Request) -> None:
        """It waits from now on."""
        self._may_bring |= request.fetch is not None

    def fetch_ahead(self, order: Callable[[Request], object]) -> None:
        """Brings what was found for those who wait, as far as there is room, the first in `order` first."""
        if not self._may_bring:
            return
        self._may_bring = False
        waiting = [each for each in self._found.values() if each.phase is Phase.WAITING]
        for request in sorted(waiting, key=order):  # type: ignore[arg-type]
            assert request.fetch is not None
            if self._held_pages and self._held_pages + request.fetch.size > self._most_ahead:
                return
            self._bring(request.fetch)

    def _bring(self, fetch: Fetch) -> None:
        fetch.asked = True
        self._unanswered[fetch.id] = self._found.pop(fetch.id)
        self._held_pages += fetch.size
        self._to_store.append(FetchPages(fetch.id))

    def fetched(self, message: Fetched) -> None:
        request = self._unanswered.pop(message.fetch, None)
        if request is None:
            return  # it was ended
        fetch = request.fetch
        assert fetch is not None
        self._held_pages -= fetch.size - message.pages
        self._may_bring = True
        fetch.pages = message.pages
        if not message.pages:
            self.end(request)

    def awaits(self, request: Request, busy: bool) -> bool:
        """Its pages are on their way; or asked for again, as the tree lost some or the store got more.

        Whose turn it is has its pages brought though there be no room ahead of turns: one at a time. `busy`:
        steps are planned before its first, which copy evicted pages out.
        """
        fetch = request.fetch
        if fetch is not None and fetch.pages is None:
            if not fetch.unanswered and self._hurried not in self._unanswered:
                self._hurried = fetch.id
                self._bring(fetch)
            return True
        asked = request.look_up
        if asked is None:
            return False
        if busy and any(map(self._saver.is_coming, asked.coming)):
            return True
        if self._lost(request, asked) or self._has_more(asked):
            self.end(request)
            if asked.number < MOST_LOOK_UPS:
                self._look_up(request, asked.number + 1)
        return request.fetch is not None and request.fetch.unanswered

    def _lost(self, request: Request, asked: LookUp) -> bool:
        """Whether the tree has less than it had."""
        return len(self._cache.whole_pages(request.namespace, bytes(request.tokens))) < asked.first

    def _has_more(self, asked: LookUp) -> bool:
        """Whether the store has more than it had, unless it won't be asked any more."""
        if not asked.coming or asked.number == MOST_LOOK_UPS:
            return False
        return not self._saver.is_coming(next(iter(asked.coming)))

    def end(self, request: Request) -> None:
        """What was or is being fetched for it is not needed any more, unless a step is to restore it."""
        fetch, request.fetch = request.fetch, None
        if fetch is None:
            return
        self._may_bring = True
        self._unanswered.pop(fetch.id, None)
        self._found.pop(fetch.id, None)
        if fetch.asked:
            self._held_pages -= fetch.size
        if fetch.restored:
            self._over.append(fetch.id)
        else:
            self._to_store.append(EndFetch(fetch.id))

    def attach(self, plan: StepPlan, flight: StepInFlight) -> None:
        """Puts into the next step what must be done before it."""
        plan.saves = self._saver.before(plan, flight)
        plan.fetches_over, self._over = self._over, []

    def save(self, flight: StepInFlight) -> list[Message]:
        """What a step that is over has computed is kept, if that is the policy."""
        self._saver.is_over(flight.step)
        return self._saver.through([request for request in flight.requests if request.home is not None])

    def leave(self, request: Request) -> list[Message]:
        """Before it gives its pages back: the last are kept too, and all count as used."""
        keys = self._saver.keys(request)
        if keys:
            self._to_store.append(UsedPages(keys))
        return self._saver.through([request], at_once=True)

    def flush(self) -> FlushPages:
        """What would be lost with the KV cache. No fetch is needed any more."""
        over, self._over = self._over, []
        return FlushPages(self._saver.at_the_end(), over)

    def forget(self, order: DropCache, dropped: CacheDropped, requests: Iterable[Request]) -> ForgetPages:
        """Gives up a namespace, or all that begin with a scope, for those of `requests` too that wait."""

        def is_meant(own: str) -> bool:
            return own.startswith(order.scope) if order.namespace is None else own == order.namespace

        for request in requests:
            if request.namespace is not None and is_meant(request.namespace) and request.home is None:
                self.end(request)
                request.look_up = None
        self._saver.forget(is_meant)
        return ForgetPages(order.scope, order.namespace, order.client, dropped)

    def discard(self, request: Request) -> list[Message]:
        """Gives up the pages of a request whose KV is wrong: the fault may have come with them."""
        if not self.enabled or request.namespace is None:
            return []
        keys = self._cache.keys(request.namespace, bytes(request.tokens))
        return [DiscardPages(request.namespace, keys)] if keys else []

    def messages_to_store(self) -> list[PageStoreInbox]:
        messages, self._to_store = self._to_store, []
        return messages
