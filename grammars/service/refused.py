"""Grammars that ended a process or took too much of one; they are refused for some minutes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ..errors import ProcessEndedError, TooLargeError, TooSlowError, bare_copy

REFUSED_S = 300.0
SLOW_MACHINE_S = 10.0  # for a grammar that timed out with little processor time
MOST_REFUSED = 4096


class Refused:
    """The last refused grammars, by digest. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reasons: OrderedDict[bytes, tuple[float, Exception]] = OrderedDict()

    def note(self, digest: bytes, error: BaseException | None) -> None:
        """Remembers a grammar's error, if it cost a process."""
        if not isinstance(error, ProcessEndedError | TooLargeError | TimeoutError):
            return
        is_its_fault = isinstance(error, TooSlowError) or not isinstance(error, TimeoutError)
        lasts_s = REFUSED_S if is_its_fault else SLOW_MACHINE_S
        self._reasons[digest] = self._clock() + lasts_s, bare_copy(error)
        while len(self._reasons) > MOST_REFUSED:
            self._reasons.popitem(last=False)

    def reason(self, digest: bytes) -> Exception | None:
        """Why the grammar is refused without another try; None if it is not."""
        until, error = self._reasons.get(digest, (0.0, None))
        if error is None:
            return None
        if until > self._clock():
            return bare_copy(error)
        del self._reasons[digest]
        return None
