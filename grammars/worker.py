"""The process that builds automata: a hostile grammar costs it its life, and nobody else a token.

It reads pickled jobs from its standard input and writes results to its standard output; both ends are
ours. An alarm without a handler ends it when a job takes too long, also inside native code.
"""

from __future__ import annotations

import pickle
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import LifoQueue
from typing import NamedTuple, TypeAlias

from llguidance.gbnf_to_lark import any_to_lark

from .automaton import Automaton, with_masks
from .byte_automaton import compile_regex
from .errors import GrammarError, TooLargeError
from .schema import SchemaCompiler
from .stack_masks import StackMasks
from .tags import Format, TagCompiler
from .token_trie import TokenTrie

_START = "from arbora.grammars.worker import main; main()"
MEMORY_LIMIT = 8 << 30  # bytes of address space
KEEP_BELOW = 1 << 30  # bytes of memory; a process that has more, for what it remembers, ends with its job


class Schema(NamedTuple):
    """A JSON schema; `separators` are those between items and after names."""

    text: str
    separators: tuple[str, str]


class StructuralTag(NamedTuple):
    """`special` are the bytes by which automata know special tokens, by name."""

    format: Format
    special: Mapping[str, bytes]

    def spelled(self, text: str) -> bytes:
        """The bytes of a text, in which the longest names of special tokens are those tokens."""
        names = sorted((name for name in self.special if name in text), key=len, reverse=True)
        if not names:
            return text.encode()
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        return b"".join(self.special.get(part, part.encode()) for part in parts)


class ContextFree(NamedTuple):
    """A grammar in Lark's syntax, or GBNF, which is converted to it."""

    text: str


Source: TypeAlias = "str | Schema | StructuralTag | ContextFree"


class Job(NamedTuple):
    key: str
    grammar: Source
    """a regex without anchors, or any other"""
    deadline_s: float


Result: TypeAlias = Automaton | str
"""what a job gives: of a context-free grammar its text for Lark"""


class AutomatonWorkers:
    """As many processes as there are jobs at a time, at most `size`. For use by several threads."""

    def __init__(self, trie: Future[TokenTrie], size: int) -> None:
        self._size = size
        self._idle: LifoQueue[AutomatonWorker] = LifoQueue()  # so those not yet needed come last
        for _ in range(size):
            self._idle.put(AutomatonWorker(trie))

    def build(self, job: Job) -> Result:
        """As `AutomatonWorker.build`, after the jobs before it."""
        worker = self._idle.get()
        try:
            return worker.build(job)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Waits for the jobs that run; none may come any more."""
        for _ in range(self._size):
            self._idle.get().close()


class AutomatonWorker:
    """Starts the process when it is first needed and again after it died. For use by one thread."""

    def __init__(self, trie: Future[TokenTrie]) -> None:
        self._trie = trie
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, job: Job) -> Result:
        """Raises GrammarError for a wrong grammar, NotCoveredError for a keyword without an automaton,
        TooLargeError past a limit of states, masks or time."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            _write(process.stdin, job)
            result, is_last = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.close()
            raise TooLargeError(f"it took more than {job.deadline_s:g} s") from None
        if is_last:
            self.close()
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, Automaton | str)
        return result

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert self._process.stdin is not None
            _write(self._process.stdin, self._trie.result())
        return self._process


def _write(pipe: object, value: object) -> None:
    pickle.dump(value, pipe, protocol=pickle.HIGHEST_PROTOCOL)  # type: ignore[arg-type]
    pipe.flush()  # type: ignore[attr-defined]


class Builder:
    """Keeps what grammars have in common."""

    def __init__(self, trie: TokenTrie) -> None:
        self._schemas = SchemaCompiler()
        self._tags = TagCompiler(self._schemas)
        self._masks = StackMasks(trie)

    def build(self, key: str, grammar: Source) -> Result:
        match grammar:
            case ContextFree(text):
                return _in_lark(text)
            case StructuralTag(format):
                tagged = self._tags.compile(format, grammar.spelled)
                masked = with_masks(key, tagged.machine, self._masks)
                return replace(masked, left_out=tagged.left_out)
            case Schema(text, separators):
                return with_masks(key, self._schemas.compile(text, separators=separators), self._masks)
            case str():
                return with_masks(key, compile_regex(grammar), self._masks)

    def warm_up(self) -> None:
        """Compiles what the first job should not wait for, and the strings of all schemas."""
        self.build("regex", "a")
        self.build("schema", Schema("true", (",", ":")))


def _in_lark(text: str) -> str:
    try:
        return any_to_lark(text)
    except Exception as error:  # the converter raises no narrower class
        raise GrammarError(f"the grammar is neither Lark nor GBNF: {error}") from None


def _answer(job: Job, builder: Builder) -> Result | Exception:
    signal.setitimer(signal.ITIMER_REAL, job.deadline_s)
    try:
        return builder.build(job.key, job.grammar)
    except (GrammarError, TooLargeError) as error:
        return error
    except MemoryError:
        return TooLargeError("it took too much memory")
    except Exception as error:  # a fault of ours; llguidance may do better
        return TooLargeError(f"{type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    builder = Builder(pickle.load(sys.stdin.buffer))
    builder.warm_up()
    while True:
        try:
            job: Job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer = _answer(job, builder)
        _write(sys.stdout.buffer, (answer, _resident() > KEEP_BELOW))


def _resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
