"""Decode server ↔ prefill server: the pages of prompts that one computes and the other goes on from.

The decode server connects a DEALER socket to the prefill server's ROUTER socket. It asks for those pages of
a prompt that it lacks (`AskPages`). The prefill server computes them and sends each as it is computed, but
never more than the decode server takes (`TakePages`). The contents of pages follow `PagesSent` as frames of
their own.
"""

from __future__ import annotations

import msgspec
import zmq

from ...messages import Message, Tokens


class AskPages(Message):
    """Compute a prompt, from its first page on that the decode server lacks."""

    fetch: int  # number that the answers name
    model: bytes  # hash of everything that a page's content depends on beside tokens and namespace
    namespace: str
    prompt: Tokens  # up to the end of the last page
    first: int  # index of the first page to send
    keys: bytes  # keys of the pages to send, 16 bytes each


class TakePages(Message):
    """The decode server has room for `pages` more pages of a fetch."""

    fetch: int
    pages: int


class CancelPages(Message):
    """No page of the fetch is needed any more."""

    fetch: int


class PagesPromised(Message):
    """The prefill server is going to send the pages."""

    fetch: int


class PagesSent(Message):
    """The next pages of a fetch, one frame each."""

    fetch: int


class PagesOver(Message):
    """No more pages of the fetch follow. `reason` is for the decode server's log; empty for a usual end."""

    fetch: int
    reason: str = ""


FromDecode = AskPages | TakePages | CancelPages
FromPrefill = PagesPromised | PagesSent | PagesOver

_encoder = msgspec.msgpack.Encoder()


def encode(message: FromDecode | FromPrefill) -> bytes:
    return _encoder.encode(message)


def set_options(socket: zmq.Socket[bytes]) -> None:
    """Makes both ends notice within some seconds that the other is gone, and never drop a message."""
    socket.setsockopt(zmq.IPV6, 1)  # IPv4 too
    socket.setsockopt(zmq.SNDHWM, 0)  # bounded by `TakePages`
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)  # milliseconds
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4000)
