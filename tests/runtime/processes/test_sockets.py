"""Messages between processes: which wait, which are dropped, which clients count as dead."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from arbora.runtime.messages import Abort, Accepted, TokenizerInbox
from arbora.runtime.processes.async_inbox import MAX_IN_A_ROW, AsyncInbox
from arbora.runtime.processes.sockets import (
    ANY_EPOCH,
    MAX_IPC_PATH,
    Inbox,
    Outbox,
    Replica,
    check_directory,
    model_directory,
    tokenizer_address,
)

MANY = 20_000  # messages: more than any limit of ZeroMQ by default

WAIT_MS = 60_000


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_messages_wait_for_a_peer_that_binds_later(
    context: zmq.Context[zmq.Socket[bytes]], directory: Path
) -> None:
    outbox = Outbox(context, tokenizer_address(directory, 0), epoch=1)
    for number in range(5000):
        outbox.send(Abort(str(number)))
    inbox: Inbox[Abort] = Inbox(context, tokenizer_address(directory, 0), Abort, epoch=1)
    assert [inbox.receive(WAIT_MS) for _ in range(5000)] == [Abort(str(number)) for number in range(5000)]


def test_a_directory_is_refused_if_an_address_of_the_last_epoch_would_be_too_long() -> None:
    last = Replica(model_directory(Path("/"), 999), 2**32 - 1)
    name = last.scheduler.removeprefix("ipc:///")
    longest = "/" + "d" * (MAX_IPC_PATH - len(f"//{name}"))
    check_directory(Path(longest))
    with pytest.raises(AssertionError, match="too long"):
        check_directory(Path(longest + "d"))


def test_messages_of_another_epoch_are_dropped(
    context: zmq.Context[zmq.Socket[bytes]], directory: Path
) -> None:
    inbox: Inbox[Abort] = Inbox(context, tokenizer_address(directory, 0), Abort, epoch=2)
    for epoch in (1, 2, ANY_EPOCH):
        outbox = Outbox(context, tokenizer_address(directory, 0), epoch)
        outbox.send(Abort(str(epoch)))
        expected = None if epoch == 1 else Abort(str(epoch))
        assert inbox.receive(WAIT_MS) == expected


def test_a_client_that_reads_late_gets_every_message_and_delays_no_others(
    context: zmq.Context[zmq.Socket[bytes]], directory: Path
) -> None:
    outboxes = [Outbox(context, tokenizer_address(directory, client), 1) for client in (0, 1)]
    late, reader = (
        Inbox[TokenizerInbox](context, tokenizer_address(directory, client), TokenizerInbox, 1)
        for client in (0, 1)
    )
    for number in range(MANY):
        for outbox in outboxes:
            outbox.send(Accepted(str(number)))
        assert reader.receive(WAIT_MS) == Accepted(str(number))
    assert [late.receive(WAIT_MS) for _ in range(MANY)] == [Accepted(str(number)) for number in range(MANY)]


def test_a_loop_that_reads_late_gets_every_message(directory: Path) -> None:
    async def received() -> list[TokenizerInbox]:
        context = zmq.asyncio.Context()
        address = tokenizer_address(directory, 0)
        inbox: AsyncInbox[TokenizerInbox] = AsyncInbox(context, address, TokenizerInbox, epoch=1)
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        outbox = Outbox(plain, address, epoch=1)
        for number in range(MANY):
            outbox.send(Accepted(str(number)))
        messages = [await inbox.receive() for _ in range(MANY)]
        outbox.close(linger_ms=0)
        inbox.close()
        context.term()
        return messages

    assert asyncio.run(received()) == [Accepted(str(number)) for number in range(MANY)]


def test_a_loop_knows_whether_more_messages_waited(directory: Path) -> None:
    async def run() -> None:
        inbox: AsyncInbox[TokenizerInbox] = AsyncInbox(
            zmq.asyncio.Context(), tokenizer_address(directory, 0), TokenizerInbox, 1
        )
        outbox = Outbox(zmq.Context(), tokenizer_address(directory, 0), epoch=1)
        had_more = False
        async with asyncio.timeout(WAIT_MS / 1000):
            while not had_more:  # the second message may come too late
                for text in "01":
                    outbox.send(Accepted(text))
                assert await inbox.receive() == Accepted("0")
                had_more = inbox.has_more
                assert await inbox.receive() == Accepted("1")
                assert not inbox.has_more
        outbox.close()
        inbox.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_backlog", [True, False])
def test_a_loop_does_other_work_between_messages(directory: Path, is_backlog: bool) -> None:
    async def turns_at_messages(messages: int) -> list[int]:
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context, address = zmq.asyncio.Context(plain), tokenizer_address(directory, 0)
        inbox: AsyncInbox[TokenizerInbox] = AsyncInbox(context, address, TokenizerInbox, epoch=1)
        outbox = Outbox(plain, address, epoch=1)
        for _ in range(messages if is_backlog else 1):
            outbox.send(Accepted("r"))
        turns, found = 0, []

        async def work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        working = asyncio.create_task(work())
        for _ in range(messages):
            await inbox.receive()
            found.append(turns)
            if not is_backlog:
                outbox.send(Accepted("r"))
        working.cancel()
        outbox.close(linger_ms=0)
        inbox.close()
        context.term()
        return found

    in_a_row = MAX_IN_A_ROW if is_backlog else 1
    turns = asyncio.run(turns_at_messages(10 * MAX_IN_A_ROW))[::in_a_row]
    assert turns == sorted(set(turns)), "some within each run of so many messages"


def test_a_thread_can_end_a_wait_that_no_message_ends(
    context: zmq.Context[zmq.Socket[bytes]], directory: Path
) -> None:
    inbox: Inbox[Abort] = Inbox(context, tokenizer_address(directory, 0), Abort, epoch=1)
    thread = threading.Thread(target=inbox.wake)
    thread.start()
    assert inbox.receive() is None
    thread.join()
    assert inbox.receive(1) is None, "one call ends one wait"


def test_early_or_repeated_wake_ups_count_once(
    context: zmq.Context[zmq.Socket[bytes]], directory: Path
) -> None:
    inbox: Inbox[Abort] = Inbox(context, tokenizer_address(directory, 0), Abort, epoch=1)
    for _ in range(100_000):
        inbox.wake()
    Outbox(context, tokenizer_address(directory, 0), 1).send(Abort("a"))
    while (message := inbox.receive(WAIT_MS)) is None:
        pass
    assert message == Abort("a")
