"""The process that forks a process for each grammar that llguidance compiles and follows. It has loaded
llguidance and the vocabulary.

A forked process compiles its grammar under limits, then follows the grammar's replies. It runs native and
recursive code over a client's text, so it may end at any time.
"""

from __future__ import annotations

import signal
import socket
import sys
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...runtime.grammar_spec import GrammarSpec
from ..errors import encode_error
from ..processes.channel import receive, send
from ..processes.fork_server import ForkServer, control_socket, prepare_to_fork
from ..processes.limits import keep_to_limits, limit_memory, measure_memory, run_limited
from ..processes.messages import (
    Advance,
    DeleteMatcher,
    Finished,
    HostVocabulary,
    MatcherReady,
    MatcherState,
    TagDescription,
    decode_job,
    decode_request,
    decode_vocabulary,
    encode,
)
from ..tags.format import json_schemas, read_format
from .native import HostCompiler, NativeGrammar, NativeMatcher

MAX_GROWTH = 1 << 30  # bytes that all its processes together may grow by
COMPILE_BYTES = 384 << 20  # address space for compiling a grammar
FOLLOW_BYTES = 256 << 20  # address space for following replies, on top of what compiling took
STEP_CPU_S = 0.25  # seconds of processor time for one token of one reply; it usually takes 0.0001


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = control_socket()
    compiler = _make_compiler(decode_vocabulary(sys.stdin.buffer.read()))
    compiler.compile(GrammarSpec("json_schema", '{"type":"object","required":["a"]}')).matcher()
    prepare_to_fork()
    ForkServer(control, partial(_serve, compiler), MAX_GROWTH).run()


def _make_compiler(vocabulary: HostVocabulary) -> HostCompiler:
    offsets = np.frombuffer(vocabulary.offsets, np.int32).tolist()
    data = vocabulary.data
    tokens = [data[start:end] for start, end in pairwise(offsets)]
    tokens += [b""] * (vocabulary.vocab_size - len(tokens))
    return HostCompiler(tokens, vocabulary.special, vocabulary.eos_tokens)


def _serve(compiler: HostCompiler, channel: socket.socket) -> None:
    """Runs one job in a newly forked process, then follows replies until the scheduler closes the channel."""
    job = decode_job(receive(channel))
    before = measure_memory()
    keep_to_limits(COMPILE_BYTES)
    grammar: NativeGrammar | None = None

    def run() -> MatcherReady | TagDescription:
        nonlocal grammar
        if job.task == "describe":
            return _describe(job.spec)
        grammar = compiler.compile(job.spec)
        return MatcherReady(grammar.left_out, 0)

    outcome = run_limited(job.deadline_s, run)
    if isinstance(outcome, MatcherReady):
        outcome.nbytes = max(0, measure_memory() - before)
    send(channel, encode(Finished(outcome, is_last=True)))
    if grammar is not None:
        limit_memory(FOLLOW_BYTES)
        _follow(grammar, channel, np.zeros(compiler.mask_words, np.int32))


def _describe(spec: GrammarSpec) -> TagDescription:
    """Describes a structural tag that can't be compiled as it is. Raises GrammarError."""
    return TagDescription(
        [(schema.function, schema.otherwise) for schema in json_schemas(read_format(spec.text))]
    )


def _follow(grammar: NativeGrammar, channel: socket.socket, mask: NDArray[np.int32]) -> None:
    """Answers the scheduler's requests. `mask`: int32 [mask words], overwritten by each token's mask."""
    matchers: dict[int, NativeMatcher] = {}
    while True:
        match decode_request(receive(channel)):
            case DeleteMatcher(number):
                matchers.pop(number, None)
            case Advance(number, tokens):
                signal.setitimer(signal.ITIMER_PROF, STEP_CPU_S)
                matcher = matchers.get(number)
                if matcher is None:
                    matcher = matchers[number] = grammar.matcher()
                state = _advance(matcher, number, tokens, mask)
                signal.setitimer(signal.ITIMER_PROF, 0)
                send(channel, state)


def _advance(matcher: NativeMatcher, number: int, tokens: list[int], mask: NDArray[np.int32]) -> bytes:
    """The encoded state of a matcher after `tokens`."""
    error = None
    for token in tokens:
        error = matcher.consume(token)
    matcher.fill_mask(mask)
    fault = None if error is None else encode_error(error)
    return encode(MatcherState(number, fault, matcher.forced_text(), mask.tobytes()))


if __name__ == "__main__":
    main()
