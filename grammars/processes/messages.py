"""The messages of the processes that compile grammars and follow replies.

A process that has read a client's grammar is not trusted: its messages have known types and bounded sizes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from ...runtime.automaton_format import pack_array, unpack_array
from ...runtime.grammar_spec import GrammarSpec
from ..errors import Fault
from ..machine.automaton import Automaton

FORK, KILL = b"F", b"K"  # first bytes of requests to a fork server, followed by a process number in 8 bytes
NOT_FORKED = -1000  # in place of a process's status: the fork failed
OVER_MEMORY = -1001  # the same: the server killed the process, because all together had grown too much
MAX_AUTOMATON = 1 << 30  # maximal bytes of a message with an automaton
MAX_STATE = 4 << 20  # maximal bytes of any other message; a mask of a million tokens has 128 KiB


class ForkedProcessEnded(Struct, tag=True, array_like=True):
    """The end of a process: its status as in `subprocess`. A fork server sends this once for process 0,
    itself, when it is ready."""

    process: int
    status: int


class CompilesOwnCode(Struct, tag=True, array_like=True):
    """The sender, a fork server or a process, compiles its own code, which may take minutes."""


class CompileJob(Struct, array_like=True):
    """A grammar to compile within `deadline_s` processor seconds, or a structural tag to describe. `key`
    names the automaton."""

    task: Literal["compile", "describe"]
    spec: GrammarSpec
    deadline_s: float
    key: str = ""


class HostVocabulary(Struct, array_like=True):
    """`offsets` int32 and `data`: the bytes of token i are data[offsets[i]:offsets[i + 1]]."""

    offsets: bytes
    data: bytes
    special: list[int]
    eos_tokens: tuple[int, ...]
    vocab_size: int


class Started(Struct, tag=True, array_like=True):
    """The first message of a process: its process id."""

    pid: int


class AutomatonReady(Struct, tag=True, array_like=True):
    automaton: Automaton


class MatcherReady(Struct, tag=True, array_like=True):
    """The process can follow replies. `nbytes`: the memory that the grammar takes."""

    left_out: tuple[tuple[str, str], ...]
    nbytes: int


class TagDescription(Struct, tag=True, array_like=True):
    """The function that each JSON schema in a structural tag belongs to, and what may replace the schema."""

    schemas: list[tuple[str, Literal["refuse", "object", "value"]]]


class Failed(Struct, tag=True, array_like=True):
    fault: Fault


Outcome: TypeAlias = AutomatonReady | MatcherReady | TagDescription | Failed


class Finished(Struct, tag=True, array_like=True):
    """The outcome of a job. The process takes no other job after its last one."""

    outcome: Outcome
    is_last: bool


class Advance(Struct, tag=True, array_like=True):
    """Advances the matcher by these tokens. The first message for a matcher creates it."""

    matcher: int
    tokens: list[int]


class DeleteMatcher(Struct, tag=True, array_like=True):
    matcher: int


class MatcherState(Struct, array_like=True):
    """The state of a matcher: its error, the text that must come next, and the next token's mask."""

    matcher: int
    error: Fault | None
    forced: bytes
    mask: bytes


encode = msgspec.msgpack.Encoder(enc_hook=pack_array).encode
decode_report = msgspec.msgpack.Decoder(ForkedProcessEnded | CompilesOwnCode).decode
decode_vocabulary = msgspec.msgpack.Decoder(HostVocabulary).decode
decode_job = msgspec.msgpack.Decoder(CompileJob).decode
decode_progress = msgspec.msgpack.Decoder(Started | CompilesOwnCode | Finished, dec_hook=unpack_array).decode
decode_request = msgspec.msgpack.Decoder(Advance | DeleteMatcher).decode
decode_state = msgspec.msgpack.Decoder(MatcherState).decode
