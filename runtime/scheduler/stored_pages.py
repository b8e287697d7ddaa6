"""Asks the page store for prompts' pages and states and tells it which to save, forget or discard."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ...radix_cache import KEY_BYTES, NO_KEY, Missing, PrefixCache, PrefixMatch, split_keys
from ..messages import (
    CacheDropped,
    DiscardPages,
    DropCache,
    EndFetch,
    FetchPages,
    FindPages,
    FlushPages,
    ForgetPages,
    NeededEntries,
    PagesFetched,
    PagesFound,
    PageStoreInbox,
    StepPlan,
    StoreCounts,
    ToPageStore,
    UsedPages,
)
from .page_saver import PageSaver
from .plan import StepInFlight
from .request import Phase, Request
from .stored_prefix import Fetch, StoreLookup

AHEAD_DIVISOR = 2  # pages fetched before their requests can start take host memory divided by this
MIN_PREFILL_TOKENS = 512
"""Fewer tokens are computed here at once, in less time than a prefill server takes to begin."""
MAX_LOOKUPS = 4  # look-ups of a prompt before it starts; then it is computed even if its pages are stored


class StoredPages:
    """The requests to the page store. Without one (`host_pages` 0) it does nothing.

    When a prompt is queued, the store is asked how many of its pages it has (a look-up). It fetches the found
    pages into its host memory of `host_pages` pages: early while they fit into half of it, otherwise when the
    prompt could start. It holds the pages until they are restored, the tree has more of the
    prompt, or the request ends.
    """

    def __init__(
        self, cache: PrefixCache, host_pages: int, write_through: bool = False, asks_prefill: bool = False
    ) -> None:
        """asks_prefill: whether prefill servers may compute the pages that the store lacks"""
        self._cache = cache
        self._asks_prefill = asks_prefill
        self._saver = PageSaver(cache, write_through and host_pages > 0)
        self.enabled = host_pages > 0
        self._most_ahead = host_pages // AHEAD_DIVISOR
        self._held_pages = 0  # pages of all fetches that were requested and are not over
        self._unanswered: dict[int, Request] = {}  # fetch id -> request without an answer
        self._found: dict[int, Request] = {}  # fetch id -> request that has not yet requested its pages
        self._urgent = 0  # id of the last fetch that was requested because its request could start
        self._over: list[int] = []  # ids of fetches that the store may drop after the next step
        self._last = 0
        self._may_fetch = False  # whether something has changed since `fetch_ahead` last looked
        self._to_store: list[PageStoreInbox] = []
        self._to_model: list[ToPageStore] = []
        self.counts = StoreCounts()
        """the page store's last report"""

    def look_up(self, request: Request) -> None:
        """Asks the store for the full pages among the first `most_cached` tokens that are not in the tree."""
        if self.enabled and request.namespace is not None and request.most_cached:
            self._look_up(request, 1)

    def _look_up(self, request: Request, attempt: int) -> None:
        assert request.namespace is not None, "a request without a namespace shares no pages"
        tokens = request.slice(0, request.most_cached)
        missing = self._cache.find_missing(request.namespace, tokens)
        of_others = split_keys(b"".join(other.keys for other in missing.others))
        keys = [*split_keys(missing.keys), *(key for key in of_others if key != NO_KEY)]
        in_copy = {key for key in keys if self._saver.is_in_copy(key)}
        request.stored.lookup = StoreLookup(missing, keys, in_copy, attempt)
        if not keys:
            return
        self._saver.prioritize(keys)
        self._last += 1
        request.stored.fetch = Fetch(self._last, missing.first)
        self._unanswered[self._last] = request
        others = [
            NeededEntries(keys, np.array(needed, np.int32).tobytes()) for keys, needed in missing.others
        ]
        prompt = self._choose_prefill(request, missing)
        self._to_store.append(
            FindPages(self._last, request.namespace, missing.keys, others, prompt, missing.first)
        )

    def _choose_prefill(self, request: Request, missing: Missing) -> bytes:
        """The tokens up to the last missing page, if a prefill server may compute that."""
        pages = len(missing.keys) // KEY_BYTES
        if (
            not self._asks_prefill
            or request.adapter is not None
            or pages * self._cache.page_size < MIN_PREFILL_TOKENS
        ):
            return b""
        return request.slice(0, (missing.first + pages) * self._cache.page_size)

    def take_found(self, message: PagesFound) -> None:
        request = self._unanswered.pop(message.fetch, None)
        if request is None:
            return  # the fetch was ended
        fetch, lookup = request.stored.fetch, request.stored.lookup
        assert fetch is not None and lookup is not None
        lookup.answer(message.pages)
        if message.pages:
            fetch.found = message.pages
            if message.end is not None:
                fetch.only_end = fetch.first + message.end
                fetch.windows = lookup.list_windows(fetch.only_end) if self._cache.windows else []
            self._may_fetch = True
            self._found[message.fetch] = request
        else:
            request.stored.fetch = None

    def note_queued(self, request: Request) -> None:
        """Notes that the request waits, so that its pages may be fetched."""
        self._may_fetch |= request.stored.fetch is not None

    def fetch_ahead(self, order: Callable[[Request], object]) -> None:
        """Fetches pages for waiting requests in `order`, as far as host memory allows."""
        if not self._may_fetch:
            return
        self._may_fetch = False
        waiting = [each for each in self._found.values() if each.phase is Phase.WAITING]
        for request in sorted(waiting, key=order):  # type: ignore[arg-type]
            assert request.stored.fetch is not None
            if self._held_pages and self._held_pages + request.stored.fetch.size > self._most_ahead:
                return
            self._fetch(request.stored.fetch)

    def _fetch(self, fetch: Fetch) -> None:
        fetch.requested = True
        self._unanswered[fetch.id] = self._found.pop(fetch.id)
        self._held_pages += fetch.size
        self._to_store.append(FetchPages(fetch.id))

    def take_fetched(self, message: PagesFetched) -> None:
        request = self._unanswered.pop(message.fetch, None)
        if request is None:
            return  # the fetch was ended
        fetch = request.stored.fetch
        assert fetch is not None
        is_incomplete = message.pages < fetch.size
        self._held_pages -= fetch.size - message.pages
        self._may_fetch = True
        fetch.pages = message.pages
        if not message.pages or (is_incomplete and fetch.only_end is not None):
            self.end(request)

    def awaits(self, request: Request, found: PrefixMatch, busy: bool) -> bool:
        """Whether a request that could start waits for its pages.

        Fetches the found pages, for one request at a time even if the memory for fetching ahead is used up.
        Looks up again if the tree has lost pages or a state of the prompt, or the store has got more.
        found: the prompt's match in the tree
        busy: whether other requests hold slots, so that further steps copy evicted pages to the store
        """
        fetch = request.stored.fetch
        if fetch is not None and fetch.pages is None:
            if not fetch.unanswered and self._urgent not in self._unanswered:
                self._urgent = fetch.id
                self._fetch(fetch)
            return True
        lookup = request.stored.lookup
        if lookup is None:
            return False
        if busy and any(map(self._saver.is_in_copy, lookup.in_copy)):
            return True
        has_lost_pages = found.paged // self._cache.page_size < lookup.asked.first
        if fetch is None:
            has_lost_pages |= found.length < lookup.asked.start
        else:
            has_lost_pages |= self._lacks_windows(request, fetch)
        if has_lost_pages or self._store_has_more(lookup):
            self.end(request)
            if lookup.attempt < MAX_LOOKUPS:
                self._look_up(request, lookup.attempt + 1)
        return request.stored.fetch is not None and request.stored.fetch.unanswered

    def _lacks_windows(self, request: Request, fetch: Fetch) -> bool:
        """Whether the tree has lost windowed pages that were not fetched, because it had them."""
        if fetch.only_end is None or not fetch.windows:
            return False
        assert request.namespace is not None, "a request without a namespace shares no pages"
        lacking = self._cache.list_lacking_windows(
            request.namespace, request.freeze_tokens(), fetch.only_end * self._cache.page_size
        )
        return any(
            not set(pages) <= set(fetched) for pages, fetched in zip(lacking, fetch.windows, strict=True)
        )

    def _store_has_more(self, lookup: StoreLookup) -> bool:
        """Whether the store has got pages or states since the look-up and may be asked again."""
        if not lookup.in_copy or lookup.attempt == MAX_LOOKUPS:
            return False
        return not self._saver.is_in_copy(next(iter(lookup.in_copy)))

    def end(self, request: Request) -> None:
        """Ends the request's fetch. Pages that a planned step restores stay until that step has run."""
        fetch, request.stored.fetch = request.stored.fetch, None
        if fetch is None:
            return
        self._may_fetch = True
        self._unanswered.pop(fetch.id, None)
        self._found.pop(fetch.id, None)
        if fetch.requested:
            self._held_pages -= fetch.size
        if fetch.restored:
            self._over.append(fetch.id)
        else:
            self._to_store.append(EndFetch(fetch.id))

    def attach(self, plan: StepPlan, flight: StepInFlight) -> None:
        """Adds the pages to save before the step runs, and the fetches that are over after it."""
        plan.saves = self._saver.choose_before(plan, flight)
        plan.saved_states = self._saver.take_states(plan.step)
        plan.fetches_over, self._over = self._over, []

    def save(self, flight: StepInFlight) -> None:
        """With write-through, saves the pages that a finished step computed."""
        self._saver.step_done(flight.step)
        self._to_model += self._saver.write_through(
            [each for each in flight.requests if each.held is not None]
        )

    def release(self, request: Request) -> None:
        """Tells the store which pages were used, before the request gives them back. With write-through,
        saves its last pages."""
        keys = self._saver.find_keys(request)
        if keys:
            self._to_store.append(UsedPages(keys, self._saver.name_used(request, keys)))
        self._to_model += self._saver.write_through([request], at_once=True)

    def flush(self) -> None:
        """Saves the pages that would be lost with the KV cache. Ends all fetches."""
        over, self._over = self._over, []
        self._to_model.append(
            FlushPages(self._saver.list_remaining(), over, self._saver.list_remaining_states())
        )

    def forget(self, order: DropCache, dropped: CacheDropped, requests: Iterable[Request]) -> None:
        """Forgets the pages of a namespace or scope, and the look-ups of waiting `requests` in it."""

        def matches(namespace: str) -> bool:
            if order.namespace is None:
                return namespace.startswith(order.scope)
            return namespace == order.namespace

        for request in requests:
            if request.namespace is not None and matches(request.namespace) and request.held is None:
                self.end(request)
                request.stored.lookup = None
        self._saver.forget(matches)
        self._to_model.append(ForgetPages(order.scope, order.namespace, order.client, dropped))

    def discard(self, request: Request) -> None:
        """Has the store drop the pages of a request whose KV is wrong; the fault may come from its pages."""
        if self.enabled and request.namespace is not None:
            assert self._cache.keys is not None, "a cache with a page store has keys"
            keys = self._cache.keys.compute(request.namespace, bytes(request.tokens))
            if keys:
                others = self._cache.keys.name_others(keys)
                self._saver.discard({key for some in (keys, *others) for key in split_keys(some)})
                self._to_model.append(DiscardPages(request.namespace, keys, others))

    def take_messages(self) -> list[PageStoreInbox]:
        """Returns the messages to the page store since the last call."""
        messages, self._to_store = self._to_store, []
        return messages

    def take_messages_to_model(self) -> list[ToPageStore]:
        """Returns the messages that reach the page store in order with the model's steps, since the last
        call. A step must be sent after those that were queued before it was planned."""
        messages, self._to_model = self._to_model, []
        return messages
