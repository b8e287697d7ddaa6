"""Refuses for some minutes grammars that ended a process or used too much of its time or memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ..errors import ParserFailedError, ProcessEndedError, TooLargeError, TooSlowError, bare_copy

REFUSED_S = 300.0
SLOW_MACHINE_S = 10.0  # of refusal, for a grammar that timed out after little processor time
MOST_REFUSED = 4096
PARSER_FAILURES = 3  # within `REFUSED_S`: a parser may fail on only some of a grammar's texts


class Refused:
    """The last refused grammars, by digest. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reasons: OrderedDict[bytes, tuple[float, Exception]] = OrderedDict()
        self._failures: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        """The parser's failures at a grammar: the time of the first, and how many since."""

    def note(self, digest: bytes, error: BaseException | None) -> None:
        """Remembers a grammar's error if it ended a process."""
        if isinstance(error, ParserFailedError) and self._counted(digest) < PARSER_FAILURES:
            return
        if not isinstance(error, ParserFailedError | ProcessEndedError | TooLargeError | TimeoutError):
            return
        is_its_fault = isinstance(error, TooSlowError) or not isinstance(error, TimeoutError)
        lasts_s = REFUSED_S if is_its_fault else SLOW_MACHINE_S
        self._reasons[digest] = self._clock() + lasts_s, bare_copy(error)
        while len(self._reasons) > MOST_REFUSED:
            self._reasons.popitem(last=False)

    def _counted(self, digest: bytes) -> int:
        """Counts a new failure of the parser with this grammar; returns those of the last minutes."""
        first, count = self._failures.pop(digest, (self._clock(), 0))
        if self._clock() > first + REFUSED_S:
            first, count = self._clock(), 0
        self._failures[digest] = first, count + 1
        while len(self._failures) > MOST_REFUSED:
            self._failures.popitem(last=False)
        return count + 1

    def reason(self, digest: bytes) -> Exception | None:
        """Why the grammar is refused without another attempt; None if it is not refused."""
        until, error = self._reasons.get(digest, (0.0, None))
        if error is None:
            return None
        if until > self._clock():
            return bare_copy(error)
        del self._reasons[digest]
        return None
