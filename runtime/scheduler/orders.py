"""Orders, such as dropping the cache, that wait until ended requests have given their pages to the tree."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from ..messages import AwaitTools, DropCache, EndLease, ExplainPrompt, Message
from .cache_control import CacheController
from .lifecycle import Lifecycle
from .replies import Replies
from .stored_pages import StoredPages

Order: TypeAlias = DropCache | ExplainPrompt | AwaitTools | EndLease


class Orders:
    """Carries out orders one after the other. Each waits for the requests that had ended when it came."""

    def __init__(
        self,
        requests: Lifecycle,
        cache_control: CacheController,
        stored: StoredPages,
        replies: Replies,
        to_model: list[Message],
    ) -> None:
        """`to_model` collects messages to the model process."""
        self._requests = requests
        self._cache_control = cache_control
        self._stored = stored
        self._replies = replies
        self._to_model = to_model
        self._waiting: deque[tuple[Order, set[str]]] = deque()  # with the ids of those requests

    def add(self, order: Order) -> None:
        if isinstance(order, EndLease):
            self._requests.drop_lease_terms(order)
        ended = {each.id for each in self._requests.residents.values() if each.is_answered}
        self._waiting.append((order, ended))
        self.carry_out()

    def drop_client(self, client: int) -> None:
        """Removes the waiting `ExplainPrompt` orders of a client that has died. Its other orders change the
        cache, so they are still carried out."""
        self._waiting = deque(
            (order, ended)
            for order, ended in self._waiting
            if not (isinstance(order, ExplainPrompt) and order.client == client)
        )

    def carry_out(self) -> None:
        """Carries out the orders whose requests have been released."""
        while self._waiting:
            order, ended = self._waiting[0]
            if any(request.id in ended for request in self._requests.residents.values()):
                return
            self._waiting.popleft()
            match order:
                case DropCache():
                    self._drop_cache(order)
                case ExplainPrompt():
                    self._replies.add(order.client, self._cache_control.explain(order))
                case AwaitTools(request, tools):
                    self._cache_control.leases.await_tools(request, tools)
                case EndLease():
                    self._cache_control.leases.end(order)

    def _drop_cache(self, order: DropCache) -> None:
        dropped = self._cache_control.drop(order)
        if self._stored.enabled:
            self._to_model.append(self._stored.forget(order, dropped, self._requests.open))
        else:
            self._replies.add(order.client, dropped)
