"""How long the results of tool calls take to come, learned by tenant and tool."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, NamedTuple, TypeVar

from ..messages import TOKEN_BYTES, Generate, Tokens
from .request import Request

FIRST_GUESS_S = 60.0  # seconds that are assumed before any result of a tool has come
MIN_S = 5.0
MAX_S = 900.0
MAX_MEASURED_S = 3600.0  # seconds; a later result teaches nothing, because the conversation was left
SHARE = 0.9  # share of the results that come within the estimate
SAMPLES = 32  # number of results remembered of each tool
MAX_TOOLS = 4096  # tools remembered for all tenants together
MAX_AWAITED = 1024  # awaited results remembered for all tenants together
TAIL_BYTES = 16 * TOKEN_BYTES  # bytes at the end of a prompt that are compared first


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Caller(NamedTuple):
    tenant: str
    namespace: str


class _End(NamedTuple):
    """How a prompt ends: its length in bytes, and its last bytes."""

    length: int
    tail: Tokens


@dataclass(frozen=True, slots=True, eq=False)
class AwaitedResults:
    """A reply that ended in tool calls. The next prompt of the conversation continues its prompt."""

    request_id: str
    caller: _Caller
    end: _End  # end of the reply's prompt
    digest: bytes  # SHA-256 of the reply's prompt
    tools: Sequence[str]
    since: float  # time at which the reply ended, in seconds since 1970


class TenantRecords(Generic[K, V]):
    """Holds at most `most` records. Beyond that, the tenant with the most records loses its oldest one.

    So a tenant with at most its even share of `most` loses nothing to the others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, OrderedDict[K, V]] = {}  # each tenant's records, the oldest first
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def get(self, tenant: str, key: K) -> V | None:
        records = self._of.get(tenant)
        return None if records is None else records.get(key)

    def put(self, tenant: str, key: K, value: V) -> V | None:
        """Adds or replaces a record, which becomes the tenant's newest. Returns the record, of any tenant,
        that was removed to make room."""
        self.pop(tenant, key)
        self._of.setdefault(tenant, OrderedDict())[key] = value
        self._num += 1
        if self._num <= self._most:
            return None
        largest = max(self._of, key=lambda each: len(self._of[each]))
        return self.pop(largest, next(iter(self._of[largest])))

    def pop(self, tenant: str, key: K) -> V | None:
        """Removes and returns a record; None if there is none."""
        records = self._of.get(tenant)
        if records is None or key not in records:
            return None
        value = records.pop(key)
        self._num -= 1
        if not records:
            del self._of[tenant]
        return value


class ToolPauses:
    """The pauses in progress, and the lengths of earlier ones."""

    def __init__(self) -> None:
        self._awaited: TenantRecords[str, AwaitedResults] = TenantRecords(MAX_AWAITED)  # keys: request ids
        self._seconds: TenantRecords[str, deque[float]] = TenantRecords(MAX_TOOLS)  # recent ones, by tool
        self._by_age: dict[str, AwaitedResults] = {}  # awaited results by request id, the oldest first
        self._by_prompt: dict[_Caller, dict[_End, dict[bytes, list[AwaitedResults]]]] = {}

    def estimate(self, tenant: str, tools: Sequence[str]) -> float:
        """Seconds within which nine of ten results of the slowest of the tools came."""
        return max((self._estimate_tool(tenant, tool) for tool in tools), default=FIRST_GUESS_S)

    def begin(self, request: Request, tools: Sequence[str], now: float) -> None:
        assert request.namespace is not None, "a request without a namespace leaves nothing to lease"
        prompt = request.slice(0, request.prompt_length)
        caller = _Caller(request.tenant, request.namespace)
        end = _End(len(prompt), prompt[-TAIL_BYTES:])
        awaited = AwaitedResults(request.id, caller, end, sha256(prompt).digest(), tools, now)
        self._forget_old(now)
        by_digest = self._by_prompt.setdefault(caller, {}).setdefault(end, {})
        by_digest.setdefault(awaited.digest, []).append(awaited)
        self._by_age[request.id] = awaited
        lost = self._awaited.put(request.tenant, request.id, awaited)
        if lost is not None:
            self._forget(lost)

    def results_come(self, message: Generate, now: float) -> list[str]:
        """Ends the pauses that a prompt ends, and learns from their lengths. Returns their requests' ids."""
        if message.namespace is None:
            return []
        ended = self._find_continued(_Caller(message.tenant, message.namespace), message.prompt)
        for awaited in ended:
            for tool in awaited.tools:
                self._learn(message.tenant, tool, now - awaited.since)
            self._forget(awaited)
        return [awaited.request_id for awaited in ended]

    def _find_continued(self, caller: _Caller, prompt: Tokens) -> list[AwaitedResults]:
        """The awaited results whose prompts are the start of this one. Each byte is hashed at most once."""
        by_end = self._by_prompt.get(caller, {})
        found: list[AwaitedResults] = []
        hashed, position = sha256(), 0
        for end in sorted(end for end in by_end if end.length < len(prompt) and _has_end(prompt, end)):
            hashed.update(memoryview(prompt)[position : end.length])
            position = end.length
            found += by_end[end].get(hashed.digest(), ())
        return found

    def _learn(self, tenant: str, tool: str, seconds: float) -> None:
        if seconds <= MAX_MEASURED_S:
            learned = self._seconds.get(tenant, tool) or deque(maxlen=SAMPLES)
            learned.append(seconds)
            self._seconds.put(tenant, tool, learned)

    def _estimate_tool(self, tenant: str, tool: str) -> float:
        seconds = sorted(self._seconds.get(tenant, tool) or ())
        if not seconds:
            return FIRST_GUESS_S
        likely = seconds[min(len(seconds) - 1, int(SHARE * len(seconds)))]
        return min(max(likely, MIN_S), MAX_S)

    def _forget_old(self, now: float) -> None:
        """Forgets results that have been awaited for so long that they would teach nothing."""
        while self._by_age:
            oldest = next(iter(self._by_age.values()))
            if oldest.since + MAX_MEASURED_S >= now:
                return
            self._forget(oldest)

    def _forget(self, awaited: AwaitedResults) -> None:
        self._awaited.pop(awaited.caller.tenant, awaited.request_id)
        del self._by_age[awaited.request_id]
        by_end = self._by_prompt[awaited.caller]
        by_digest = by_end[awaited.end]
        by_digest[awaited.digest].remove(awaited)
        if not by_digest[awaited.digest]:
            del by_digest[awaited.digest]
        if not by_digest:
            del by_end[awaited.end]
        if not by_end:
            del self._by_prompt[awaited.caller]


def _has_end(prompt: Tokens, end: _End) -> bool:
    return prompt.endswith(end.tail, 0, end.length)
