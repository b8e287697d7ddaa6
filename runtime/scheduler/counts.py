"""What the scheduler counts, and its list of open requests: sizes and states, without tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from msgspec import UNSET, UnsetType

from ..messages import HitRate, OpenRequest, QueryRequests, RequestList, RequestState
from .request import Phase, Request

RECENT_REQUESTS = 256
MAX_LISTED = 200  # requests in one list: the scheduler's loop waits while it is made


@dataclass(slots=True)
class Counts:
    """Counts since the start, with the names of the fields of `messages.Stats`."""

    prompt_tokens_cached: int = 0
    prompt_tokens_looked_up: int = 0  # prompt tokens of requests that read the cache
    prompt_tokens_computed: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    retractions: int = 0
    steps: int = 0
    reply_steps: int = 0  # steps that sampled tokens of a reply, counted for each reply
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)

    def count_drafts(self, source: str, drafted: int, accepted: int) -> None:
        self.drafted[source] = self.drafted.get(source, 0) + drafted
        self.accepted[source] = self.accepted.get(source, 0) + accepted


class HitCounter:
    """Counts the prompt tokens of requests that read the cache, and how many of them were cached."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_REQUESTS)

    def add(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._counts.prompt_tokens_looked_up += prompt_tokens
        self._counts.prompt_tokens_cached += cached_tokens
        self._recent.append((prompt_tokens, cached_tokens))

    def measure(self) -> HitRate:
        """The hit rate since the start."""
        return _make_rate(self._counts.prompt_tokens_looked_up, self._counts.prompt_tokens_cached)

    def measure_recent(self) -> HitRate:
        """The hit rate of the last `RECENT_REQUESTS` requests."""
        prompt, cached = (sum(each[part] for each in self._recent) for part in (0, 1))
        return _make_rate(prompt, cached, len(self._recent))


def _make_rate(prompt: int, cached: int, requests: int | UnsetType = UNSET) -> HitRate:
    rate = round(cached / prompt, 4) if prompt else None
    return HitRate(rate=rate, prompt_tokens=prompt, cached_tokens=cached, requests=requests)


def list_requests(requests: Iterable[Request], query: QueryRequests, now: float) -> RequestList:
    """Lists the requests of the query's tenant, the oldest first. `now` is in monotonic seconds."""
    seen = [each for each in requests if query.tenant is None or each.tenant == query.tenant]
    return RequestList(query.query, len(seen), [_describe(each, now) for each in islice(seen, MAX_LISTED)])


def _describe(request: Request, now: float) -> OpenRequest:
    ready = 0 if request.held is None else min(request.held.ready, request.prompt_length)
    return OpenRequest(
        request.id,
        _name_state(request),
        round(now - request.arrived_at, 3),
        request.prompt_length,
        request.cached_tokens,
        ready,
        request.output_length,
    )


def _name_state(request: Request) -> RequestState:
    if request.phase is Phase.RUNNING:
        return "prefill" if request.computes_prompt else "decode"
    return "compiling" if request.phase is Phase.COMPILING else "waiting"
