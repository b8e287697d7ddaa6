"""What the scheduler and the processes that run llguidance say to each other.

A process that has read a client's grammar is not trusted: its answers are data of known types and size.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from ...runtime.grammar_spec import GrammarSpec
from ..errors import Fault

FORK, KILL = b"F", b"K"  # to the server, before a process's number in 8 bytes
NOT_FORKED = -1000  # a status
MAX_ANSWER = 4 << 20  # bytes; a mask of a vocabulary of a million tokens has 128 KiB

Task = Literal["enforce", "allow", "lark", "thinking", "describe"]
"""`enforce` all of the grammar; `allow` keywords to be left out; `lark`: a grammar in Lark; `thinking`: a
structural tag of a thought and a grammar, which `lark` has in Lark; `describe` a structural tag"""


class HostVocabulary(Struct, array_like=True):
    """`offsets` int32 and `data`: the bytes of token i are data[offsets[i]:offsets[i + 1]]."""

    offsets: bytes
    data: bytes
    special: list[int]
    eos_tokens: tuple[int, ...]
    vocab_size: int


class CompileJob(Struct, array_like=True):
    """`deadline_s` and `extra_bytes` are what the process may take beyond what it has when it is forked."""

    task: Task
    spec: GrammarSpec
    deadline_s: float
    extra_bytes: int
    lark: str = ""


class Compiled(Struct, tag=True, array_like=True):
    """`nbytes` is the memory that the process took for it."""

    left_out: tuple[tuple[str, str], ...]
    may_begin: bool
    nbytes: int


class Description(Struct, tag=True, array_like=True):
    """What there is to know of a structural tag that can't be compiled as it is.

    `schemas`: the function and what may take the schema's place, of each schema; `grammar`: that of the
    content behind a thought, if it is one.
    """

    schemas: list[tuple[str, Literal["refuse", "object", "value"]]]
    grammar: str | None


class Failed(Struct, tag=True, array_like=True):
    fault: Fault


Outcome: TypeAlias = Compiled | Description | Failed


class Advance(Struct, tag=True, array_like=True):
    """The matcher `matcher`, which begins to exist when it is first named, takes these tokens."""

    matcher: int
    tokens: list[int]


class Leave(Struct, tag=True, array_like=True):
    """Nothing will be asked of the matcher any more."""

    matcher: int


Request: TypeAlias = Advance | Leave


class Standing(Struct, array_like=True):
    """Where a matcher stands: what went wrong, the text that must come next, the next token's mask."""

    matcher: int
    error: Fault | None
    forced: bytes
    mask: bytes


class Ended(Struct, array_like=True):
    """A process ended, with the status that `subprocess` would give, after so much processor time.
    Process 0 is the server: it is ready."""

    process: int
    status: int
    cpu_s: float = 0.0


encode = msgspec.msgpack.encode
decode_vocabulary = msgspec.msgpack.Decoder(HostVocabulary).decode
decode_job = msgspec.msgpack.Decoder(CompileJob).decode
decode_outcome = msgspec.msgpack.Decoder(Outcome).decode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_standing = msgspec.msgpack.Decoder(Standing).decode
decode_ended = msgspec.msgpack.Decoder(Ended).decode
