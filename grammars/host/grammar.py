"""The scheduler's matchers for grammars that llguidance follows, each grammar in its own process.

A matcher sends the accepted tokens and reads the answer later, so that the processes of a step's rows work in
parallel. A row exchanges one pair of messages for each token.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ..errors import CompilerError, GrammarError, ParserFailedError, decode_error, encode_error
from ..machine.jump_forward import ForcedText
from ..processes.channel import ChannelClosedError
from ..processes.compiler_process import REPORT_DEADLINE_S, CompilerProcess
from ..processes.messages import Advance, DeleteMatcher, MatcherState, decode_state, encode

ANY_BYTE = bytes(range(256))
PROCESS_BYTES = 4 << 20  # private memory of each process in bytes; measured: 3.4 MB
MIN_WAIT_S = 0.1  # seconds to wait for an answer, even if the caller was busy until after the deadline
ANSWER_DEADLINE_S = 2.0  # seconds for an answer; a process ends itself after 0.25 s of processor time


class HostGrammar:
    """A compiled grammar. Each request has its own matcher, and all matchers share one process."""

    def __init__(
        self,
        process: CompilerProcess,
        eos_tokens: tuple[int, ...],
        nbytes: int,
        left_out: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`left_out`: keyword and path of each constraint that is not enforced."""
        self.left_out = left_out
        self.host_nbytes = PROCESS_BYTES + nbytes
        self._connection = _Connection(process)
        self._eos_tokens = eos_tokens

    def find_fault(self) -> Exception | None:
        """Why the process can't be used any more, or None."""
        self._connection.check_idle()
        return self._connection.process.fault

    def matcher(self) -> HostMatcher:
        return HostMatcher(self._connection, self._eos_tokens)


