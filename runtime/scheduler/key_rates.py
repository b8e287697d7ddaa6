"""Keeps the limits of API keys: requests and tokens per minute, and requests at once.

It has no clock: `now` is in seconds of a monotonic one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from ..api_keys import Allowance, Allowances, Quota
from ..messages import TOKEN_BYTES, Accepted, Generate, Message, Output, Outputs, Refused

MINUTE_S = 60.0
MAX_REFUSED = 1024  # refused requests that are remembered: the other choices of each follow at once
RETRY_CONCURRENT_S = 1.0  # Retry-After if too many requests are open: it is not known when one ends


@dataclass(slots=True)
class _Bucket:
    """An allowance that refills evenly to `limit` within a minute. It may be overdrawn."""

    limit: int
    left: float
    at: float  # time at which `left` was right

    def refill(self, limit: int, now: float) -> None:
        """Refills the allowance for the time since the last call; `limit` may have changed."""
        gained = (now - self.at) * self.limit / MINUTE_S
        self.left = min(self.left + gained, self.limit) + limit - self.limit
        self.limit, self.at = limit, now

    def wait_for(self, amount: float) -> float:
        """Seconds until `amount` is left; 0 if it is now."""
        return max(0.0, (amount - self.left) * MINUTE_S / self.limit)

    def allowance(self) -> Allowance:
        left = min(self.limit, max(0, math.floor(self.left)))
        return Allowance(self.limit, left, self.wait_for(self.limit))


@dataclass(slots=True)
class _Key:
    requests: _Bucket | None = None
    tokens: _Bucket | None = None
    open: Counter[str] = field(default_factory=Counter)  # number of running choices by request id

    def renew(self, quota: Quota, now: float) -> None:
        self.requests = _renew(self.requests, quota.requests_per_minute, now)
        self.tokens = _renew(self.tokens, quota.tokens_per_minute, now)

    def allowances(self) -> Allowances:
        return Allowances(
            None if self.requests is None else self.requests.allowance(),
            None if self.tokens is None else self.tokens.allowance(),
        )


@dataclass(slots=True)
class _Open:
    """A choice of a request that runs."""

    key: _Key
    client: int
    prompt_tokens: int | None  # prompt tokens as in the choice's `Quota`


class KeyRates:
    """Follows the messages of the tokenizer processes and the answers to them.

    A request is admitted while its key has a request left, the tokens of its prompts, and fewer requests open
    than it may have. The tokens of replies are taken as they are generated, so they may overdraw the
    allowance; then the next request waits until it is refilled.
    """

    def __init__(self) -> None:
        self._keys: defaultdict[str, _Key] = defaultdict(_Key)
        self._choices: dict[str, _Open] = {}
        self._refused: dict[str, None] = {}  # the last refused requests by id, in the order of their refusal

    def admit(self, message: Generate, now: float) -> Refused | bool:
        """Whether the choice may be submitted; False if its request was refused."""
        quota = message.quota
        if quota is None:
            return True
        key = self._keys[quota.key]
        request = _find_request(message.request)
        if quota.prompt_tokens is not None:
            key.renew(quota, now)
            if (refused := _find_refusal(message.request, key, quota)) is not None:
                self._note_refused(request)
                return refused
            self._refused.pop(request, None)
            _take(key.requests, 1)
            _take(key.tokens, quota.prompt_tokens)
        elif request in self._refused:
            return False
        key.open[request] += 1
        self._choices[message.request] = _Open(key, message.client, quota.prompt_tokens)
        return True

    def end(self, choice: str) -> None:
        """Notes that the choice has ended. Ignores unknown choices."""
        ended = self._choices.pop(choice, None)
        if ended is None:
            return
        request = _find_request(choice)
        ended.key.open[request] -= 1
        if not ended.key.open[request]:
            del ended.key.open[request]

    def drop_client(self, client: int) -> None:
        for choice in [choice for choice, each in self._choices.items() if each.client == client]:
            self.end(choice)

    def see(self, message: Message) -> None:
        """Counts the tokens of an answer, and tells the client what is left to its key."""
        if not self._choices:
            return
        match message:
            case Outputs(items):
                for output in items:
                    self._count(output)
            case Accepted(request) if (found := self._choices.get(request)) is not None:
                message.allowances = found.key.allowances()
            case Refused(request):
                self._return(request)

    def _return(self, choice: str) -> None:
        """Undoes the charge for a choice that its key's limits admitted but the scheduler refused."""
        refused = self._choices.get(choice)
        if refused is not None and refused.prompt_tokens is not None:
            _take(refused.key.requests, -1)
            _take(refused.key.tokens, -refused.prompt_tokens)
        if refused is not None:
            self._note_refused(_find_request(choice))
        self.end(choice)

    def _note_refused(self, request: str) -> None:
        self._refused[request] = None
        if len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]

    def _count(self, output: Output) -> None:
        found = self._choices.get(output.request)
        if found is None:
            return
        _take(found.key.tokens, len(output.tokens) // TOKEN_BYTES)
        if output.finish is not None:
            self.end(output.request)


def _renew(bucket: _Bucket | None, limit: int | None, now: float) -> _Bucket | None:
    if limit is None:
        return None
    if bucket is None:
        return _Bucket(limit, limit, now)
    bucket.refill(limit, now)
    return bucket


def _take(bucket: _Bucket | None, amount: int) -> None:
    if bucket is not None:
        bucket.left -= amount


def _find_request(choice: str) -> str:
    """The id of the choice's request. A choice's id is its request's with a number after it."""
    return choice.rpartition("-")[0]


def _find_refusal(choice: str, key: _Key, quota: Quota) -> Refused | None:
    prompt = quota.prompt_tokens or 0
    if key.tokens is not None and prompt > key.tokens.limit:
        return Refused(
            choice,
            400,
            f"The prompt has {prompt} tokens, but the API key {quota.key} may use {key.tokens.limit} "
            "tokens per minute. Shorten the prompt.",
            code="tokens_per_minute_exceeded",
            allowances=key.allowances(),
        )
    waits = []
    if quota.concurrent_requests is not None and len(key.open) >= quota.concurrent_requests:
        limit = f"{quota.concurrent_requests} request{'s' if quota.concurrent_requests > 1 else ''} at once"
        waits.append(_Wait(RETRY_CONCURRENT_S, limit, "concurrent_requests_exceeded"))
    if key.requests is not None and (wait := key.requests.wait_for(1)):
        limit = f"{key.requests.limit} requests per minute"
        waits.append(_Wait(wait, limit, "requests_per_minute_exceeded"))
    if key.tokens is not None and (wait := key.tokens.wait_for(prompt)):
        waits.append(_Wait(wait, f"{key.tokens.limit} tokens per minute", "tokens_per_minute_exceeded"))
    return _too_many(choice, key, quota, max(waits)) if waits else None


class _Wait(NamedTuple):
    seconds: float
    limit: str
    code: str


def _too_many(choice: str, key: _Key, quota: Quota, wait: _Wait) -> Refused:
    seconds = max(1, math.ceil(wait.seconds))
    return Refused(
        choice,
        429,
        f"The API key {quota.key} may have {wait.limit}; try again in {seconds} s.",
        code=wait.code,
        retry_after=seconds,
        allowances=key.allowances(),
    )
