"""How long the results of tool calls take to come, learned by tenant and tool."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..messages import Generate, Tokens
from .request import TOKEN_BYTES, Request

FIRST_GUESS_S = 60.0  # before any result of a tool has come
SHORTEST_S = 5.0
LONGEST_S = 900.0
MOST_MEASURED_S = 3600.0  # a result that comes later teaches nothing: the conversation was left
SHARE = 0.9  # of the results come within the estimate
SAMPLES = 32  # results remembered of each tool
MOST_TOOLS = 4096  # by tenant and name
MOST_AWAITED = 1024
TAIL = 16 * TOKEN_BYTES  # bytes that are compared first


@dataclass(frozen=True, slots=True)
class AwaitedResults:
    """A reply that ended in tool calls. The next prompt of the conversation continues its prompt."""

    tenant: str
    namespace: str
    length: int  # bytes of its prompt
    tail: Tokens
    digest: int
    tools: Sequence[str]
    since: float  # seconds since 1970

    def is_continued_by(self, prompt: Tokens) -> bool:
        if len(prompt) <= self.length or prompt[self.length - len(self.tail) : self.length] != self.tail:
            return False
        return hash(prompt[: self.length]) == self.digest


class ToolPauses:
    """The pauses in progress, by request id, and the lengths of earlier ones."""

    def __init__(self) -> None:
        self._awaited: OrderedDict[str, AwaitedResults] = OrderedDict()
        self._seconds: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()  # by tenant and tool
        self._by_tenant: defaultdict[tuple[str, str], dict[str, AwaitedResults]] = defaultdict(dict)

    def estimate(self, tenant: str, tools: Sequence[str]) -> float:
        """Seconds within which nine of ten results of the slowest of the tools came."""
        return max((self._estimate(tenant, tool) for tool in tools), default=FIRST_GUESS_S)

    def begin(self, request: Request, tools: Sequence[str], now: float) -> None:
        assert request.namespace is not None, "a request without a namespace leaves nothing to lease"
        prompt = request.slice(0, request.prompt_length)
        awaited = AwaitedResults(
            request.tenant, request.namespace, len(prompt), prompt[-TAIL:], hash(prompt), tools, now
        )
        self._awaited[request.id] = awaited
        self._by_tenant[request.tenant, request.namespace][request.id] = awaited
        while len(self._awaited) > MOST_AWAITED or self._oldest().since + MOST_MEASURED_S < now:
            self._forget(next(iter(self._awaited)))

    def results_come(self, message: Generate, now: float) -> list[str]:
        """Ends the pauses that the prompt ends, and learns from them; returns their requests' ids."""
        if message.namespace is None or (message.tenant, message.namespace) not in self._by_tenant:
            return []
        awaited = self._by_tenant[message.tenant, message.namespace]
        ended = [name for name, each in awaited.items() if each.is_continued_by(message.prompt)]
        for name in ended:
            for tool in awaited[name].tools:
                self._learn(message.tenant, tool, now - awaited[name].since)
            self._forget(name)
        return ended

    def _learn(self, tenant: str, tool: str, seconds: float) -> None:
        if seconds <= MOST_MEASURED_S:
            self._seconds.setdefault((tenant, tool), deque(maxlen=SAMPLES)).append(seconds)
            self._seconds.move_to_end((tenant, tool))
            if len(self._seconds) > MOST_TOOLS:
                self._seconds.popitem(last=False)

    def _estimate(self, tenant: str, tool: str) -> float:
        seconds = sorted(self._seconds.get((tenant, tool), ()))
        if not seconds:
            return FIRST_GUESS_S
        likely = seconds[min(len(seconds) - 1, int(SHARE * len(seconds)))]
        return min(max(likely, SHORTEST_S), LONGEST_S)

    def _oldest(self) -> AwaitedResults:
        return next(iter(self._awaited.values()))

    def _forget(self, name: str) -> None:
        awaited = self._awaited.pop(name)
        siblings = self._by_tenant[awaited.tenant, awaited.namespace]
        del siblings[name]
        if not siblings:
            del self._by_tenant[awaited.tenant, awaited.namespace]
