"""What a publisher sends: vLLM's form, missed messages again, and nothing to those without a key."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from arbora.radix_cache import PrefixCache
from arbora.runtime.event_sockets import EventSockets
from arbora.runtime.messages import DropCache, RowError
from arbora.runtime.scheduler import event_publisher
from arbora.runtime.zmq_address import Address
from event_subscriber import Cleared, EventSubscriber, Prefix, Removed, Stored
from published_cache import SQL, Publishing, enter, publishing
from scheduler_bench import SchedulerBench
from zmq.auth import create_certificates, load_certificate

PAGE = 4
PROMPT = list(range(1, 13))  # three pages


@pytest.fixture
def publisher() -> Iterator[Publishing]:
    with publishing(PrefixCache(200, PAGE)) as made:
        yield made


def follow(publisher: Publishing, subscriber: EventSubscriber) -> None:
    publisher.turn()
    subscriber.follow(publisher.number)
    assert subscriber.list_prefixes() == publisher.list_prefixes()


def test_a_message_has_the_topic_the_number_and_a_batch_of_maps(publisher: Publishing) -> None:
    subscriber = publisher.subscribe()
    before = time.time()
    enter(publisher.cache, "", PROMPT)
    publisher.turn()
    subscriber._wait(subscriber._live, 60)
    topic, number, batch = subscriber._live.recv_multipart()
    assert (topic, number) == (b"kv@me@model", publisher.number.to_bytes(8, "big"))
    at, events, rank = msgspec.msgpack.decode(batch)
    assert before <= at <= time.time() and rank == 0
    (stored,) = events
    assert next(iter(stored)) == "type"
    hashes = stored.pop("block_hashes")
    assert len(set(hashes)) == 3
    assert stored == {
        "type": "BlockStored",
        "parent_block_hash": None,
        "token_ids": PROMPT,
        "block_size": PAGE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    publisher.cache.drop("")
    publisher.turn()
    subscriber._wait(subscriber._live, 60)
    removed: Any = msgspec.msgpack.decode(subscriber._live.recv_multipart()[2])[1]
    assert removed == [{"type": "BlockRemoved", "block_hashes": hashes[::-1], "medium": "GPU"}]


def test_a_turn_without_changes_sends_nothing(publisher: Publishing) -> None:
    number = publisher.number
    publisher.turn()
    assert publisher.number == number


def test_a_late_subscriber_gets_the_whole_tree_without_asking(publisher: Publishing) -> None:
    early = publisher.subscribe(replays=False)
    for namespace in ("", "tenant", f"@{SQL}"):
        enter(publisher.cache, namespace, PROMPT)
        enter(publisher.cache, namespace, [*PROMPT[:8], 50, 51, 52, 53])
    follow(publisher, early)
    late = publisher.subscribe(replays=False)
    assert len(late.messages) == 1
    assert late.list_prefixes() == publisher.list_prefixes()
    follow(publisher, early)


def test_many_subscribers_at_once_get_the_tree_once_a_second(publisher: Publishing) -> None:
    address = publisher.sockets.address.of_replica(0)
    number = publisher.number

    def subscribe() -> EventSubscriber:
        return EventSubscriber(address, on_wait=lambda: publisher.publisher.turn(5.0, has_input=True))

    def turn_until(is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_done():
            publisher.publisher.turn(5.0, has_input=True)
            assert time.monotonic() < deadline

    subscribers = [subscribe()]
    turn_until(lambda: publisher.number == number + 1)
    subscribers += [subscribe() for _ in range(8)]
    turn_until(lambda: publisher.publisher.max_wait_s(5.0) == event_publisher.MIN_WHOLE_S)
    time.sleep(0.2)  # the rest connects
    publisher.publisher.turn(5.5, has_input=True)
    assert publisher.number == number + 1
    publisher.publisher.turn(6.0, has_input=True)
    assert publisher.number == number + 2
    for subscriber in subscribers:
        subscriber.follow(publisher.number)
        subscriber.close()


def test_a_subscriber_of_another_topic_does_not_ask_for_the_tree(publisher: Publishing) -> None:
    number = publisher.number
    stranger = EventSubscriber(
        publisher.sockets.address.of_replica(0), topic=b"kv@you", on_wait=publisher.turn
    )
    assert stranger.receive(0.3) is None
    assert publisher.number == number
    stranger.close()


def test_missed_messages_come_again_and_only_those(publisher: Publishing) -> None:
    subscriber = publisher.subscribe()
    for first in range(1, 6):
        enter(publisher.cache, "", [first, *PROMPT])
        publisher.turn()
    lost = [subscriber.receive() for _ in range(4)]
    assert None not in lost
    message = subscriber.receive()
    assert message is not None
    subscriber.take(message)
    assert subscriber.replays == 1
    assert [each.number for each in subscriber.messages[-5:]] == list(
        range(publisher.number - 4, publisher.number + 1)
    )
    assert subscriber.list_prefixes() == publisher.list_prefixes()
    assert subscriber.ask(publisher.number + 1) == []


def test_messages_no_longer_kept_are_replaced_by_the_whole_tree(
    publisher: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_publisher, "MAX_KEPT_BYTES", 1000)
    subscriber = publisher.subscribe()
    first = publisher.number
    for token in range(1, 30):
        enter(publisher.cache, "", [token, *PROMPT])
        publisher.turn()
    assert sum(len(batch) for _, batch in publisher.publisher._kept) <= 1000
    (whole,) = subscriber.ask(first)
    assert whole.number == publisher.number
    assert isinstance(whole.batch.events[0], Cleared)
    subscriber.apply([whole])
    assert subscriber.list_prefixes() == publisher.list_prefixes()


def test_a_restarted_scheduler_has_higher_numbers_and_an_empty_tree(publisher: Publishing) -> None:
    subscriber = publisher.subscribe()
    enter(publisher.cache, "", PROMPT)
    follow(publisher, subscriber)
    last = publisher.number
    publisher.publisher.close()
    publisher.start(PrefixCache(200, PAGE))
    assert publisher.number > last + 1
    (answer,) = subscriber.ask(last + 1)
    assert answer.number == publisher.number and answer.batch.events == [Cleared()]
    subscriber.follow(publisher.number)
    assert subscriber.blocks == {}


def test_a_request_without_delimiter_is_answered_and_a_wrong_one_is_not(publisher: Publishing) -> None:
    assert publisher.sockets.replay is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.connect(publisher.sockets.replay.of_replica(0))
        for request in (b"", b"short", bytes(9), publisher.number.to_bytes(8, "big")):
            asker.send(request)
        while not asker.poll(1):
            publisher.turn()
        assert [len(frame) for frame in asker.recv_multipart()[:2]] == [11, 8]
        assert asker.recv_multipart() == [b"", b"\xff" * 8, b""]
        assert not asker.poll(50)


def test_a_tenants_namespace_is_a_key_of_the_first_block_and_an_adapter_is_named(
    publisher: Publishing,
) -> None:
    subscriber = publisher.subscribe()
    long = [*PROMPT, 20, 21, 22, 23]
    for namespace in ("", "tenant", f"@{SQL}", f"tenant@{SQL}"):
        enter(publisher.cache, namespace, PROMPT)
        enter(publisher.cache, namespace, long)
    follow(publisher, subscriber)
    events = [event for event in subscriber.messages[-1].batch.events if isinstance(event, Stored)]
    firsts = [event for event in events if event.parent_block_hash is None]
    assert [(event.lora_name, event.extra_keys) for event in firsts] == [
        (None, None),
        (None, [["tenant"], None, None]),
        ("sql", None),
        ("sql", [["tenant"], None, None]),
    ]
    assert [event.extra_keys for event in events if event.parent_block_hash is not None] == [None] * 4
    assert Prefix(tuple(long), "sql", ("tenant",)) in subscriber.list_prefixes()
    publisher.adapters.clear()  # its pages outlive the adapter
    late = publisher.subscribe()
    assert late.list_prefixes() == subscriber.list_prefixes()


def test_a_block_has_the_same_hash_in_every_replica_and_after_any_history(publisher: Publishing) -> None:
    enter(publisher.cache, "", [7, 7, 7, 7])
    enter(publisher.cache, "", PROMPT)
    with publishing(PrefixCache(50, PAGE), replica=1) as other:
        enter(other.cache, "", PROMPT[:8])
        enter(other.cache, "", PROMPT)
        subscriber, second = publisher.subscribe(), other.subscribe()
        assert {*second.blocks} < {*subscriber.blocks}
        assert second.messages[-1].batch.data_parallel_rank == 1
    with publishing(PrefixCache(50, PAGE)) as third:
        enter(third.cache, "tenant", PROMPT)
        assert not {*third.subscribe().blocks} & {*subscriber.blocks}


def test_a_subscriber_that_does_not_read_delays_nobody_and_catches_up(
    publisher: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_publisher, "MAX_UNREAD", 5)
    publisher.publisher.close()
    publisher.start(PrefixCache(3000, PAGE))
    slow = publisher.subscribe()
    slow._live.setsockopt(zmq.RCVHWM, 5)
    slow._live.disconnect(publisher.sockets.address.of_replica(0))
    slow._live.connect(publisher.sockets.address.of_replica(0))
    publisher.turn()
    time.sleep(0.2)
    fast = publisher.subscribe()
    tokens = list(range(1000, 1400))
    for first in range(400):
        enter(publisher.cache, "", [first, *tokens])
        publisher.cache.drop("")
        publisher.turn()
        fast.follow(publisher.number)
    unread = 0
    while (message := slow.receive(0.2)) is not None:
        unread += 1
        slow.take(message)
    assert unread < 400
    replays = slow.replays
    enter(publisher.cache, "", PROMPT)
    follow(publisher, slow)
    assert slow.replays == replays + 1


def test_only_subscribers_with_a_known_key_get_events(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    create_certificates(tmp_path, "server")
    create_certificates(tmp_path / "clients", "known")
    create_certificates(tmp_path, "stranger")
    server, _ = load_certificate(tmp_path / "server.key")
    known = load_certificate(tmp_path / "clients" / "known.key_secret")
    stranger = load_certificate(tmp_path / "stranger.key_secret")
    assert known[1] is not None and stranger[1] is not None
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    live, replay = (Address("tcp", "127.0.0.1", port) for port in ports)
    sockets = EventSockets(live, replay, "", tmp_path / "server.key_secret", tmp_path / "clients")
    with publishing(PrefixCache(50, PAGE), sockets=sockets) as publisher:
        enter(publisher.cache, "", PROMPT)
        follow(publisher, subscriber := publisher.subscribe(keys=(server, known[0], known[1])))
        assert subscriber.ask(publisher.number)[-1].number == publisher.number
        for keys in ((server, stranger[0], stranger[1]), (known[0], known[0], known[1]), ()):
            refused = EventSubscriber(live.of_replica(0), keys=keys, on_wait=publisher.turn)
            number = publisher.number
            enter(publisher.cache, "", [len(keys), 1, 2, 3, 4])
            assert refused.receive(0.4) is None
            assert publisher.number <= number + 1, "the whole tree is not publisher for it"
            asker = refused._connect(zmq.DEALER, replay.of_replica(0))
            asker.send_multipart([b"", bytes(8)], zmq.NOBLOCK)
            assert not refused._wait(asker, 0.4)
            refused.close()


def test_events_stay_true_when_planned_pages_are_lost() -> None:
    """Requests end, are retracted and evicted while their steps are in flight."""
    bench = SchedulerBench(num_pages=24, slots=4)
    with publishing(bench.cache) as publisher:
        subscriber = publisher.subscribe()
        removed = 0
        for number in range(60):
            prompt = [number % 7 * 10 + each for each in range(1 + number % 5 * 11)]
            bench.submit(f"{number}", prompt or [1], max_tokens=30, ignore_eos=True)
            bench.run(2)
            follow(publisher, subscriber)
            if number % 3 == 0:
                bench.scheduler._drop(f"{number}")
                bench.plan()
                follow(publisher, subscriber)
            if number % 20 == 19:
                bench.control(DropCache(0, 1, "", None))
                follow(publisher, subscriber)
            events = [event for each in subscriber.messages for event in each.batch.events]
            removed = sum(len(event.block_hashes) for event in events if isinstance(event, Removed))
        bench.run()
        follow(publisher, subscriber)
        assert removed > 50 and bench.scheduler.stats().retractions


def test_pages_of_a_failed_row_are_removed() -> None:
    bench = SchedulerBench()
    with publishing(bench.cache) as publisher:
        subscriber = publisher.subscribe()
        bench.submit("a", PROMPT, max_tokens=9)
        bench.plan()
        follow(publisher, subscriber)
        assert len(subscriber.blocks) == 3
        result = bench.model.run_step()
        result.errors = [RowError(0, "not_a_number", "the logits are not numbers")]
        bench.handle(result)
        bench.run()
        follow(publisher, subscriber)
        assert subscriber.blocks == {}
