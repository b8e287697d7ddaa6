"""Grammars that llguidance follows, each in its own process, for the scheduler.

A matcher sends the tokens that were kept, and takes the answer later: so all the processes of a step's rows
work at the same time, and a row costs one exchange of messages for each token.
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
PROCESS_BYTES = 4 << 20  # of memory that each process has for itself; measured: 3.4 MB
LEAST_WAIT_S = 0.1  # for an answer, also when the caller was frozen or busy past the deadline
ANSWER_DEADLINE_S = 2.0  # a process ends by itself when a token takes a quarter of a second of processor time


class HostGrammar:
    """A compiled grammar. Each request follows it by a matcher of its own, all in the same process."""

    def __init__(
        self,
        process: GrammarProcess,
        eos_tokens: tuple[int, ...],
        nbytes: int,
        left_out: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`left_out`: keyword and path of what the schema asks beyond it, where that is allowed."""
        self.left_out = left_out
        self.host_nbytes = PROCESS_BYTES + nbytes
        self._line = _Line(process)
        self._eos_tokens = eos_tokens

    @property
    def fault(self) -> Exception | None:
        """Why its process can't be used any more."""
        return self._line.process.fault

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._line.process.number

    def matcher(self) -> HostMatcher:
        return HostMatcher(self._line, self._eos_tokens)


class HostMatcher:
    """Follows one request. Errors are values: they end the request, never the step."""

    def __init__(self, line: _Line, eos_tokens: tuple[int, ...]) -> None:
        self._line = line
        self._eos_tokens = eos_tokens
        self._number = line.new_number()
        self._is_begun = False
        weakref.finalize(self, line.leave, self._number).atexit = False
        line.advance(self._number, [])

    def begin(self, token: int) -> None:
        """Sends a token that was kept. `consume` of the same token, which must follow, has the answer."""
        self._is_begun = True
        self._line.advance(self._number, [token])

    def consume(self, token: int) -> GrammarError | CompilerError | None:
        """Follow a token of the reply. Returns why that failed, if it did."""
        if not self._is_begun:
            self.begin(token)
        self._is_begun = False
        fault = self._line.standing(self._number).error
        return None if fault is None else reply_error(fault)

    def append(self, tokens: Sequence[int]) -> None:
        """Tokens that had to come. The next one ends with their error, if any."""
        self._line.advance(self._number, list(tokens))

    def forced_text(self) -> ForcedText:
        """What must come next. What may follow that is not known."""
        return ForcedText(self._line.standing(self._number).forced, ANY_BYTE, False)

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Writes the mask of the next token, int32 [ceil(vocab / 32)], contiguous."""
        standing = self._line.standing(self._number)
        if len(standing.mask) == mask.nbytes:
            mask[:] = np.frombuffer(standing.mask, np.int32)
            return
        mask[:] = 0  # its process is gone: the token that ends the reply comes, and the error with it
        for token in self._eos_tokens:
            mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


class _Line:
    """Questions to one process and their answers, by matcher. Of each matcher the last answer counts.

    An answer's deadline begins with the latest question or answer, not with the wait for it. So processes
    that were asked together and are all silent cost the caller one deadline and not one each.
    """

    def __init__(self, process: GrammarProcess) -> None:
        self.process = process
        self._numbers = count(1)
        self._exchanged_at = 0.0  # when a question was last sent or an answer last read
        self._asked: dict[int, int] = {}  # answers that are yet to come, by matcher
        self._standings: dict[int, Standing] = {}
        self._left: deque[int] = deque()  # matchers that are gone, which the process doesn't know yet
        self._in_use: set[int] = (
            set()
        )  # matchers, but for those of which the process knows that they are gone

    def new_number(self) -> int:
        number = next(self._numbers)
        self._in_use.add(number)
        return number

    def advance(self, matcher: int, tokens: list[int]) -> None:
        self._asked[matcher] = self._asked.get(matcher, 0) + 1
        self._exchanged_at = time.monotonic()
        self._send(encode(Advance(matcher, tokens)))

    def leave(self, matcher: int) -> None:
        """Tells the process with the next send: a finalizer calls this, in the middle of anything."""
        self._left.append(matcher)

    def standing(self, matcher: int) -> Standing:
        """Where the matcher stands after all that was sent. Waits for it, and ends a process that stalls."""
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
        self._exchanged_at = time.monotonic()
        if standing.error is not None and standing.error.name == ParserFailedError.__name__:
            self.process.give_up(error_of(standing.error))
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
