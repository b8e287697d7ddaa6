"""Messages between the scheduler and the processes that run llguidance.

A process that has read a client's grammar is not trusted: its answers have known types and bounded sizes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from ...runtime.grammar_spec import GrammarSpec
from ..errors import Fault

MAX_ANSWER = 4 << 20  # bytes; a mask of a vocabulary of a million tokens has 128 KiB

Task = Literal["enforce", "allow", "lark", "thinking", "describe"]
"""`enforce` the whole grammar; `allow` keywords to be left out; `lark`: a grammar in Lark; `thinking`: a
structural tag of a thought and a grammar, given as `lark` in Lark; `describe` a structural tag."""


class HostVocabulary(Struct, array_like=True):
    """`offsets` int32 and `data`: the bytes of token i are data[offsets[i]:offsets[i + 1]]."""

    offsets: bytes
    data: bytes
    special: list[int]
    eos_tokens: tuple[int, ...]
    vocab_size: int


class CompileJob(Struct, array_like=True):
    """A grammar to compile within `deadline_s` and `extra_bytes`, the memory that the process may take after
    it was forked."""

    task: Task
    spec: GrammarSpec
    deadline_s: float
    extra_bytes: int
    lark: str = ""


class Compiled(Struct, tag=True, array_like=True):
    """The grammar is compiled. `nbytes`: the memory that it takes."""

    left_out: tuple[tuple[str, str], ...]
    nbytes: int


class Description(Struct, tag=True, array_like=True):
    """Facts about a structural tag that can't be compiled as it is.

    `schemas`: for each schema its function, and what may replace it; `grammar`: the grammar after a thought,
    if there is one.
    """

    schemas: list[tuple[str, Literal["refuse", "object", "value"]]]
    grammar: str | None


class Failed(Struct, tag=True, array_like=True):
    fault: Fault


Outcome: TypeAlias = Compiled | Description | Failed


class Advance(Struct, tag=True, array_like=True):
    """Advances the matcher by these tokens. Its first message creates it."""

    matcher: int
    tokens: list[int]


class Leave(Struct, tag=True, array_like=True):
    """Deletes the matcher."""

    matcher: int


Request: TypeAlias = Advance | Leave


class MatcherState(Struct, array_like=True):
    """The state of a matcher: its error, the text that must come next, and the next token's mask."""

    matcher: int
    error: Fault | None
    forced: bytes
    mask: bytes


encode = msgspec.msgpack.encode
decode_vocabulary = msgspec.msgpack.Decoder(HostVocabulary).decode
decode_job = msgspec.msgpack.Decoder(CompileJob).decode
decode_outcome = msgspec.msgpack.Decoder(Outcome).decode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_state = msgspec.msgpack.Decoder(MatcherState).decode
