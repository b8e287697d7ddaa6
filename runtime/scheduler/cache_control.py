"""Answers the messages about the cache: reports, pins, leases, drops, explanations."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias, assert_never

from ...radix_cache import PrefixCache
from ..messages import (
    AwaitTools,
    CacheControl,
    CacheDropped,
    CheckPin,
    DropCache,
    EndLease,
    ExplainPrompt,
    ForgetReplies,
    PathNode,
    PinPrefix,
    PromptExplained,
    QueryCache,
    QueryNode,
    UnpinPrefix,
)
from .cache_reports import PREFIX_TOKENS, CacheReports
from .counts import HitCounter
from .lease_registry import LeaseRegistry
from .lifecycle import Lifecycle
from .replies import Replies
from .stored_pages import StoredPages

Deferred: TypeAlias = DropCache | ExplainPrompt | AwaitTools | EndLease


class CacheController:
    """Defers drops, explanations and changes of leases until the requests that had ended when the message
    came have given their pages to the tree. Carries them out in the order in which they came."""

    def __init__(
        self,
        cache: PrefixCache,
        leases: LeaseRegistry,
        stored: StoredPages,
        requests: Lifecycle,
        hits: HitCounter,
        replies: Replies,
        *,
        has_drafts: bool,
    ) -> None:
        """has_drafts: whether the model process drafts from earlier replies"""
        self.reports = CacheReports(cache, leases, stored, hits, replies)
        self._cache = cache
        self._leases = leases
        self._stored = stored
        self._requests = requests
        self._replies = replies
        self._has_drafts = has_drafts
        self._to_model: list[ForgetReplies] = []
        self._deferred: deque[tuple[Deferred, set[str]]] = deque()
        """deferred messages, each with the ids of the requests that had ended when it came"""

    def handle(self, message: CacheControl | AwaitTools | EndLease, now: float) -> None:
        """`now` is in seconds since 1970."""
        match message:
            case DropCache() | ExplainPrompt() | AwaitTools() | EndLease():
                self._defer(message)
            case QueryCache():
                self.reports.answer(message, now, self._requests.waiting)
            case QueryNode():
                self._replies.add(message.client, self.reports.read_node(message))
            case CheckPin():
                self._replies.add(message.client, self._leases.check_pin(message))
            case PinPrefix():
                self._replies.add(message.client, self._leases.pin(message, now, self._find_longest()))
            case UnpinPrefix():
                self._replies.add(message.client, self._leases.unpin(message))
            case _:
                assert_never(message)

    def carry_out(self) -> None:
        """Carries out the deferred messages whose requests have been released."""
        while self._deferred:
            message, ended = self._deferred[0]
            if any(request.id in ended for request in self._requests.residents.values()):
                return
            self._deferred.popleft()
            match message:
                case DropCache():
                    self._drop(message)
                case ExplainPrompt():
                    self._replies.add(message.client, self._explain(message))
                case AwaitTools(request, tools):
                    self._leases.await_tools(request, tools)
                case EndLease():
                    self._leases.end(message)

    def take_messages_to_model(self) -> list[ForgetReplies]:
        messages, self._to_model = self._to_model, []
        return messages

    def drop_client(self, client: int) -> None:
        """Forgets the questions of a client that has died. Its other messages change the cache, so they are
        still carried out."""
        self._deferred = deque(
            (message, ended)
            for message, ended in self._deferred
            if not (isinstance(message, ExplainPrompt) and message.client == client)
        )
        self.reports.drop_client(client)

    def expire(self, now: float) -> None:
        """Ends leases and pins whose time is over, and sends reports that have waited too long for the
        page store. `now` is in seconds since 1970."""
        self._leases.expire(now)
        self.reports.expire(now)

    @property
    def next_expiry(self) -> float | None:
        """When the next pin, lease or wait for the page store ends, in seconds since 1970."""
        ends = [self._leases.next_expiry, self.reports.next_expiry]
        return min((end for end in ends if end is not None), default=None)

    def _defer(self, message: Deferred) -> None:
        if isinstance(message, EndLease):
            self._requests.drop_lease_terms(message)
        ended = {each.id for each in self._requests.residents.values() if each.is_answered}
        self._deferred.append((message, ended))
        self.carry_out()

    def _drop(self, message: DropCache) -> None:
        in_scope = self._cache.reports.namespaces(message.scope)
        names = [*in_scope] if message.namespace is None else [message.namespace]
        dropped = [self._cache.drop(name) for name in names]
        if self._has_drafts:
            self._requests.take_ended()  # whose replies the model process does not have yet
            self._to_model.append(ForgetReplies(message.scope, message.namespace))
        pages, tokens = sum(each.pages for each in dropped), sum(each.tokens for each in dropped)
        answer = CacheDropped(message.query, pages, tokens)
        if self._stored.enabled:
            self._stored.forget(message, answer, self._requests.open)
        else:
            self._replies.add(message.client, answer)

    def _explain(self, message: ExplainPrompt) -> PromptExplained:
        found = self._cache.reports.divergence(message.namespace, message.tokens, PREFIX_TOKENS)
        if not message.ends:
            return PromptExplained(message.query, *found)
        path, shared_by = self._cache.reports.path(message.namespace, message.tokens, message.ends)
        nodes = [PathNode(*each) for each in path]
        return PromptExplained(message.query, *found, nodes=nodes, shared_by=shared_by)

    def _find_longest(self) -> int:
        """How many tokens the longest open request may have."""
        return max((request.max_length for request in self._requests.open), default=0)
