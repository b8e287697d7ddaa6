"""Messages between the scheduler and a fork server."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

FORK, KILL = b"F", b"K"  # to the server, followed by a process number in 8 bytes
NOT_FORKED = -1000  # a status: the fork failed


class Ended(Struct, tag=True, array_like=True):
    """The end of a process: its status as in `subprocess`, and its processor time. The server sends this once
    for process 0, itself, when it is ready."""

    process: int
    status: int
    cpu_s: float = 0.0


class Compiling(Struct, tag=True, array_like=True):
    """The server compiles its own code before it is ready."""


Report: TypeAlias = Ended | Compiling

encode = msgspec.msgpack.encode
decode_report = msgspec.msgpack.Decoder(Report).decode
