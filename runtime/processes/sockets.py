"""ZeroMQ inboxes and outboxes: one bound PULL for each process, connected PUSHes to its peers.

A PUSH socket keeps messages to a dead peer and delivers them to the next process that binds the address.
So every message starts with the sender's epoch, and an inbox drops messages of other epochs.
The supervisor outlives every epoch and sends with `ANY_EPOCH`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, cast

import msgspec
import zmq

from ..messages import Message

ANY_EPOCH = 0
MAX_EPOCH = 2**32 - 1
MAX_IPC_PATH = 107
SUPERVISOR = "supervisor"
_EPOCH = struct.Struct("<I")
T = TypeVar("T")


def supervisor_address(directory: Path) -> str:
    return f"ipc://{directory}/{SUPERVISOR}"


def tokenizer_address(directory: Path, index: int) -> str:
    return f"ipc://{directory}/tokenizer{index}"


def model_directory(directory: Path, number: int) -> Path:
    """Where a server's model has its configuration and its sockets: for the first one the server's directory
    itself."""
    return directory if number == 0 else directory / f"m{number}"


def remove_ipc_file(address: str) -> None:
    Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


class Replica(NamedTuple):
    """One start of a scheduler and its model processes, the ranks: the `epoch` of their messages, and their
    addresses.

    A server has replicas from number 0 on, and no two starts have the same epoch.
    """

    directory: Path
    epoch: int
    number: int = 0
    ranks: int = 1

    @property
    def scheduler(self) -> str:
        return self._address("scheduler")

    def model(self, rank: int = 0) -> str:
        return self._address(f"model{rank}")

    def page_store(self, rank: int = 0) -> str:
        return self._address(f"pages{rank}")

    def _address(self, role: str) -> str:
        return f"ipc://{self.directory}/{role}.{self.number}.{self.epoch}"

    @property
    def addresses(self) -> tuple[str, ...]:
        ranks = range(self.ranks)
        return self.scheduler, *map(self.model, ranks), *map(self.page_store, ranks)

    def remove_files(self) -> None:
        """Removes the replica's socket files. Call it when its processes have ended."""
        for address in self.addresses:
            remove_ipc_file(address)


class Outbox:
    """Sends to one peer, or the same to several. Never blocks and never drops: a peer's address may be bound
    later.

    Messages wait without limit until the peer reads them: the supervisor soon ends a peer that hangs.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, epoch: int, *others: str
    ) -> None:
        self._sockets = [_connect(context, each) for each in (address, *others)]
        self._header = _EPOCH.pack(epoch)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Message) -> None:
        frames = (self._header, self._encoder.encode(message))
        for socket in self._sockets:
            socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def close(self, linger_ms: int = 500) -> None:
        for socket in self._sockets:
            socket.close(linger=linger_ms)


class NoOutbox:
    """Sends nothing, because another process sends the same messages."""

    def send(self, message: Message) -> None:
        pass


def _connect(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.LINGER, 500)
    socket.connect(address)
    return socket


class MessageDecoder(Generic[T]):
    """Decodes frames to messages of the inbox's type; None for an epoch that is not among `epochs`. `sender`
    is the epoch of the last message."""

    def __init__(self, kind: object, epoch: int) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(cast("type[T]", kind))
        self.epochs: Collection[int] = (epoch, ANY_EPOCH)
        self.sender = ANY_EPOCH

    def decode(self, frames: list[bytes]) -> T | None:
        (self.sender,) = _EPOCH.unpack(frames[0])
        if self.sender not in self.epochs:
            return None
        return self._decoder.decode(frames[1])


class Inbox(Generic[T]):
    """Receives for a process with its own loop. `kind` is the union of its messages."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, kind: object, epoch: int
    ) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._decoder: MessageDecoder[T] = MessageDecoder(kind, epoch)
        self._awakened, self._wake = os.pipe()
        os.set_blocking(self._awakened, False)
        os.set_blocking(self._wake, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._awakened, zmq.POLLIN)
        self._watched: list[zmq.Socket[bytes]] = []
        self.watched_input = False
        """whether a watched socket had something to read when `receive` ended"""

    def watch(self, sockets: Iterable[zmq.Socket[bytes]]) -> None:
        """Lets these sockets end `receive` too, when they have something to read."""
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)
            self._watched.append(socket)

    def receive(self, timeout_ms: int | None = None) -> T | None:
        """The next message; None after `timeout_ms` (None: no limit), `wake`, or for a watched socket."""
        ready = dict(self._poller.poll(timeout_ms))
        if self._awakened in ready:
            os.read(self._awakened, 4096)
        self.watched_input = any(socket in ready for socket in self._watched)
        if self._socket not in ready:
            return None
        return self._decoder.decode(self._socket.recv_multipart())

    def wake(self) -> None:
        """Ends the current or next `receive`. May be called from any thread."""
        with suppress(BlockingIOError):  # raised if the pipe is full of earlier wake-ups
            os.write(self._wake, b".")

    def waiting(self) -> Iterator[T]:
        """The messages that have arrived."""
        while self._socket.poll(0):
            message = self._decoder.decode(self._socket.recv_multipart())
            if message is not None:
                yield message

    def close(self) -> None:
        self._socket.close(linger=0)
        os.close(self._awakened)
        os.close(self._wake)


def check_directory(directory: Path) -> None:
    """Asserts that addresses in `directory` fit the operating system's limit on socket paths."""
    for address in Replica(model_directory(directory, 999), MAX_EPOCH).addresses:
        path = address.removeprefix("ipc://")
        assert len(os.fsencode(path)) <= MAX_IPC_PATH, f"{directory} is too long for ipc sockets"
