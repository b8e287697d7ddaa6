"""The process of one grammar: it compiles the grammar under limits, then follows the grammar's replies.

`server.py` forks it, and it ends when the scheduler closes its channel. It runs native and recursive code
over a client's text, so it may end at any time. Its timers have no handlers, so they end it inside native
code too.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import CompilerError, GrammarError, TooLargeError, fault_of
from ..processes.framing import receive, send
from ..processes.limits import keep_to_limits, limit_memory, resident
from .messages import (
    Advance,
    Compiled,
    CompileJob,
    Failed,
    Leave,
    MatcherState,
    Outcome,
    decode_job,
    decode_request,
    encode,
)
from .native import HostCompiler, NativeGrammar, NativeMatcher
from .tasks import compiled_by_host, described

STEP_CPU_S = 0.25  # of processor time for one token of one reply; it usually takes 0.0001
FOLLOW_BYTES = 256 << 20  # address space for following replies, on top of what compiling took


def serve(channel: socket.socket, compiler: HostCompiler) -> NoReturn:
    """Runs in a newly forked process, and ends that process."""
    status = 1
    try:
        _Child(channel, compiler).run()
        status = 0
    except (EOFError, OSError):
        status = 0  # the scheduler has closed the channel
    except BaseException:
        status = 1
    finally:
        os._exit(status)


class _Child:
    def __init__(self, channel: socket.socket, compiler: HostCompiler) -> None:
        self._channel = channel
        self._compiler = compiler
        self._matchers: dict[int, NativeMatcher] = {}

    def run(self) -> None:
        job = decode_job(receive(self._channel))
        before = resident()
        keep_to_limits(job.extra_bytes)
        signal.setitimer(signal.ITIMER_REAL, job.deadline_s)
        outcome, grammar = self._outcome(job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if isinstance(outcome, Compiled):
            outcome.nbytes = max(0, resident() - before)
        send(self._channel, encode(outcome))
        if grammar is not None:
            limit_memory(FOLLOW_BYTES)
            self._follow(grammar)

    def _outcome(self, job: CompileJob) -> tuple[Outcome, NativeGrammar | None]:
        try:
            if job.task == "describe":
                return described(job.spec), None
            grammar = compiled_by_host(job, self._compiler)
            return Compiled(grammar.left_out, 0), grammar
        except (GrammarError, TooLargeError) as error:
            return Failed(fault_of(error)), None
        except MemoryError:
            return Failed(fault_of(TooLargeError("it takes too much memory"))), None
        except RecursionError:
            return Failed(fault_of(TooLargeError("it is nested too deep"))), None
        except BaseException:  # llguidance's panics are BaseExceptions
            return Failed(fault_of(CompilerError(traceback.format_exc()[-4000:]))), None

    def _follow(self, grammar: NativeGrammar) -> None:
        mask = np.zeros(self._compiler.mask_words, np.int32)
        while True:
            match decode_request(receive(self._channel)):
                case Leave(number):
                    self._matchers.pop(number, None)
                case Advance(number, tokens):
                    signal.setitimer(signal.ITIMER_PROF, STEP_CPU_S)
                    state = self._advanced(grammar, number, tokens, mask)
                    signal.setitimer(signal.ITIMER_PROF, 0)
                    send(self._channel, state)

    def _advanced(
        self, grammar: NativeGrammar, number: int, tokens: list[int], mask: NDArray[np.int32]
    ) -> bytes:
        matcher = self._matchers.get(number)
        if matcher is None:
            matcher = self._matchers[number] = grammar.matcher()
        error = None
        for token in tokens:
            error = matcher.consume(token)
        matcher.fill_mask(mask)
        fault = None if error is None else fault_of(error)
        return encode(MatcherState(number, fault, matcher.forced_text(), mask.tobytes()))