class HostMatcher:
    """Follows one request. An error is a value that ends the request, not the step."""

    def __init__(self, connection: _Connection, eos_tokens: tuple[int, ...]) -> None:
        self._connection = connection
        self._eos_tokens = eos_tokens
        self._number = connection.new_number()
        self._is_begun = False
        weakref.finalize(self, connection.delete, self._number).atexit = False
        connection.advance(self._number, [])

    def begin(self, token: int) -> None:
        """Sends an accepted token. The caller must then call `consume` with the same token, which reads the
        answer."""
        assert not self._is_begun, "the answer to a token comes before the next token"
        self._is_begun = True
        self._connection.advance(self._number, [token])

    def is_ready(self, within_s: float) -> bool:
        """Whether the other methods return at once. Waits for up to `within_s` for the process to answer."""
        return self._connection.is_settled(self._number, within_s)

    def consume(self, token: int) -> GrammarError | CompilerError | None:
        """Advances by an accepted token. Returns an error, or None."""
        if not self._is_begun:
            self.begin(token)
        self._is_begun = False
        fault = self._connection.state(self._number).error
        if fault is None:
            return None
        error = decode_error(fault)
        return error if isinstance(error, GrammarError | CompilerError) else GrammarError(str(error))

    def append(self, tokens: Sequence[int]) -> None:
        """Advances by forced tokens. The next `consume` returns the error, if there is one."""
        self._connection.advance(self._number, list(tokens))

    def forced_text(self) -> ForcedText:
        """The text that must come next, without the bytes that may follow it, which are unknown."""
        return ForcedText(self._connection.state(self._number).forced, ANY_BYTE, False)

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Writes the mask of the next token, int32 [ceil(vocab / 32)], contiguous."""
        state = self._connection.state(self._number)
        if len(state.mask) == mask.nbytes:
            mask[:] = np.frombuffer(state.mask, np.int32)
            return
        mask[:] = 0  # the process has ended: allows only the end; `consume` returns the error
        for token in self._eos_tokens:
            mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


class _Connection:
    """Sends requests to one process and keeps the latest answer for each matcher.

    A process must answer within `ANSWER_DEADLINE_S` of its last answer, or of the first request after it.
    The time when the caller begins to wait does not count, so a caller that has asked several processes waits
    for one deadline in all, even if none answers.
    """

    def __init__(self, process: CompilerProcess) -> None:
        self.process = process
        self._numbers = count(1)
        self._exchanged_at = 0.0  # time of the last answer, or of the first request since
        self._last_wait_until = 0.0  # time at which an overdue process is ended; 0: it is not overdue
        self._is_late = False  # whether a wait for its answer was in vain
        self._awaited: dict[int, int] = {}  # number of outstanding answers of each matcher
        self._states: dict[int, MatcherState] = {}
        self._deleted: deque[int] = deque()  # deleted matchers that the process still holds
        self._in_use: set[int] = set()  # matchers that the process holds

    def new_number(self) -> int:
        number = next(self._numbers)
        self._in_use.add(number)
        return number

    def advance(self, matcher: int, tokens: list[int]) -> None:
        if not self._awaited:
            self.check_idle()
            self._note_exchange()
        self._awaited[matcher] = self._awaited.get(matcher, 0) + 1
        self._send(encode(Advance(matcher, tokens)))

    def check_idle(self) -> None:
        """Gives up the process if it ended after it had answered all requests."""
        try:
            while self._awaited and self.process.fault is None:  # answers that no reply has waited for
                self._take(decode_state(self.process.channel.receive(0.0)))
        except (TimeoutError, ChannelClosedError):
            return
        except ValueError:
            self.process.fail()
        if self.process.fault is None and self.process.channel.has_ended():
            self.process.note_idle_end()

    def delete(self, matcher: int) -> None:
        """Tells the process with the next message that the matcher is deleted. A finalizer may call this at
        any point."""
        self._deleted.append(matcher)

    def is_settled(self, matcher: int, within_s: float) -> bool:
        """Whether the process has answered all requests of the matcher, or has ended. Waits for up to
        `within_s`, but not for a process that has not answered since an earlier wait."""
        return self._settle(matcher, 0.0 if self._is_late else within_s)

    def state(self, matcher: int) -> MatcherState:
        """The state of the matcher after all its requests. Waits for it until `is_settled`."""
        while not self._settle(matcher, MIN_WAIT_S):
            pass
        if self.process.fault is not None:
            return MatcherState(matcher, encode_error(self.process.fail()), b"", b"")
        return self._states[matcher]

    def _settle(self, matcher: int, within_s: float) -> bool:
        """Waits as `is_settled` does, and ends a process that stalls."""
        until = time.monotonic() + within_s
        while self._awaited.get(matcher) and self.process.fault is None:
            left_s = max(0.0, until - time.monotonic())
            try:
                self._take(decode_state(self.process.channel.receive(left_s)))
                continue
            except TimeoutError:
                self._is_late = True
                if not self._is_overdue(ANSWER_DEADLINE_S):
                    return False
            except ChannelClosedError:
                if not self.process.has_known_end(left_s) and not self._is_overdue(REPORT_DEADLINE_S):
                    return False
            except ValueError:
                pass
            self.process.fail()
        return True

    def _is_overdue(self, deadline_s: float) -> bool:
        now = time.monotonic()
        if now < self._exchanged_at + deadline_s:
            return False
        self._last_wait_until = self._last_wait_until or now + MIN_WAIT_S
        return now >= self._last_wait_until

    def _take(self, state: MatcherState) -> None:
        left = self._awaited.get(state.matcher, 0) - 1
        if left < 0:
            raise ValueError("an answer without a request")
        error = None if state.error is None else decode_error(state.error)
        self._note_exchange()
        self._is_late = False
        if isinstance(error, ParserFailedError):
            self.process.give_up(error)
        self._awaited[state.matcher] = left
        if state.matcher in self._in_use:
            self._states[state.matcher] = state
        if left == 0:
            del self._awaited[state.matcher]

    def _note_exchange(self) -> None:
        self._exchanged_at, self._last_wait_until = time.monotonic(), 0.0

    def _send(self, message: bytes) -> None:
        if self.process.fault is not None:
            return
        with suppress(ChannelClosedError):  # `_settle` finds out why
            while self._deleted:
                deleted = self._deleted.popleft()
                self._in_use.discard(deleted)
                self._states.pop(deleted, None)
                self.process.channel.send(encode(DeleteMatcher(deleted)))
            self.process.channel.send(message)
