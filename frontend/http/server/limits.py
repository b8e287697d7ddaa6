"""Limits on the size and time of a connection's input, before a request reaches the application."""

from __future__ import annotations

import os
import resource

import msgspec

from ....runtime.errors import RequestError

KEPT_DESCRIPTORS = 64  # descriptors for files, threads and ipc sockets that this process opens later
SHARED_PER_TURN = 1
MAX_READ_BYTES = 32 * 1024  # bytes read from a connection per turn of the event loop; tiny chunks take 5 ms
MAX_CONNECTIONS = 16_384  # connections served, and also in the queue (Linux: at most net.core.somaxconn)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of each connection. `_bytes` and `_lines` are maximum sizes, `_seconds` maximum waits.

    A head is the request line with the headers. In every `body_seconds` a body must grow by `body_step_bytes`
    and by one `body_step_part`-th of its size so far, so that a large body is not held for long.
    `message_bytes` counts a body as it was sent, with the framing of its chunks. Uploads, which are written
    to disk in pieces, have the limit `upload_bytes` and the step `body_step_bytes`. `ahead_bytes` of the next
    requests are kept while one is answered. A client that reads less than `write_step_bytes` of an answer in
    `write_seconds` is disconnected. After a refusal, input is read and dropped for
    `linger_seconds`: closing at once would reset the connection and lose the refusal. Up to
    `refused_connections` beyond `connections` are accepted, to be refused. A connection without a request is
    closed for a new one after `spared_seconds` at the earliest, because its request may be on the way. In one
    turn of the event loop up to `started_per_turn` requests start, and `accepted_per_turn` connections are
    accepted. The latter number is higher, because the system drops arrivals while its queue is full, and
    their clients may see a reset. With TLS it is `handshakes_per_turn`, because a handshake takes up to a
    millisecond.
    """

    head_bytes: int = 64 * 1024
    target_bytes: int = 8 * 1024
    header_lines: int = 128
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    body_step_bytes: int = 16 * 1024
    body_step_part: int = 16
    message_bytes: int = 64 * 1024 * 1024
    upload_bytes: int = 256 * 1024 * 1024
    ahead_bytes: int = 64 * 1024
    write_seconds: float = 60.0
    write_step_bytes: int = 1024
    linger_seconds: float = 2.0
    idle_seconds: int = 60
    connections: int = MAX_CONNECTIONS
    refused_connections: int = 128
    spared_seconds: float = 0.5
    started_per_turn: int = 8
    accepted_per_turn: int = 64
    handshakes_per_turn: int = 8


def choose_limits(processes: int = 1) -> Limits:
    """The limits, with as many connections as this process has descriptors for.

    Several processes accept from one socket. Each takes few connections at a time, so that all get a share.
    """
    limits = _count_connections()
    return limits if processes == 1 else msgspec.structs.replace(limits, accepted_per_turn=SHARED_PER_TURN)


def _count_connections() -> Limits:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Limits()
    left = soft - len(os.listdir("/proc/self/fd")) - KEPT_DESCRIPTORS
    refused = max(8, min(Limits().refused_connections, left // 8))
    return Limits(connections=max(8, min(MAX_CONNECTIONS, left - refused)), refused_connections=refused)


def check_descriptors() -> None:
    """Raises a 503 `RequestError` if no file descriptor is left, because new connections would fail."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise RequestError(
            f"All {most:,} file descriptors are in use, so that new connections fail. Close connections, or "
            "start the server with a higher limit (ulimit -n).",
            status=503,
            code="out_of_descriptors",
        ) from error
