"""The waiting requests and the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .request import Request

LOOK_AHEAD = 64  # requests whose match is looked up at a time
MAX_OVERTAKEN = 32  # later arrivals that may go before a request


class WaitingQueue:
    """Longest matched prefix first, among the oldest; nobody is overtaken for ever."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        self._requests[request.id] = request

    def add_first(self, request: Request) -> None:
        """A retracted request keeps its place before all who came later."""
        self._requests = {request.id: request, **self._requests}

    def remove(self, request: Request) -> None:
        self._requests.pop(request.id, None)

    def candidates(self, matched: Callable[[Request], int]) -> list[Request]:
        """The oldest requests: those overtaken too often, then by priority, match and arrival."""
        oldest = [request for request, _ in zip(self._requests.values(), range(LOOK_AHEAD), strict=False)]

        def rank(request: Request) -> tuple[bool, int, int, int]:
            return request.overtaken < MAX_OVERTAKEN, request.priority, -matched(request), request.arrival

        return sorted(oldest, key=rank)

    def admit(self, request: Request) -> None:
        """Takes it out; those that came before it were overtaken."""
        del self._requests[request.id]
        for other in self._requests.values():
            if other.arrival < request.arrival:
                other.overtaken += 1
