"""The process that builds automata: a hostile regex costs it its life, and nobody else a token.

It reads pickled jobs from its standard input and writes results to its standard output; both ends are
ours. An alarm without a handler ends it when a job takes too long, also inside native code.
"""

from __future__ import annotations

import pickle
import resource
import signal
import subprocess
import sys
from typing import NamedTuple

from .automaton import Automaton, with_masks
from .byte_automaton import compile_regex
from .errors import GrammarError, TooLargeError
from .token_trie import TokenTrie

_START = "from arbora.grammars.worker import main; main()"
MEMORY_LIMIT = 8 << 30  # bytes of address space


class Job(NamedTuple):
    key: str
    regex: str
    deadline_s: float


class AutomatonWorker:
    """Starts the process when it is first needed and again after it died. For use by one thread."""

    def __init__(self, trie: TokenTrie) -> None:
        self._trie = trie
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, job: Job) -> Automaton:
        """Raises GrammarError for a wrong regex, TooLargeError past a limit of states, masks or time."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            _write(process.stdin, job)
            result = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.close()
            raise TooLargeError(f"it took more than {job.deadline_s:g} s") from None
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, Automaton)
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
            _write(self._process.stdin, self._trie)
        return self._process


def _write(pipe: object, value: object) -> None:
    pickle.dump(value, pipe, protocol=pickle.HIGHEST_PROTOCOL)  # type: ignore[arg-type]
    pipe.flush()  # type: ignore[attr-defined]


def _answer(job: Job, trie: TokenTrie) -> Automaton | Exception:
    signal.setitimer(signal.ITIMER_REAL, job.deadline_s)
    try:
        return with_masks(job.key, compile_regex(job.regex), trie)
    except (GrammarError, TooLargeError) as error:
        return error
    except MemoryError:
        return TooLargeError("it took too much memory")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trie: TokenTrie = pickle.load(sys.stdin.buffer)
    with_masks("warm-up", compile_regex("a"), trie)  # numba's compilation is not the first job's
    while True:
        try:
            job: Job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _write(sys.stdout.buffer, _answer(job, trie))
