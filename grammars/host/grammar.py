"""The scheduler's matchers for grammars that llguidance follows, each in its own process.

A matcher sends the kept tokens and reads the answer later, so that the processes of a step's rows work at the
same time. Each token costs a row one exchange of messages.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ..errors import CompilerError, GrammarError, ParserFailedError, error_of, fault_of, reply_error
from ..machine.jump_forward import ForcedText
from .channel import ChannelClosedError
from .client import GrammarProcess
from .messages import Advance, Leave, Standing, decode_standing, encode

ANY_BYTE = bytes(range(256))
PROCESS_BYTES = 4 << 20  # of private memory for each process; measured: 3.4 MB
LEAST_WAIT_S = 0.1  # for an answer, even if the caller was frozen or busy past the deadline
ANSWER_DEADLINE_S = 2.0  # a process ends by itself after 0.25 s of processor time for a token


class HostGrammar:
    """A compiled grammar. Each request has its own matcher, and all matchers share one process."""

    def __init__(
        self,
        process: GrammarProcess,
        eos_tokens: tuple[int, ...],
        nbytes: int,
        left_out: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`left_out`: keyword and path of each constraint that is not enforced."""
        self.left_out = left_out
        self.host_nbytes = PROCESS_BYTES + nbytes
        self._line = _Line(process)
        self._eos_tokens = eos_tokens

    @property
    def fault(self) -> Exception | None:
        """Why the process can't be used any more, or None."""
        return self._line.process.fault

    @property
    def process(self) -> int:
        """The number of the process."""
        return self._line.process.number

    def matcher(self) -> HostMatcher:
        return HostMatcher(self._line, self._eos_tokens)


class HostMatcher:
    """Follows one request. An error is a value that ends the request, not the step."""

    def __init__(self, line: _Line, eos_tokens: tuple[int, ...]) -> None:
        self._line = line
        self._eos_tokens = eos_tokens
        self._number = line.new_number()
        self._is_begun = False
        weakref.finalize(self, line.leave, self._number).atexit = False
        line.advance(self._number, [])

    def begin(self, token: int) -> None:
        """Sends a kept token. `consume` of the same token must follow and reads the answer."""
        self._is_begun = True
        self._line.advance(self._number, [token])

    def consume(self, token: int) -> GrammarError | CompilerError | None:
        """Advances by a kept token. Returns an error, or None."""
        if not self._is_begun:
            self.begin(token)
        self._is_begun = False
        fault = self._line.standing(self._number).error
        return None if fault is None else reply_error(fault)

    def append(self, tokens: Sequence[int]) -> None:
        """Advances by forced tokens. The next `consume` returns their error, if any."""
        self._line.advance(self._number, list(tokens))

    def forced_text(self) -> ForcedText:
        """The text that must come next; what may follow it is not known."""
        return ForcedText(self._line.standing(self._number).forced, ANY_BYTE, False)

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Writes the mask of the next token, int32 [ceil(vocab / 32)], contiguous."""
        standing = self._line.standing(self._number)
        if len(standing.mask) == mask.nbytes:
            mask[:] = np.frombuffer(standing.mask, np.int32)
            return
        mask[:] = 0  # the process is gone: only the end is allowed, and `consume` returns the error
        for token in self._eos_tokens:
            mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


class _Line:
    """Requests to one process and its answers, by matcher. A matcher's last answer counts.

    An answer's deadline begins with the latest request or answer, not with the wait for it. So the caller
    waits for one deadline if several processes were asked together and all are silent.
    """

    def __init__(self, process: GrammarProcess) -> None:
        self.process = process
        self._numbers = count(1)
        self._exchanged_at = 0.0  # of the last request or answer
        self._asked: dict[int, int] = {}  # outstanding answers, by matcher
        self._standings: dict[int, Standing] = {}
        self._left: deque[int] = deque()  # deleted matchers that the process still has
        self._in_use: set[int] = set()  # matchers that the process has

    def new_number(self) -> int:
        number = next(self._numbers)
        self._in_use.add(number)
        return number

    def advance(self, matcher: int, tokens: list[int]) -> None:
        self._asked[matcher] = self._asked.get(matcher, 0) + 1
        self._exchanged_at = time.monotonic()
        self._send(encode(Advance(matcher, tokens)))

    def leave(self, matcher: int) -> None:
        """Tells the process with the next message. A finalizer may call this at any point."""
        self._left.append(matcher)

    def standing(self, matcher: int) -> Standing:
        """The matcher's standing after all messages. Waits for it, and ends a process that stalls."""
        while self._asked.get(matcher) and self.process.fault is None:
            try:
                self._take(decode_standing(self.process.channel.receive(self._patience_s())))
            except (ChannelClosedError, TimeoutError, ValueError):
                self.process.fail(ANSWER_DEADLINE_S)
        if self.process.fault is not None:
            return Standing(matcher, fault_of(self.process.fail(ANSWER_DEADLINE_S)), b"", b"")
        return self._standings[matcher]

    def _patience_s(self) -> float:
        return max(LEAST_WAIT_S, self._exchanged_at + ANSWER_DEADLINE_S - time.monotonic())

    def _take(self, standing: Standing) -> None:
        left = self._asked.get(standing.matcher, 0) - 1
        if left < 0:
            raise ValueError("an answer that nothing asked for")
        error = None if standing.error is None else error_of(standing.error)
        self._exchanged_at = time.monotonic()
        if isinstance(error, ParserFailedError):
            self.process.give_up(error)
        self._asked[standing.matcher] = left
        if standing.matcher in self._in_use:
            self._standings[standing.matcher] = standing
        if left == 0:
            del self._asked[standing.matcher]

    def _send(self, message: bytes) -> None:
        if self.process.fault is not None:
            return
        try:
            while self._left:
                gone = self._left.popleft()
                self._in_use.discard(gone)
                self._standings.pop(gone, None)
                self.process.channel.send(encode(Leave(gone)))
            self.process.channel.send(message)
        except ChannelClosedError:
            self.process.fail(ANSWER_DEADLINE_S)
