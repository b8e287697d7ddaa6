"""The process that forks a process for each grammar that llguidance compiles and follows. It has loaded
llguidance and the vocabulary."""

from __future__ import annotations

import signal
import sys
from functools import partial
from itertools import pairwise

import numpy as np

from ..processes.fork_server import ForkServer, control_socket, prepare_to_fork
from .child import serve
from .messages import HostVocabulary, decode_vocabulary
from .native import HostCompiler

MOST_GROWTH = 1 << 30  # bytes that all its processes together may use


def _compiler(vocabulary: HostVocabulary) -> HostCompiler:
    offsets = np.frombuffer(vocabulary.offsets, np.int32).tolist()
    data = vocabulary.data
    tokens = [data[start:end] for start, end in pairwise(offsets)]
    tokens += [b""] * (vocabulary.vocab_size - len(tokens))
    return HostCompiler(tokens, vocabulary.special, vocabulary.eos_tokens)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = control_socket()
    compiler = _compiler(decode_vocabulary(sys.stdin.buffer.read()))
    compiler.json_schema('{"type":"object","required":["a"]}', (",", ":")).matcher()
    prepare_to_fork()
    ForkServer(control, partial(serve, compiler=compiler), MOST_GROWTH).run()


if __name__ == "__main__":
    main()
