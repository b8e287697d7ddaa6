"""Refuses for some minutes grammars that ended a process or used too much of its time or memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ..errors import ParserFailedError, ProcessEndedError, TooLargeError, bare_copy

REFUSED_S = 300.0
MAX_REFUSED = 4096
PARSER_FAILURES = 3  # failures within `REFUSED_S` until a refusal: a parser may fail on only some texts


class RefusedGrammars:
    """The last refused grammars, by digest. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reasons: OrderedDict[bytes, tuple[float, Exception]] = OrderedDict()
        self._failures: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        """the parser's failures at each grammar: the time of the first, and the number of failures since"""

    def note(self, digest: bytes, error: BaseException | None) -> None:
        """Remembers a grammar's error if it ended a process."""
        if isinstance(error, ParserFailedError) and self._count_failure(digest) < PARSER_FAILURES:
            return
        if not isinstance(error, ParserFailedError | ProcessEndedError | TooLargeError):
            return
        self._reasons[digest] = self._clock() + REFUSED_S, bare_copy(error)
        while len(self._reasons) > MAX_REFUSED:
            self._reasons.popitem(last=False)

    def find_reason(self, digest: bytes) -> Exception | None:
        """Why the grammar is refused without another attempt; None if it is not refused."""
        until, error = self._reasons.get(digest, (0.0, None))
        if error is None:
            return None
        if until > self._clock():
            return bare_copy(error)
        del self._reasons[digest]
        return None

    def _count_failure(self, digest: bytes) -> int:
        """Counts a new failure of the parser with this grammar; returns those of the last minutes."""
        first, count = self._failures.pop(digest, (self._clock(), 0))
        if self._clock() > first + REFUSED_S:
            first, count = self._clock(), 0
        self._failures[digest] = first, count + 1
        while len(self._failures) > MAX_REFUSED:
            self._failures.popitem(last=False)
        return count + 1
