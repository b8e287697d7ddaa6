"""A gateway that follows a scheduler's events. Its structs are written from vLLM's published format, so it
decodes what vLLM's consumers decode."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import zmq

PATIENCE_S = 60.0
END = b"\xff" * 8


class Stored(msgspec.Struct, tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None


class Removed(msgspec.Struct, tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", forbid_unknown_fields=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


class Message(NamedTuple):
    topic: bytes
    number: int
    batch: Batch


class Block(NamedTuple):
    parent: int | None
    tokens: tuple[int, ...]
    lora: str | None
    extra: tuple[Any, ...]


class Prefix(NamedTuple):
    """A cached prefix as a gateway knows it: the tokens up to a block's end, and what else they depend on."""

    tokens: tuple[int, ...]
    lora: str | None
    extra: tuple[Any, ...]


_decoder = msgspec.msgpack.Decoder(Batch)


class EventSubscriber:
    """Mirrors the blocks of one scheduler. Asserts that each event makes sense after those before it."""

    def __init__(
        self,
        address: str,
        replay: str | None = None,
        keys: Sequence[bytes] = (),
        topic: bytes = b"",
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        """keys: the server's public key, and the own public and secret key. on_wait: called again and again
        while the subscriber waits, to let a publisher in the same thread work"""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._keys = keys
        self._live = self._connect(zmq.SUB, address)
        self._live.subscribe(topic)
        self._replay = replay
        self._on_wait = on_wait
        self.blocks: dict[int, Block] = {}
        self.messages: list[Message] = []
        self.last: int | None = None
        self.replays = 0

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RECONNECT_IVL, 1)
        socket.setsockopt(zmq.RCVHWM, 0)
        if self._keys:
            socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = self._keys
        socket.connect(address)
        return socket

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _wait(self, socket: zmq.Socket[bytes], seconds: float) -> bool:
        """Waits for a message; False if none comes in time."""
        if self._on_wait is None:
            return bool(socket.poll(int(1000 * seconds)))
        deadline = time.monotonic() + seconds
        while not socket.poll(1) and time.monotonic() < deadline:
            self._on_wait()
        return bool(socket.poll(0))

    def receive(self, seconds: float = PATIENCE_S) -> Message | None:
        """The next message; None if none comes in time."""
        if not self._wait(self._live, seconds):
            return None
        topic, number, batch = self._live.recv_multipart()
        assert len(number) == 8
        return Message(topic, int.from_bytes(number, "big"), _decoder.decode(batch))

    def follow(self, until: int) -> None:
        """Applies messages up to the number `until`."""
        while self.last is None or self.last < until:
            message = self.receive()
            assert message is not None, f"no message {until} after {self.last}"
            self.take(message)

    def take(self, message: Message) -> None:
        """Applies a message, after those that are missing before it."""
        is_whole = isinstance(message.batch.events[0], Cleared)
        if not is_whole and (self.last is None or message.number > self.last + 1):
            self.apply(self.ask(0 if self.last is None else self.last + 1))
        if self.last is None or message.number > self.last:
            self.apply([message])

    def ask(self, first: int) -> list[Message]:
        """The answer to a request for the messages from number `first` on."""
        assert self._replay is not None, "the subscriber has lost messages and no address to ask for them"
        self.replays += 1
        answers = list[Message]()
        with self._connect(zmq.DEALER, self._replay) as socket:
            socket.send_multipart([b"", first.to_bytes(8, "big")])
            while True:
                assert self._wait(socket, PATIENCE_S), "no answer"
                empty, topic, number, batch = socket.recv_multipart()
                assert empty == b""
                if number == END and not batch:
                    return answers
                answers.append(Message(topic, int.from_bytes(number, "big"), _decoder.decode(batch)))

    def apply(self, messages: Sequence[Message]) -> None:
        for message in messages:
            for event in message.batch.events:
                match event:
                    case Cleared():
                        self.blocks.clear()
                    case Removed():
                        for block in event.block_hashes:
                            del self.blocks[block]
                    case Stored():
                        self._store(event)
            self.messages.append(message)
            self.last = message.number

    def _store(self, event: Stored) -> None:
        size, parent = event.block_size, event.parent_block_hash
        assert parent is None or parent in self.blocks, "the block before is not known"
        assert len(event.token_ids) == size * len(event.block_hashes)
        extras = [None] * len(event.block_hashes) if event.extra_keys is None else event.extra_keys
        for index, (block, extra) in enumerate(zip(event.block_hashes, extras, strict=True)):
            assert block not in self.blocks, "a block is stored twice"
            assert 2**62 <= block < 2**63
            tokens = tuple(event.token_ids[index * size : (index + 1) * size])
            self.blocks[block] = Block(parent, tokens, event.lora_name, tuple(extra or ()))
            parent = block

    def list_prefixes(self) -> set[Prefix]:
        """All prefixes that end with a block."""
        found = set()
        for block in self.blocks.values():
            tokens, first = block.tokens, block
            while first.parent is not None:
                first = self.blocks[first.parent]
                tokens = first.tokens + tokens
            found.add(Prefix(tokens, block.lora, first.extra))
        return found
