"""Compares a request's prompts with earlier ones, and remembers them for later ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Scope

from ...runtime.errors import RequestError
from ...runtime.messages import ExplainPrompt, Generate, PathNode, PromptExplained, Tokens
from ..core.attempts import run_off_loop
from ..core.cache_misses.explanation import (
    Explanation,
    PromptComparison,
    count_by_cause,
    divide_by_message,
    explain,
)
from ..core.cache_misses.message_places import find_message_places
from ..core.cache_misses.outline import Outline
from ..core.cache_misses.recent_prompts import Place, Seen
from ..core.prepare import Job, is_shared_by_keys
from ..core.replica.merging import number_node
from ..core.reply import Reply
from ..core.validation import invalid_field
from .http_service import HttpService
from .tenants import owner_of

HEADER = "x-explain-cache"
QUERY_SECONDS = 10.0
LONG_TOKENS = 4096
"""Tokens of a prompt that is compared on the event loop. Longer prompts are compared on another thread."""


class CacheMissTracker:
    """The prompts of one request.

    `computed` and `ended` are called as the reply begins and ends, and `count` once it has been sent.
    """

    def __init__(self, http: HttpService, owner: str, job: Job, *, explains: bool) -> None:
        self._http = http
        self._owner = owner
        self._explains = explains
        self._step = job.choices
        self._requests = job.requests[:: self._step]
        self._is_computed = False
        self._seen: list[Seen | None] = []  # the remembered prompts; empty before that
        self._matched: list[int] = []  # tokens of each prompt; empty until the reply has ended
        self._nodes: list[PathNode] = []  # nodes of the tree that the first prompt goes through
        self._shared_by: list[int] | None = None  # None: not asked for, or not told
        self._comparisons = [self._compare(request, job.rendered.outline) for request in self._requests]

    @classmethod
    async def begin(cls, http: HttpService, job: Job, scope: Scope) -> CacheMissTracker:
        """The tracker of a request that is about to be sent.

        Raises `RequestError` if the request wants an explanation of several prompts.
        """
        explains = job.draft.explains or _is_wanted_by_header(scope)
        tracker = cls(http, owner_of(scope), job, explains=explains)
        if explains:
            await tracker.ask_tree()
        return tracker

    async def ask_tree(self, ends: Sequence[int] = ()) -> int:
        """Adds the tree's knowledge of the prompt to the comparison, with how many branches share each of the
        `ends`. Returns how many of the prompt's tokens a request would match now. The last one does not
        count: a request computes it, unless a grammar or a schema forces the beginning of its reply."""
        if len(self._comparisons) > 1:
            raise invalid_field(
                "explain_cache",
                f"is for one prompt, but the request has {len(self._comparisons)}: send "
                "each in a request of its own",
            )
        request, engine = self._requests[0], self._http.service.engine
        name = request.namespace
        if name is None:
            return 0
        answer = await engine.ask(
            lambda query: ExplainPrompt(engine.client, query, name, request.prompt, [*ends]),
            QUERY_SECONDS,
            replica := engine.find_replica(request),
        )
        if not isinstance(answer, PromptExplained):
            raise RequestError(
                "The scheduler did not answer in time; try again in a moment.", status=503, code="no_answer"
            )
        config = self._http.service.config
        if not (config.has_several_keys and is_shared_by_keys(name)):
            comparison = self._comparisons[0]
            behind = answer.behind if answer.matched < comparison.length else b""  # else they are a reply
            self._comparisons[0] = replace(
                comparison, remembered=answer.remembered, behind=behind, paged=answer.paged
            )
            self._shared_by, self._nodes = answer.shared_by or None, answer.nodes
            for node in self._nodes:
                node.id = None if node.id is None else number_node(node.id, replica, engine.replicas)
        return min(answer.matched, self._comparisons[0].length - 1)

    async def explain(self, matched: int) -> Explanation:
        comparison, decode = self._comparisons[0], self._decode
        if comparison.length <= LONG_TOKENS:
            return explain(comparison, matched, decode)
        return await run_off_loop(self._http.service.work, partial(explain, comparison, matched, decode))

    async def explain_messages(self) -> Explanation:
        """Explains the prompt as it is now in the cache, with the tokens of each of its messages."""
        comparison, tokenizer = self._comparisons[0], self._http.service.tokenizer
        messages = comparison.outline.messages
        find = partial(find_message_places, comparison.tokens, messages, tokenizer)
        is_long = comparison.length > LONG_TOKENS
        places = await run_off_loop(self._http.service.work, find) if is_long else find()
        matched = await self.ask_tree(places)
        explanation = await self.explain(matched)
        if messages:
            explanation.messages = divide_by_message(self._comparisons[0], matched, places, self._shared_by)
            explanation.nodes = self._nodes
        return explanation

    def computed(self, reply: Reply) -> None:
        """Remembers the prompts once each has a first token, after the tokens that are ready were sent."""
        if self._is_computed or not all(choice.has_begun for choice in reply.choices[:: self._step]):
            return
        self._is_computed = True
        asyncio.get_running_loop().call_soon(self._remember)

    def _remember(self) -> None:
        if self._seen:
            return
        recent = self._http.service.recent
        self._seen = [
            None
            if comparison.is_off or request.namespace is None
            else recent.add(self._place(request.namespace), comparison.tokens, comparison.outline.parts)
            for request, comparison in zip(self._requests, self._comparisons, strict=True)
        ]

    async def ended(self, reply: Reply) -> None:
        """Remembers the replies, and explains the prompt if the request asks for it."""
        self._remember()
        choices = reply.choices[:: self._step]
        for seen, choice in zip(self._seen, choices, strict=False):
            if seen is not None:
                self._http.service.recent.extend(seen, choice.tokens)
        self._matched = [choice.cached_tokens for choice in choices]
        if self._explains:
            reply.explanation = await self.explain(self._matched[0])

    async def count(self) -> None:
        """Counts the tokens that were not cached, by cause."""
        for comparison, matched in zip(self._comparisons, self._matched, strict=False):
            await self._count(comparison, matched)

    async def _count(self, comparison: PromptComparison, matched: int) -> None:
        count = partial(count_by_cause, comparison, matched, self._decode)
        if comparison.length <= LONG_TOKENS or not comparison.differs:
            causes, _ = count()
        else:
            causes, _ = await run_off_loop(self._http.service.work, count)
        for cause, tokens in causes.items():
            self._http.metrics.missed.labels(cause).inc(tokens)

    def _compare(self, request: Generate, outline: Outline) -> PromptComparison:
        service = self._http.service
        model = service.engine.check_serving()
        is_off = (
            request.namespace is None
            or request.sampling.prompt_logprobs is not None
            or not service.config.prefix_cache
        )
        if is_off or request.namespace is None:
            return PromptComparison(tokens=request.prompt, outline=outline, near=None, is_off=True)
        place = self._place(request.namespace)
        return PromptComparison(
            tokens=request.prompt,
            outline=outline,
            near=service.recent.nearest(place, request.prompt, outline.parts),
            elsewhere=service.recent.elsewhere(place, request.prompt),
            page_size=model.page_size,
        )

    def _place(self, namespace: str) -> Place:
        return Place(self._owner, namespace)

    def _decode(self, tokens: Tokens) -> str:
        return self._http.service.tokenizer.decode(tokens, skip_special_tokens=False)


def _is_wanted_by_header(scope: Scope) -> bool:
    return Headers(scope=scope).get(HEADER, "").lower() in ("1", "true")
