"""The processes that build automata. A hostile grammar ends one of them and delays only its own request.

A worker loads everything and reads no grammar. It forks a child, which builds one grammar after another and
caches the automata that they share. A timer without a handler ends the child if a job takes too much
processor time, even inside native code, and the child's memory is limited. Then the worker forks the next
child, within milliseconds. Only hung jobs are ended by real time, so a busy machine builds the same automata.
Jobs arrive on the worker's standard input; the worker relays only complete results.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Condition
from typing import IO, NoReturn, get_args

from llguidance.gbnf_to_lark import gbnf_to_lark
from numba.core.event import Event, Listener, register

from ...runtime.grammar_spec import GrammarSpec, PropertyOrder
from ..errors import CompilerError, GrammarError, ProcessEndedError, TooLargeError
from ..masks.stack import StackMasks
from ..masks.token_trie import Spellings, TokenTries, build_tries
from ..processes.framing import read_frame, write_frame
from ..processes.limits import end_in_words, keep_to_limits, resident
from ..regex.byte_automaton import compile_regex
from ..regex.of_spec import regex_of
from ..schema import SchemaCompiler
from ..tags import TagCompiler, read_format
from ..tags.special_tokens import SpecialTokens
from .answers import MAX_ANSWER, read_answer
from .automaton import Automaton, with_masks
from .jobs import Job, Result
from .lanes import TakesLongError
from .relay import LAST_RESULT, NOTICE, RESULT, Relay
from .spending import Spending

_START = "from arbora.grammars.service.worker import main; main()"
START_DEADLINE_S = 60.0
END_DEADLINE_S = 5.0  # for a process to end after it has closed its pipes
EXTRA_BYTES = 1536 << 20  # of address space for building, in addition to the loaded code and data
KEEP_BELOW = 384 << 20
"""Bytes of memory; a child that has grown by more ends with its job."""
_START_RULE = re.compile(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*)|(?<![\w-])start(?![\w-])')
"""A rule of GBNF with the name that the converter gives to the first rule; the group matches similar text."""

log = logging.getLogger(__name__)


class AutomatonWorkers:
    """Up to `size` processes, started when they are needed. Thread-safe.

    Long jobs share all processes but the last one, so that short jobs never wait for long. Jobs of tenants
    with much recent compiling wait while any other job waits.
    """

    def __init__(
        self, spellings: Spellings, special: SpecialTokens, size: int, spending: Spending | None = None
    ) -> None:
        self._spending = spending or Spending()
        self._workers = [AutomatonWorker(spellings, special, self._announce) for _ in range(size)]
        self._is_announced = False
        self._idle: set[int] = set()
        self._waiting = 0  # jobs of tenants with little recent compiling
        self._changed = Condition()

    def start(self) -> None:
        """Starts one process. Earlier jobs wait for it instead of starting more."""
        try:
            self._workers[-1].start()
        finally:
            with self._changed:
                self._idle.update(range(len(self._workers)))
                self._changed.notify_all()

    def build(self, job: Job) -> Result:
        """As `AutomatonWorker.build`, as soon as a process is free for the job."""
        end = len(self._workers) - job.is_long
        number = self._take(end, self._spending.is_heavy(job.tenant))
        began = time.monotonic()
        try:
            return self._workers[number].build(job)
        finally:
            self._spending.add(job.tenant, time.monotonic() - began)
            with self._changed:
                self._idle.add(number)
                self._changed.notify_all()

    def _take(self, end: int, is_heavy: bool) -> int:
        """Takes the last idle process before `end`; waits for one. Returns its number."""
        with self._changed:
            self._waiting += not is_heavy
            self._changed.wait_for(
                lambda: min(self._idle, default=end) < end and not (is_heavy and self._waiting)
            )
            self._waiting -= not is_heavy
            self._changed.notify_all()
            number = max(number for number in self._idle if number < end)
            self._idle.remove(number)
            return number

    def close(self) -> None:
        """Ends all processes. No job may be running or be submitted later."""
        for worker in self._workers:
            worker.close()

    def _announce(self) -> None:
        """Logs once that a process compiles its own code."""
        if not self._is_announced:
            self._is_announced = True
            log.info("compiling grammar kernels, which can take minutes; the next start finds them compiled")


class AutomatonWorker:
    """One process, started when it is needed, and again if it died. For one thread.

    `on_compiling` is called when the process begins to compile its own code.
    """

    def __init__(
        self, spellings: Spellings, special: SpecialTokens, on_compiling: Callable[[], None]
    ) -> None:
        self._vocabulary = spellings, special
        self._on_compiling = on_compiling
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, job: Job) -> Result:
        """The job's result. Raises GrammarError for a wrong grammar, NotCoveredError for a keyword without
        an automaton, TooLargeError past a limit of states, masks, memory or time, TakesLongError past the
        time of a short job, CompilerError for other failures."""
        try:
            result = self._answer(job)
        except Exception as error:  # garbled bytes raise errors of all kinds
            raise self._reason(error) from None
        if isinstance(result, int):
            raise _death(job, result)
        if isinstance(result, Exception):
            raise result
        return result

    def start(self) -> None:
        """Starts the process and waits until it is ready. If that fails, the first job tries again."""
        with suppress(GrammarError, TooLargeError, CompilerError):
            self.build(Job("", GrammarSpec("regex", "a"), START_DEADLINE_S, is_long=True))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answer(self, job: Job) -> Result | Exception | int:
        """The job's result, or the exit status of the process."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        _write(process.stdin, job)
        while (said := read_frame(process.stdout, MAX_ANSWER))[:1] == NOTICE:
            self._on_compiling()
        answer = read_answer(said[1:])
        assert isinstance(answer, Automaton | str | Exception | int)
        return answer

    def _reason(self, error: Exception) -> CompilerError:
        """The error of a worker that gave no result; a new worker runs the next job."""
        status: int | None = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(END_DEADLINE_S)
        self.close()
        if status is None:
            return CompilerError(f"its process could not be used: {error!r}")
        return CompilerError(f"its process ended with {end_in_words(status)}")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died between jobs
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert self._process.stdin is not None
            _write(self._process.stdin, self._vocabulary)
        return self._process


def _death(job: Job, status: int) -> TooLargeError | TakesLongError | CompilerError:
    """The error of a job whose process ended without a result."""
    match status:
        case _ if status == -signal.SIGPROF and not job.is_long:
            return TakesLongError()
        case _ if status == -signal.SIGPROF:
            return TooLargeError(f"it took more than {job.deadline_s:g} s of processor time")
        case _ if status == -signal.SIGSEGV:
            return TooLargeError("it is nested too deep")
        case _ if status == -signal.SIGABRT:
            return TooLargeError("it took too much memory")
    return ProcessEndedError(f"its process ended with {end_in_words(status)}")


def _write(pipe: IO[bytes], value: object) -> None:
    write_frame(pipe, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


_FIRST_SCHEMAS = (
    "true",
    '{"type":"array","items":{"$ref":"#"}}',
    '{"properties":{"a":{"maxLength":99,"minLength":2},"b":{"pattern":"^a{1,40}$"},"c":{"type":"integer","minimum":0},'
    '"é":{"enum":["x","y",1]}},"patternProperties":{"^x":{"const":"a"}},"required":["a"],"additionalProperties":false}',
    *(f'{{"type":"string","format":"{name}"}}' for name in ("date-time", "email", "uri", "uuid")),
)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disables garbage collection, which would find nothing while a grammar is built."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Builder:
    """Builds automata, and caches the automata that grammars share."""

    def __init__(self, tries: TokenTries, special: SpecialTokens) -> None:
        self._special = special
        self._schemas = SchemaCompiler()
        self._tags = TagCompiler(self._schemas)
        self._masks = StackMasks(tries)

    @_without_collection()
    def build(self, key: str, spec: GrammarSpec) -> Result:
        match spec.kind:
            case "grammar":
                return _in_lark(spec.text)
            case "regex" | "choice":
                return with_masks(key, compile_regex(regex_of(spec)), self._masks)
            case "json_schema" | "json_object":
                compiled = self._schemas.compile_allowing(
                    spec.unenforced, spec.schema, spec.separators, property_order=spec.property_order
                )
            case "structural_tag":
                compiled = self._tags.compile(
                    read_format(spec.text),
                    self._special.bytes_of,
                    property_order=spec.property_order,
                    unenforced=spec.unenforced,
                )
        return replace(with_masks(key, compiled.machine, self._masks), left_out=compiled.left_out)

    def warm_up(self) -> None:
        """Compiles the kernels, and the strings and formats that most schemas use."""
        self.build("regex", GrammarSpec("regex", "a"))
        orders: tuple[PropertyOrder, ...] = get_args(PropertyOrder)
        for text in _FIRST_SCHEMAS:
            for order in orders:
                self.build(text, GrammarSpec("json_schema", text, property_order=order))


def _in_lark(text: str) -> str:
    try:
        return gbnf_to_lark(_START_RULE.sub(lambda found: found[1] or "start-rule", text))
    except RecursionError:
        raise GrammarError("its groups are nested too deep: name the inner ones as rules") from None
    except Exception as error:  # the converter raises plain Exceptions
        raise GrammarError(_gbnf_fault(text, str(error))) from None


def _gbnf_fault(text: str, fault: str) -> str:
    """The error of a grammar that is not Lark, from the converter's message."""
    if "::=" not in text:
        return 'the grammar is neither Lark nor GBNF: it has no rule, such as `start: "a"` or `root ::= "a"`'
    if undefined := re.fullmatch(r"Rule '(.*)' not found", fault):
        return f"in GBNF, rule '{undefined[1]}' is used but not defined"
    if found := re.fullmatch(r"(.*) at line (\d+), '(.*)' \^ '(.*)'", fault, re.DOTALL):
        what, line, before, after = found.groups()
        place = f"before '{after}'" if after else f"after '{before}', where the grammar ends"
        return f"the grammar is wrong GBNF in line {line}: {what[:1].lower()}{what[1:]} {place}"
    return f"the grammar is wrong GBNF: {fault}"


def _answer(job: Job, builder: Builder) -> Result | Exception:
    signal.setitimer(signal.ITIMER_PROF, job.deadline_s)
    try:
        return builder.build(job.key, job.spec)
    except (GrammarError, TooLargeError) as error:
        return error
    except MemoryError:
        return TooLargeError("it took too much memory")
    except RecursionError:
        return TooLargeError("it is nested too deep")
    except Exception:  # a fault of ours; llguidance may succeed
        return CompilerError(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class _CompilationNotice(Listener):
    """Sends one notice if this process compiles its own code."""

    def __init__(self, channel: IO[bytes]) -> None:
        self.channel = channel
        self._is_told = False

    def on_start(self, event: Event) -> None:
        if not self._is_told:
            self._is_told = True
            write_frame(self.channel, NOTICE)

    def on_end(self, event: Event) -> None:
        """Does nothing; numba requires it."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    notice = _CompilationNotice(sys.stdout.buffer)
    register("numba:compile", notice)  # type: ignore[no-untyped-call]
    spellings, special = pickle.loads(read_frame(sys.stdin.buffer))
    builder = Builder(build_tries(spellings), special)
    builder.warm_up()
    gc.collect()
    gc.freeze()
    gc.disable()  # `_serve` collects between jobs
    relay = Relay()
    while (job := relay.next_job()) is not None:
        if not relay.has_child():
            pipes = relay.fork()
            if pipes is not None:
                _serve(builder, notice, *pipes)
        relay.do(job)
    relay.end_child()


def _serve(builder: Builder, notice: _CompilationNotice, jobs: IO[bytes], results: IO[bytes]) -> NoReturn:
    """Runs in a newly forked process, and ends that process."""
    first = resident()
    notice.channel = results
    keep_to_limits(EXTRA_BYTES)
    try:
        while True:
            job: Job = pickle.loads(read_frame(jobs))
            answer = _answer(job, builder)
            is_last = resident() - first > KEEP_BELOW
            kind = LAST_RESULT if is_last else RESULT
            write_frame(results, kind + pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
            if is_last:
                break
            gc.collect()
    except EOFError:
        pass
    finally:
        os._exit(0)
